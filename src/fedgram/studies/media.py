"""Columns of images and texts: a backbone turns each cell into features, which are sent like numbers.

All parties must have the same backbone, to the last weight: the study's fingerprint covers its digest.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import FedgramError, InvalidData, Mismatch
from fedgram.core.hashing import hash_json
from fedgram.data.own.cells import Coded, Mask, is_missing
from fedgram.data.own.images import ImageFiles, examined
from fedgram.features.backbones.backbone import MOST_FEATURES, Backbone
from fedgram.features.backbones.named_backbones import LITE_SIZES
from fedgram.features.backbones.named_backbones import backbone as backbone_of
from fedgram.features.extraction import extract
from fedgram.studies.kinds import MayBeMissing, Missing, NotNumbers, Problem, gaps

if TYPE_CHECKING:
    from fedgram.features.backbones.onnxmodel import OnnxBackbone
    from fedgram.features.backbones.torchmodel import TorchBackbone

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Media(MayBeMissing, ABC):
    """A column whose cells a backbone turns into features, `scan.0`, `scan.1` and so on for a column `scan`.

    `digest` and `features` (how many) are looked up where they are not given, which needs the backbone's weights; a
    study that gives them can be read without these.
    """

    kind: ClassVar[str]
    numeric: ClassVar[bool] = False
    known: ClassVar[Sequence[str]]  # names of backbones

    backbone: str
    digest: str = ""
    features: int = 0
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        """Raise unless the backbone comes with fedgram or is a file with its digest: others must not be loaded."""
        if self.backbone.partition(":")[0] not in self.known and not self._is_file:
            raise InvalidData(
                f"backbone {self.backbone!r} is not for a column of kind {self.kind}: use {' or '.join(self.known)}"
            )
        if self._is_file and not (self.digest and self.features):
            raise InvalidData(
                f"backbone {self.backbone!r} is a file, so digest and features must say which: "
                f"fedgram study backbone {self.backbone} prints them"
            )
        if self.digest and not _DIGEST.fullmatch(self.digest):
            raise InvalidData(f"digest {self.digest!r} must be the 64 hexadecimal digits that identify a backbone")
        if not 0 <= self.features <= MOST_FEATURES:
            raise InvalidData(f"features = {self.features}: at most {MOST_FEATURES} are possible")

    @property
    def _is_file(self) -> bool:
        """Whether the backbone is a file that each party has beside its table."""
        return False

    @cached_property
    def settled(self) -> Self:
        """The column with digest and number of features, looked up where the study does not give them."""
        if self.digest and self.features:
            return self
        model = _opened(self.backbone)
        # The number of features is known only after a run of the network, so it is computed only if needed.
        return replace(self, digest=self.digest or model.fingerprint, features=self.features or int(model.dim))

    def values(self, name: str) -> tuple[str, ...]:
        """Return a name for each feature."""
        return tuple(f"{name}.{place}" for place in range(self.settled.features))

    def encode(
        self, name: str, cells: Coded, bad: NotNumbers | None, out: Array, folder: Path | None = None
    ) -> list[Problem]:
        """Write the features, 0 where nothing is there; `folder` is where the table is."""
        absent = cells.map(is_missing, bool)
        good, problems, samples, fingerprint = self._samples(name, cells, ~absent, folder)
        problems += gaps(name, self.missing, absent)
        out[:] = 0.0
        if self.filled:
            out[:, -1] = absent
        if good.any():
            features = extract(samples, self._model(name, folder), data_fingerprint=fingerprint, progress=False)
            out[good, : self.settled.features] = features
        return problems

    @abstractmethod
    def _samples(
        self, name: str, cells: Coded, there: Mask, folder: Path | None
    ) -> tuple[Mask, list[Problem], Any, str]:
        """Return a mask of usable cells, the problems of the others, and samples with their fingerprint."""

    def _model(self, name: str, folder: Path | None) -> Backbone:
        """Return the backbone, if it is the one that the parties have agreed on."""
        try:
            model = _opened(str((folder or Path()) / self.backbone) if self._is_file else self.backbone)
        except FedgramError as error:
            raise error.telling(f"column {name!r}: the backbone {self.backbone!r} cannot be loaded here") from None
        agreed = self.settled
        if model.fingerprint != agreed.digest or model.dim != agreed.features:
            raise Mismatch(
                f"column {name!r}: the backbone {self.backbone!r} has digest {model.fingerprint} and "
                f"{model.dim} features here, and the study has {agreed.digest} and {agreed.features}: get the same "
                "weights and version of fedgram as the other parties"
            ).telling()
        return model


@dataclass(frozen=True)
class Text(Media):
    """A text, such as a finding in words."""

    kind: ClassVar[str] = "text"
    known: ClassVar[Sequence[str]] = ("minilm",)

    def _samples(
        self, name: str, cells: Coded, there: Mask, folder: Path | None
    ) -> tuple[Mask, list[Problem], Any, str]:
        texts = np.array(cells.tolist(), dtype=object)[there]
        return there, [], texts, hash_json(texts.tolist())


@dataclass(frozen=True)
class Image(Media):
    """The path of an image file, relative to the table; a file outside the table's folder is refused."""

    kind: ClassVar[str] = "image"
    known: ClassVar[Sequence[str]] = (*LITE_SIZES, "FILE.onnx")

    @property
    def _is_file(self) -> bool:
        name = self.backbone.partition(":")[0]
        return name.endswith(".onnx") and not set("/\\").intersection(name)

    def _samples(
        self, name: str, cells: Coded, there: Mask, folder: Path | None
    ) -> tuple[Mask, list[Problem], Any, str]:
        home = (folder or Path()).resolve()
        paths = {row: _inside(home, cells[row]) for row in np.flatnonzero(there).tolist()}
        files = {row: path for row, path in paths.items() if path is not None and path.is_file()}
        keys = [path.relative_to(home).as_posix() for path in files.values()]
        facts = examined(home, list(files.values()), show=False, about=hash_json(keys))
        broken = {row: facts["bad"][key] for row, key in zip(files, keys, strict=True) if key in facts["bad"]}
        wrong: dict[str, dict[int, str]] = {
            "must name files in the table's own folder": {row: cells[row] for row in paths if paths[row] is None},
            "must name files that are there": {
                row: cells[row] for row in paths if paths[row] is not None and row not in files
            },
            "must name images that can be read": {row: f"{cells[row]}: {why}" for row, why in broken.items()},
        }
        problems = [
            Problem(np.isin(np.arange(len(cells)), list(found)), f"column {name!r} {rule}", found)
            for rule, found in wrong.items()
            if found
        ]
        good = [row for row in files if row not in broken]
        side = cast("OnnxBackbone | TorchBackbone", self._model(name, folder)).prepare.size
        images = ImageFiles([files[row] for row in good], (side, side), "RGB")
        return np.isin(np.arange(len(cells)), good), problems, images, hash_json([facts["digest"], side])


def identify(backbone: str) -> tuple[str, int]:
    """Return a backbone's digest and number of features, as a study states them."""
    model = _opened(backbone)
    return model.fingerprint, int(model.dim)


@lru_cache(maxsize=8)
def _opened(spec: str) -> Backbone:
    """Return a backbone; each is opened once, for any number of columns and blocks."""
    return backbone_of(spec)


def _inside(home: Path, cell: str) -> Path | None:
    """Return the file that a cell names, None if it is outside the folder, also by way of a link."""
    try:
        path = (home / cell).resolve()
    except (OSError, ValueError):  # no name that the system could have
        return None
    except RuntimeError:  # a ring of links, which no file is
        return home / cell
    return path if path.is_relative_to(home) else None
