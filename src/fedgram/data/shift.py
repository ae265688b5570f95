"""Feature shift: each client's images are changed in a way of its own, the same for all of them.

Clients with the same labels then have different features, as hospitals with scanners of different makers have. The
change follows from the seed and the client's name, so it is the same whichever other clients take part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.hashing import hash_array, hash_text
from fedgram.core.randomness import generator
from fedgram.data.dataset import Dataset

Images = npt.NDArray[np.uint8]


class Change(Protocol):
    """A change of one client's images, described completely by its `repr`."""

    @classmethod
    def draw(cls, strength: float, rng: np.random.Generator) -> Self:
        """Draw a client's change; a larger strength makes clients differ more."""

    def __call__(self, images: Images) -> Images:
        """Return images (n, h, w) or (n, h, w, 3) as the client sees them."""


@dataclass(frozen=True)
class Camera:
    """A camera with its own exposure, tone curve, colour cast and sharpness.

    `exposure` and `cast` multiply the light, all of it and by channel; `gamma` is the power of the tone curve;
    `contrast` multiplies the distance from middle grey; `blur` is a standard deviation in 1/32 of the image's height.
    """

    exposure: float
    gamma: float
    contrast: float
    cast: tuple[float, ...]
    blur: float

    @classmethod
    def draw(cls, strength: float, rng: np.random.Generator) -> Self:
        """Draw factors between 2^-strength and 2^strength, and a blur of up to strength/2."""
        exposure, gamma, contrast, *cast = (2 ** (strength * rng.uniform(-1, 1, 6))).tolist()
        return cls(exposure, gamma, contrast, tuple(cast), strength * rng.uniform(0, 0.5))

    def __call__(self, images: Images) -> Images:
        """Return the photographs that this camera takes."""
        from scipy.ndimage import gaussian_filter  # imported where it is used: few runs have a shift

        channels = images if images.ndim == 4 else images[..., None]
        casts = self.cast if channels.shape[3] == 3 else (1.0,)
        seen = np.stack([self._curve(cast)[channels[..., c]] for c, cast in enumerate(casts)], axis=-1)
        deviation = self.blur * images.shape[1] / 32
        blurred = gaussian_filter(seen, deviation, axes=(1, 2), mode="nearest")
        return np.rint(blurred).astype(np.uint8).reshape(images.shape)

    def _curve(self, cast: float) -> npt.NDArray[np.float32]:
        """Return the new value, not yet rounded, of each of the 256 values of a channel."""
        light = np.clip(np.arange(256) / 255 * self.exposure * cast, 0, 1) ** self.gamma
        return np.asarray(255 * np.clip(0.5 + self.contrast * (light - 0.5), 0, 1), dtype=np.float32)


@dataclass(frozen=True)
class Rotation:
    """A camera that hangs askew; what comes in at the corners is mirrored from inside."""

    degrees: float

    @classmethod
    def draw(cls, strength: float, rng: np.random.Generator) -> Self:
        """Draw an angle between -strength and strength, in degrees."""
        return cls(strength * rng.uniform(-1, 1))

    def __call__(self, images: Images) -> Images:
        """Return the images, turned."""
        from scipy.ndimage import rotate

        turned: Images = rotate(images, self.degrees, axes=(2, 1), reshape=False, order=1, mode="reflect")
        return turned


CHANGES: dict[str, type[Change]] = {"camera": Camera, "rotation": Rotation}
_ARGUMENTS = {"camera": "a strength, as in camera:1", "rotation": "the largest angle in degrees, as in rotation:45"}


def read_shift(how: str) -> tuple[type[Change], float]:
    """Return the kind of change and its strength.

    >>> read_shift("rotation:45")
    (<class 'fedgram.data.shift.Rotation'>, 45.0)
    """
    kind, _, text = how.partition(":")
    if kind not in CHANGES:
        raise UnknownName("shift", kind, CHANGES)
    try:
        strength = float(text)
    except ValueError:
        strength = -inf
    if not 0 < strength < inf:
        raise InvalidParameter(f"shift {kind!r} takes {_ARGUMENTS[kind]}, a number > 0; got {text!r}")
    return CHANGES[kind], strength


def shifted(data: Dataset, parts: Sequence[Any], names: Sequence[str], how: str, *, seed: int = 0) -> Dataset:
    """Return the data set with each client's images as that client sees them; labels and order stay.

    `parts` are the clients' samples as a partition gives them, `names` the clients'. Images are changed where they
    are sliced, so nothing is held in memory, and features that are in the cache cost no change at all.
    """
    kind, strength = read_shift(how)
    if getattr(data.x, "dtype", None) != np.uint8 or data.x.ndim not in (3, 4):
        raise InvalidParameter(f"shift {how!r} is for images, and {data.name} holds none: leave the shift out")
    if data.x_test is not None:
        raise InvalidParameter(
            f"shift {how!r}: {data.name} has a test set that belongs to no single client: let clients hold back"
        )
    changes = [kind.draw(strength, generator(seed, "shift", name)) for name in names]
    owner = np.full(len(data), -1)
    for k, part in enumerate(parts):
        owner[part] = k
    # The fingerprint covers each image's change: two shifts share features only if all changed images are equal.
    content = hash_text(f"{changes} {hash_array(owner)}")
    return replace(data, x=Shifted(data.x, owner, changes), fingerprint=f"{data.fingerprint}/{how}/{content}")


class Shifted:
    """Images that look like an array (n, h, w) or (n, h, w, 3) of uint8 and are changed where they are sliced.

    `owner` (n,) is the place of each image's change in `changes`; images with -1 stay as they are.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, images: Any, owner: npt.NDArray[np.int64], changes: Sequence[Change]) -> None:
        self._images, self._owner, self._changes = images, owner, changes
        self.shape, self.ndim = images.shape, images.ndim

    def __len__(self) -> int:
        return len(self._owner)

    def __getitem__(self, index: Any) -> Images:
        images = np.array(self._images[index])
        owner = self._owner[index]
        for k in np.unique(owner[owner >= 0]).tolist():
            images[owner == k] = self._changes[k](images[owner == k])
        return images
