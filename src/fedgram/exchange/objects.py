"""The files of a store, each named by its digest, and the running total. What is written here is on the disk at once.

An object counts only once the index names it, so one that was cut short by a crash is no harm: it is written again, or
swept away.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedgram.core import wire
from fedgram.core.errors import FedgramError, StoreError
from fedgram.core.files import PRIVATE, private, private_folder, read_regular, replacing, writing
from fedgram.core.wire import container
from fedgram.core.wire.container import MOST_BYTES
from fedgram.exchange import files
from fedgram.exchange.files import File
from fedgram.exchange.keys import PrivateKey, PublicKey
from fedgram.exchange.sums import Sum

ENDING, STAGED = ".fgm", ".new"
KIND = "total"  # what a signature of the total is good for
_OURS = re.compile(r"([0-9a-f]{64})(\.fgm|\.new)")
REMEDY = "make room or see to the rights, and try again: what has been accepted is kept"


class Objects:
    """A folder of files that are named by their digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Return where the file with this digest is."""
        return self.folder / f"{digest}{ENDING}"

    def add(self, digest: str, data: bytes, *, settle: bool = True) -> None:
        """Write a file; its name is on the disk, too, unless that is left to `settle` for several at once."""
        self._add(self.path(digest), data)
        if settle:
            self.settle()

    def _add(self, path: Path, data: bytes) -> None:
        with writing(path, StoreError, remedy=REMEDY):
            private_folder(self.folder)
            with open(path, "wb", opener=private) as file:
                _write(file.fileno(), data)

    def staged(self, digest: str) -> Path:
        """Return where a file is until the ledger has it."""
        return self.folder / f"{digest}{STAGED}"

    def stage(self, digest: str, data: bytes) -> None:
        """Write a file that counts once the ledger has it and `keep` has given it its name.

        So a file with its name that the ledger does not have shows that an entry was taken away.
        """
        self._add(self.staged(digest), data)
        self.settle()

    def keep(self, digest: str) -> None:
        """Give a staged file its name."""
        with writing(self.folder, StoreError, remedy=REMEDY):
            os.replace(self.staged(digest), self.path(digest))
            sync(self.folder)

    def tidy(self, kept: Collection[str]) -> None:
        """Keep these of the files that a killed process has left staged, and remove the others."""
        for digest in self._digests(STAGED):
            if digest in kept:
                self.keep(digest)
            else:
                self.staged(digest).unlink()

    def digests(self) -> list[str]:
        """Return the digests that the files here are named by."""
        return sorted(self._digests(ENDING))

    def _digests(self, ending: str) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            names = [_OURS.fullmatch(each.name) for each in found if each.is_file(follow_symlinks=False)]
            return [name[1] for name in names if name and name[2] == ending]
        return []

    def settle(self) -> None:
        """Have the names of all files on the disk."""
        if self.folder.exists():
            with writing(self.folder, StoreError, remedy=REMEDY):
                sync(self.folder)

    def read(self, digest: str) -> File:
        """Return a file that was checked when it came; that it is the same file is checked again."""
        path = self.path(digest)
        if not path.exists() and self.staged(digest).exists():  # the ledger has it, and a kill came before its name
            path = self.staged(digest)
        try:
            found = files.read(path, checked=True)
        except FedgramError as error:
            raise StoreError(f"the store's file of contribution {digest[:16]} is lost or damaged: {error}") from error
        if found.digest != digest:
            raise StoreError(f"{path} has the content of another file, {found.digest[:16]}: put the right one there")
        return found

    def sweep(self, kept: Collection[str]) -> None:
        """Remove all files but these; what does not have a digest as its name is not ours, and stays."""
        for digest in set(self.digests()).difference(kept):
            self.path(digest).unlink()


@dataclass(frozen=True)
class Saved:
    """A total, and the ledger's entry up to which it goes."""

    number: int
    head: str
    total: Sum

    @property
    def signed(self) -> bytes:
        """What the store's key signs, so that nobody else can put another total in its place."""
        return f"{self.number} {self.head} {self.total.digest}".encode()


def save_total(path: Path, saved: Saved, key: PrivateKey | None) -> None:
    """Write a total, signed, in the place of the last one; without a key it is made anew when it is needed."""
    signature = "" if key is None else key.sign(KIND, saved.signed).hex()
    data = wire.encode({"number": saved.number, "head": saved.head, "total": saved.total, "signature": signature})
    with writing(path, StoreError, remedy=REMEDY):
        with replacing(path, mode=PRIVATE) as file:
            _write(file.fileno(), data)
        sync(path.parent)


def load_total(path: Path, key: str) -> Saved | None:
    """Return the total that was saved; None if there is none, it is damaged, or `key` did not sign it.

    Then it is made anew.
    """
    found = _found_total(path)
    return found[0] if found is not None and _is_signed(*found, key) else None


def is_forged(path: Path, key: str) -> bool:
    """Whether there is a whole total that something else than `key` signed."""
    found = _found_total(path)
    return found is not None and found[1] != "" and not _is_signed(*found, key)


def said_by_total(path: Path, key: str) -> Saved | None:
    """Return the total that was saved, also without a signature, as by a store that has lost its key."""
    found = _found_total(path)
    return None if found is None or is_forged(path, key) else found[0]


def _found_total(path: Path) -> tuple[Saved, str] | None:
    try:
        data = read_regular(path, most=MOST_BYTES)
        container.check_digest(data)
        found = wire.decode(data)
        saved, signature = Saved(found["number"], found["head"], found["total"]), str(found.get("signature", ""))
    except (OSError, FedgramError, KeyError, TypeError, AttributeError):
        return None
    return (saved, signature) if isinstance(saved.total, Sum) and isinstance(saved.number, int) else None


def _is_signed(saved: Saved, signature: str, key: str) -> bool:
    try:
        PublicKey(key).verify(KIND, saved.signed, bytes.fromhex(signature))
    except (FedgramError, ValueError):
        return False
    return True


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)


def sync(path: Path) -> None:
    """Have a file's content, or a folder's new names, on the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
