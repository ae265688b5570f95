"""Files of a store, each named by its digest, and on the disk as soon as they are written.

An object counts only once the index names it. So an object that a crash has cut short does no harm: it is written
again or swept away.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fedgram.core.errors import FedgramError, StoreError
from fedgram.core.filesystem import private, private_folder, writing
from fedgram.exchange.format import fgm
from fedgram.exchange.format.fgm import File

ENDING, STAGED = ".fgm", ".new"
_OURS = re.compile(r"([0-9a-f]{64})(\.fgm|\.new)")
REMEDY = "make room or correct the permissions, and try again: what has been accepted is kept"


class Objects:
    """A folder of files that are named by their digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Return the path of the file with this digest."""
        return self.folder / f"{digest}{ENDING}"

    def add(self, digest: str, data: bytes, *, settle: bool = True) -> None:
        """Write a file and sync its name, unless that is left to `settle` for several files at once."""
        self._add(self.path(digest), data)
        if settle:
            self.settle()

    def _add(self, path: Path, data: bytes) -> None:
        with writing(path, StoreError, remedy=REMEDY):
            private_folder(self.folder)
            with open(path, "wb", opener=private) as file:
                write_whole(file.fileno(), data)

    def staged(self, digest: str) -> Path:
        """Return the path of a file until the ledger has it."""
        return self.folder / f"{digest}{STAGED}"

    def stage(self, digest: str, data: bytes) -> None:
        """Write a file that counts once the ledger has it and `keep` has given it its final name.

        A file with its final name that the ledger does not have therefore shows that an entry was taken away.
        """
        self._add(self.staged(digest), data)
        self.settle()

    def keep(self, digest: str) -> None:
        """Give a staged file its final name."""
        with writing(self.folder, StoreError, remedy=REMEDY):
            os.replace(self.staged(digest), self.path(digest))
            sync(self.folder)

    def tidy(self, kept: Collection[str]) -> None:
        """Keep these of the staged files that a killed process has left, and remove the others."""
        for digest in self._digests(STAGED):
            if digest in kept:
                self.keep(digest)
            else:
                self.staged(digest).unlink()

    def digests(self) -> list[str]:
        """Return the digests of the files in the folder."""
        return sorted(self._digests(ENDING))

    def _digests(self, ending: str) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            names = [_OURS.fullmatch(each.name) for each in found if each.is_file(follow_symlinks=False)]
            return [name[1] for name in names if name and name[2] == ending]
        return []

    def settle(self) -> None:
        """Sync the names of all files to the disk."""
        if self.folder.exists():
            with writing(self.folder, StoreError, remedy=REMEDY):
                sync(self.folder)

    def read(self, digest: str) -> File:
        """Return a file that was checked when it joined; raise if it is not the same file any more."""
        path = self.path(digest)
        if not path.exists() and self.staged(digest).exists():  # the ledger has it; a kill came before its final name
            path = self.staged(digest)
        try:
            found = fgm.read(path, checked=True)
        except FedgramError as error:
            raise StoreError(f"the store's file of contribution {digest[:16]} is lost or damaged: {error}") from error
        if found.digest != digest:
            raise StoreError(f"{path} has the content of another file, {found.digest[:16]}: put the right one there")
        return found

    def sweep(self, kept: Collection[str]) -> None:
        """Remove all files except these; files whose names are not digests are not ours, and stay."""
        for digest in set(self.digests()).difference(kept):
            self.path(digest).unlink()


def write_whole(file: int, data: bytes) -> None:
    """Write all bytes to a file descriptor and sync them to the disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's new names, to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
