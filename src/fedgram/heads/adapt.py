"""Personal models in closed form: the global solution, corrected by a client's own samples. Arrays only.

The global solution is G = S⁻¹B with S = LLᵀ. A client with samples X (n, d) and targets Y (n, c) that weighs its
own samples by α more gets

    P = (S + αXᵀX)⁻¹(B + αXᵀY) = G + α L⁻ᵀ V (I + αVᵀV)⁻¹ (Y - XG),    V = L⁻¹Xᵀ (d, n),

which is FedHiP's (14), and with S = I a ridge towards G with ridge 1/α. All below is in terms of V and the
residual Y - XG. Both may be in blocks of samples; what is made of them is then gone through block by block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, Blocks, Stream, as_blocks, each, lazily, together
from fedgram.moments.blas import solve_positive_definite
from fedgram.moments.regression import STEPS
from fedgram.moments.solve import EPS, SMALLEST, as_good, rounding_level

Rows: TypeAlias = npt.NDArray[Any] | Blocks[npt.NDArray[Any]]
# Up to this n/d the n × n system is the quicker one, as measured at d = 1,280.
DUAL_UP_TO = 0.5
# How many left-out residuals are computed at once, for several α: enough for BLAS, and few megabytes.
AT_ONCE = 1 << 20


def correction(v: Rows, residual: Rows, alpha: float) -> Array:
    """Return α V (I + αVᵀV)⁻¹ residual, (d, c), from the smaller of the n × n and the equal d × d system.

    >>> rng = np.random.default_rng(0)
    >>> v, r = rng.normal(size=(4, 3)), rng.normal(size=(3, 2))
    >>> want = 2 * v @ np.linalg.solve(np.eye(3) + 2 * v.T @ v, r)
    >>> bool(np.allclose(correction(v, r, 2.0), want))
    True
    """
    whole = together(as_blocks(v))
    if isinstance(whole, np.ndarray) and whole.shape[1] <= DUAL_UP_TO * len(whole):
        gram = whole.T @ whole
        if _is_sound(gram, alpha, *whole.shape):
            [rest] = as_blocks(residual)
            return np.asarray(alpha * (whole @ _solve_shifted(gram, rest, alpha)))
    else:
        gram, n = _gram(v)
        if _is_sound(gram, alpha, len(gram), n):
            return _solve_shifted(gram, alpha * _products(v, residual), alpha)
    return Spectrum.of(v).project(residual).correction(alpha)


def _is_sound(gram: Array, alpha: float, d: int, n: int) -> bool:
    """Return whether the I in I + α gram is more than rounding errors.

    If not, the weight of a direction without samples would come from rounding errors, and could be anything.
    """
    return bool(alpha * gram.trace() * rounding_level(d, n) < 1)


def _solve_shifted(gram: Array, rhs: Array, alpha: float) -> Array:
    """Return (I + α gram)⁻¹ rhs; the matrix is written over."""
    gram *= alpha
    gram[np.diag_indices(len(gram))] += 1.0
    return solve_positive_definite(gram, rhs)


def _gram(v: Rows) -> tuple[Array, int]:
    """Return VVᵀ (d, d) and n."""
    total, n = None, 0
    for block in as_blocks(v):
        total, n = block @ block.T if total is None else total + block @ block.T, n + block.shape[1]
    assert total is not None
    return total, n


def _products(v: Rows, residual: Rows) -> Array:
    """Return V · residual, (d, c)."""
    pairs = zip(as_blocks(v), as_blocks(residual), strict=True)
    return np.asarray(reduce(np.add, (block @ rest for block, rest in pairs)))


@dataclass(frozen=True)
class Spectrum:
    """V = directions · diag(√values) · Uᵀ, and `loadings` = U · diag(√values): all α at the price of one
    decomposition.
    """

    directions: Array  # (d, r)
    values: Array  # (r,)
    loadings: Blocks[Array]  # (n, r)
    n: int

    @classmethod
    def of(cls, v: Rows) -> "Spectrum":
        """Decompose V (d, n) by the smaller of VᵀV and VVᵀ; in blocks of samples, by VVᵀ."""
        whole = together(as_blocks(v))
        if isinstance(whole, np.ndarray) and whole.shape[1] <= len(whole):
            d, n = whole.shape
            values, vectors = _eigenpairs(whole.T @ whole, d, n)
            return cls(whole @ (vectors / np.sqrt(values)), values, [vectors * np.sqrt(values)], n)
        gram, n = _gram(v)
        values, vectors = _eigenpairs(gram, len(gram), n)
        return cls(vectors, values, lazily(lambda block: block.T @ vectors, as_blocks(v)), n)

    def project(self, residual: Rows) -> "Projected":
        """Return the residuals (n, c) with their products with the loadings: one pass for any number of α."""
        return Projected(self, as_blocks(residual), _products(lazily(np.transpose, self.loadings), residual))

    def predict_left_out(
        self, residual: Array, alphas: npt.ArrayLike, influence: "Influence | None" = None
    ) -> Iterator[Array]:
        """Yield for each α the correction's prediction (n, c) for each sample by the others alone.

        Where the samples have had an influence on G, leaving one out changes the others' residuals, too.
        """
        [loadings] = self.loadings
        projected, squares = loadings.T @ residual, loadings**2
        moves = None if influence is None else loadings * (influence.matrix @ loadings)
        for alpha in np.asarray(alphas, dtype=np.float64):
            if len(residual) == 1:
                yield np.zeros_like(residual)  # there are no others; rounding would look like a prediction
                continue
            weights = alpha / (1 + alpha * self.values)
            leverage = (squares @ weights)[:, None]
            others = loadings @ (weights[:, None] * projected) - leverage * residual
            if influence is not None and moves is not None:
                others += ((moves @ weights)[:, None] - leverage * influence.own) * influence.left_out(residual)
            yield others / np.maximum(1 - leverage, EPS)  # a sample that alone decides its own prediction has 1


@dataclass(frozen=True)
class Projected:
    """Residuals (n, c), and loadingsᵀ · residuals (r, c)."""

    spectrum: Spectrum
    residual: Blocks[Array]
    loaded: Array

    def correction(self, alpha: float) -> Array:
        """Return the correction (d, c), as the function `correction` does."""
        weights = alpha / (1 + alpha * self.spectrum.values)
        return np.asarray(self.spectrum.directions @ (weights[:, None] * self.loaded))

    def leave_one_out(self, alphas: npt.ArrayLike, *, member: bool, centred: bool = False) -> Array:
        """Return the mean squared residual for each α, sample by sample left out everywhere."""
        candidates = np.atleast_1d(np.asarray(alphas, dtype=np.float64))
        squares, count = np.zeros(len(candidates)), 0
        for loadings, rest in zip(self.spectrum.loadings, self.residual, strict=True):
            at_once = max(1, AT_ONCE // max(1, rest.size))
            for start in range(0, len(candidates), at_once):
                some = slice(start, start + at_once)
                errors = self._left_out(loadings, rest, candidates[some], member=member, centred=centred)
                squares[some] += np.einsum("nac,nac->a", errors, errors)
            count += rest.size
        return squares / count

    def left_out(self, alpha: float, *, member: bool, centred: bool = False) -> Array | Stream[Array]:
        """Return the residuals (n, c), sample by sample left out everywhere: exact, without refitting.

        `member` says whether the samples are also among those that made S and B, which they are then left out of, too;
        `centred` whether V and residual are about these samples' own mean, which is then computed without each sample.
        """
        alphas = np.array([alpha], dtype=np.float64)

        def left_out(loadings: Array, rest: Array) -> Array:
            return self._left_out(loadings, rest, alphas, member=member, centred=centred)[:, 0]

        return together(each(left_out, self.spectrum.loadings, self.residual))

    def _left_out(self, loadings: Array, rest: Array, alphas: Array, *, member: bool, centred: bool) -> Array:
        """Return the left-out residuals of a block for each α, (n, alphas, c); one product serves all α."""
        shrink = 1 / (1 + np.outer(self.spectrum.values, alphas))  # (r, alphas)
        weights = (shrink * alphas)[:, :, None] * self.loaded[:, None, :]
        moved = loadings @ weights.reshape(len(weights), len(alphas) * rest.shape[1])
        left = rest[:, None, :] - moved.reshape(len(rest), len(alphas), rest.shape[1])
        leverage = (alphas + member) * (loadings**2 @ shrink) + centred / self.spectrum.n
        left /= (1 - leverage)[:, :, None]
        return np.asarray(left)


def _eigenpairs(gram: Array, d: int, n: int) -> tuple[Array, Array]:
    """Return the eigenvalues that are more than noise, with their vectors."""
    # NumPy's driver (`evd`) is the quicker one here, its vectors are the more orthogonal, and it needs no lock.
    values, vectors = np.linalg.eigh(gram)
    kept = values > rounding_level(d, n) * max(float(values[-1]), 0.0)
    return values[kept], vectors[:, kept]


class Chosen(NamedTuple):
    """A value chosen for the least mean squared error on left-out samples, and that error.

    `log_likelihood` is that of these samples' labels at the model's own temperature; None for numeric outcomes.
    """

    value: float
    error: float
    log_likelihood: float | None


class OwnRidge(NamedTuple):
    """A regression of targets (n, c) on a client's own rows, with the ridge of least squared leave-one-out error.

    `left_out` (n, c) are its predictions for each sample by the others alone, in blocks where the rows are.
    """

    ridge: float
    error: float
    left_out: Array | Stream[Array]
    weights: Array  # (d, c)
    intercept: Array  # (c,), zero without an intercept


@dataclass(frozen=True)
class Design:
    """A client's rows (n, d), less their mean if there is an intercept, decomposed once for any targets.

    >>> x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1.0], [3.0], [5.0], [7.0]])
    >>> own = Design.of(x, intercept=True).regress(y)
    >>> own.left_out.round(2).ravel(), own.weights.round(2), own.intercept.round(2)
    (array([1., 3., 5., 7.]), array([[2.]]), array([1.]))
    """

    center: Array
    spectrum: Spectrum
    intercept: bool

    @classmethod
    def of(cls, rows: Rows, *, intercept: bool) -> "Design | None":
        """Return the decomposed rows; None if no sample helps to predict another: then any ridge is as good."""
        center = mean_of(rows) * intercept
        centred = lazily(lambda block: np.ascontiguousarray((block - center).T), as_blocks(rows))
        spectrum = Spectrum.of(centred)
        return cls(center, spectrum, intercept) if spectrum.n > 1 and spectrum.values.sum() > SMALLEST else None

    def regress(self, targets: Rows) -> OwnRidge:
        """Regress targets (n, c) on the rows."""
        mean = mean_of(targets) * self.intercept
        projected = self.spectrum.project(lazily(lambda block: block - mean, as_blocks(targets)))
        ridges, how = STEPS * self.spectrum.values.mean(), {"member": False, "centred": self.intercept}
        errors = projected.leave_one_out(1 / ridges, **how)
        best = int(as_good(errors)[-1])  # the largest ridge
        alpha = float(1 / ridges[best])
        left_out = projected.left_out(alpha, **how)
        predicted = together(each(np.subtract, as_blocks(targets), as_blocks(left_out)))
        weights = projected.correction(alpha)
        return OwnRidge(float(ridges[best]), float(errors[best]), predicted, weights, mean - self.center @ weights)


def own_ridge(rows: Rows, targets: Rows, *, intercept: bool) -> OwnRidge | None:
    """Return a client's own regression; None if no sample helps to predict another."""
    design = Design.of(rows, intercept=intercept)
    return None if design is None else design.regress(targets)


def mean_of(rows: Rows) -> Array:
    """Return the mean (d,) of rows (n, d), in float64."""
    whole = together(as_blocks(rows))
    if isinstance(whole, np.ndarray):
        return np.asarray(whole.mean(axis=0, dtype=np.float64))
    sums, counts = zip(*((block.sum(axis=0), len(block)) for block in whole), strict=True)
    return np.asarray(reduce(np.add, sums) / sum(counts))


@dataclass(frozen=True)
class Influence:
    """The influence of samples on G: without sample i, the residual of j grows by `matrix`_ji times sample i's own."""

    matrix: Array  # X S⁻¹ Xᵀ, (n, n)

    @classmethod
    def of(cls, v: Array) -> "Influence":
        """Return the influence of samples with V = L⁻¹Xᵀ (d, n)."""
        return cls(v.T @ v)

    @property
    def own(self) -> Array:
        """Each sample's influence on itself, (n, 1)."""
        return np.diag(self.matrix)[:, None]

    def left_out(self, residual: Array) -> Array:
        """Return each sample's residual under the G that has not seen it, (n, c)."""
        return np.asarray(residual / (1 - self.own))
