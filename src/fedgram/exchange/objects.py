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

ENDING = ".fgm"
KIND = "total"  # what a signature of the total is good for
_OURS = re.compile(r"[0-9a-f]{64}\.fgm")
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
        with writing(self.folder, StoreError, remedy=REMEDY):
            private_folder(self.folder)
        path = self.path(digest)
        with writing(path, StoreError, remedy=REMEDY), open(path, "wb", opener=private) as file:
            _write(file.fileno(), data)
        if settle:
            self.settle()

    def settle(self) -> None:
        """Have the names of all files on the disk."""
        if self.folder.exists():
            with writing(self.folder, StoreError, remedy=REMEDY):
                sync(self.folder)

    def read(self, digest: str) -> File:
        """Return a file that was checked when it came; that it is the same file is checked again."""
        path = self.path(digest)
        try:
            found = files.read(path, checked=True)
        except FedgramError as error:
            raise StoreError(f"the store's file of contribution {digest[:16]} is lost or damaged: {error}") from error
        if found.digest != digest:
            raise StoreError(f"{path} has the content of another file, {found.digest[:16]}: put the right one there")
        return found

    def sweep(self, kept: Collection[str]) -> None:
        """Remove all files but these; what does not have a digest as its name is not ours, and stays."""
        wanted = {self.path(digest).name for digest in kept}
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            for entry in found:
                ours = _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                if ours and entry.name not in wanted:
                    os.unlink(entry.path)


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
