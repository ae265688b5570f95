"""Random projections with an activation: the two feature maps of APFL (3), (11).

The projection comes from a seed, so parties that share the seed share the map and never send it. The paper
does not give its distribution; here entries are normal with standard deviation 1/√dim_in, so that projected
features are about as large as input features (`scale` chooses another standard deviation).

>>> phi = RandomFeatures(dim_in=4, dim_out=3, activation="relu", seed=0)
>>> phi(np.ones((2, 4), dtype=np.float32)).shape
(2, 3)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import expit, ndtr

from fedgram.core.errors import InvalidParameter, Mismatch, UnknownName

Array: TypeAlias = npt.NDArray[Any]
_ROWS = 1024  # rows per block: the block and the activation's scratch space stay in the processor's cache


def _relu(x: Array) -> Array:
    return np.maximum(x, 0, out=x)


def _leaky_relu(x: Array) -> Array:
    return np.maximum(x, 0.01 * x, out=x)


def _gelu(x: Array) -> Array:
    x *= ndtr(x)
    return x


def _hardswish(x: Array) -> Array:
    gate = np.clip(x + 3, 0, 6)
    gate /= 6
    x *= gate
    return x


def _tanh(x: Array) -> Array:
    return np.tanh(x, out=x)


def _sigmoid(x: Array) -> Array:
    expit(x, out=x)
    return x


def _elu(x: Array) -> Array:
    below = np.expm1(np.minimum(x, 0))
    return np.add(_relu(x), below, out=x)


def _softplus(x: Array) -> Array:
    tail = np.log1p(np.exp(-np.abs(x)))
    return np.add(_relu(x), tail, out=x)


def _identity(x: Array) -> Array:
    return x


Activation: TypeAlias = Literal[
    "relu", "leaky_relu", "gelu", "hardswish", "tanh", "sigmoid", "elu", "softplus", "identity"
]
# Each function with the class of `torch.nn` that gives the same values by default.
_KINDS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "relu": (_relu, "ReLU"),
    "leaky_relu": (_leaky_relu, "LeakyReLU"),
    "gelu": (_gelu, "GELU"),
    "hardswish": (_hardswish, "Hardswish"),
    "tanh": (_tanh, "Tanh"),
    "sigmoid": (_sigmoid, "Sigmoid"),
    "elu": (_elu, "ELU"),
    "softplus": (_softplus, "Softplus"),
    "identity": (_identity, "Identity"),
}
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({name: kind[0] for name, kind in _KINDS.items()})
"""The eight of APFL and the identity. Each **overwrites** its floating-point argument and returns it."""

TORCH_ACTIVATIONS: Mapping[str, str] = MappingProxyType({name: kind[1] for name, kind in _KINDS.items()})
"""The classes of `torch.nn` that give the same values by default."""


@dataclass(frozen=True)
class RandomFeatures:
    """The map x ↦ activation(x R); R: (dim_in, dim_out) is normal with standard deviation `scale`, from `seed`."""

    dim_in: int
    dim_out: int
    activation: str = "relu"
    seed: int = 0
    scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("dim_in", "dim_out", "seed"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int | np.integer):
                raise InvalidParameter(f"{name} of a projection must be a whole number, got {value!r}")
        if self.dim_in < 1 or self.dim_out < 1:
            raise InvalidParameter(f"a projection from {self.dim_in} to {self.dim_out} features: both must be positive")
        if self.activation not in ACTIVATIONS:
            raise UnknownName("activation", self.activation, ACTIVATIONS)
        if self.seed < 0:
            raise InvalidParameter(f"seed {self.seed} is negative: give a whole number from 0 on")
        if self.scale is not None and not 0 < self.scale < 1e300:
            raise InvalidParameter(f"scale {self.scale} must be positive and finite")

    @property
    def fingerprint(self) -> str:
        """The suffix that the map adds to the fingerprint of its input features."""
        scale = "" if self.scale is None else f", scale {self.scale!r}"
        return f" → {self.activation}({self.dim_in} → {self.dim_out}, seed {self.seed}{scale})"

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """R: (dim_in, dim_out)."""
        scale = self.dim_in**-0.5 if self.scale is None else self.scale
        return _projection(self.dim_in, self.dim_out, self.seed, scale)

    def largest_squares(self, gram: Array, n: int, noise: Array) -> Array:
        """Return the largest sum of squares of each feature, (dim_out,), over n samples with this Gram matrix.

        |σ(u)| ≤ σ(0) + |u| for every activation, and Σ (xᵢᵀr)² is rᵀXᵀXr. `noise` (dim_in,) bounds the rounding errors
        of the roots of the diagonal elements.
        """
        projection = self.matrix
        lengths = np.sqrt(np.maximum((projection * (gram @ projection)).sum(axis=0), 0))
        lengths += noise @ np.abs(projection)
        at_zero = float(ACTIVATIONS[self.activation](np.zeros(1))[0])
        return np.asarray((at_zero * np.sqrt(n) + lengths) ** 2)

    def __call__(self, x: Array) -> Array:
        """Return the features (n, dim_out) of x: (n, dim_in); float32 stays, other types become float64."""
        out = np.empty((len(x), self.dim_out), dtype=_dtype(x))
        for start, block in self.blocks(x):
            out[start : start + len(block)] = block
        return out

    def blocks(self, x: Array, rows: int = _ROWS) -> Iterator[tuple[int, Array]]:
        """Yield (first row, features of up to `rows` rows): for sums that never hold all features at once.

        The block is overwritten by the next one: use it or copy it.
        """
        if x.ndim != 2 or x.shape[1] != self.dim_in:
            raise Mismatch(f"this projection takes (n, {self.dim_in}) features, got shape {x.shape}")
        dtype = _dtype(x)
        projection = self.matrix.astype(dtype, copy=False)
        activate = ACTIVATIONS[self.activation]
        space = np.empty((min(rows, len(x)), self.dim_out), dtype=dtype)
        for start in range(0, len(x), rows):
            part = x[start : start + rows]
            yield start, activate(np.matmul(part, projection, out=space[: len(part)]))


# Every client of a run asks for the same two maps.
@lru_cache(maxsize=4)
def _projection(dim_in: int, dim_out: int, seed: int, scale: float) -> npt.NDArray[np.float64]:
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    projection = rng.standard_normal((dim_in, dim_out))
    projection *= scale
    projection.flags.writeable = False
    return projection


def _dtype(x: Array) -> npt.DTypeLike:
    return np.float32 if x.dtype == np.float32 else np.float64
