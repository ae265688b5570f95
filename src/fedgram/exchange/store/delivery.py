"""Files that leave a store: each has its name outside if, and only if, the ledger has its entry.

A file is written beside its target, under a temporary name. Then the ledger gets the entry, and then the file gets its
name. A record in the index, signed by the store, says what is under way; the entry and the record that it was made are
one transaction. So after a kill the next change knows whether to finish the delivery or to undo it.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload
from uuid import uuid4

from fedgram.core.errors import FedgramError, InvalidParameter, StoreError
from fedgram.core.filesystem import check_regular, writing
from fedgram.exchange.format import fgm
from fedgram.exchange.store import objects
from fedgram.secure.signing_keys import PublicKey

if TYPE_CHECKING:
    from fedgram.exchange.store.study_store import Store

DELIVERY = "delivery"  # the setting of the index, and the kind under which it is signed


@dataclass(frozen=True)
class Delivery:
    """A file on its way out.

    Attributes
    ----------
    store
        Folder of the store. A copy of it elsewhere leaves the files of this delivery alone.
    target, made
        Absolute paths of the file and of its temporary name beside it.
    force
        Whether the file may take the place of another one.
    entered
        Whether the ledger has the entry.

    """

    store: str
    target: str
    made: str
    force: bool
    entered: bool = False


@overload
def target_of(out: str | os.PathLike[str], name: str) -> Path: ...
@overload
def target_of(out: str | os.PathLike[str] | None, name: str) -> Path | None: ...
def target_of(out: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Return the path to write to, which is `name` in a folder; raise if no file can be written there."""
    if out is None:
        return None
    path = Path(out)
    path = path / name if path.is_dir() else path
    with writing(path):
        folder = path.absolute().parent
        if not folder.is_dir():
            raise FileNotFoundError(2, f"{folder} is not a folder")
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, f"no permission to write to {folder}")
        with suppress(FileNotFoundError):
            check_regular(path)
    return path


def check_takes(path: Path, data: bytes, *, force: bool) -> None:
    """Raise if an earlier file holds something else than this exchanged file, unless `force` is set."""
    if path.exists() and not force and _digest(path) != fgm.read(data, checked=True).digest:
        raise InvalidParameter(
            f"{path} exists and holds something else: give another name with --out, or --force to write over it"
        )


def _digest(path: Path) -> str | None:
    try:
        return fgm.read(path, checked=True).digest
    except FedgramError:
        return None


def write_again(path: Path | None, data: bytes, *, force: bool) -> None:
    """Write a file whose entry the ledger has already."""
    if path is not None:
        check_takes(path, data, force=force)
        fgm.write(path, data)


@contextmanager
def delivering(store: "Store", path: Path | None, *, force: bool) -> Iterator[Callable[[bytes], None]]:
    """Yield a function to call, in the transaction that makes the ledger's entry, with the content of the file.

    Without a path there is no file, and the function does nothing.
    """
    if path is None:
        yield lambda data: None
        return
    target = path.absolute()
    made = target.with_name(f".{target.name}.{uuid4().hex}")
    begun = Delivery(str(store.path.resolve()), str(target), str(made), force)
    _record(store, begun)

    def stage(data: bytes) -> None:
        check_takes(path, data, force=force)
        with writing(path), open(made, "xb") as file:
            objects.write_whole(file.fileno(), data)
        _record(store, replace(begun, entered=True))

    try:
        yield stage
    finally:
        failed = recover(store)
    if failed:
        raise StoreError(failed)


def _record(store: "Store", delivery: Delivery) -> None:
    text = json.dumps(asdict(delivery))
    signature = store.key.sign(DELIVERY, text.encode()).hex()
    with store.index.changing():
        store.index.set(DELIVERY, f"{signature} {text}".encode())


def is_under_way(store: "Store") -> bool:
    """Return whether a delivery has neither been finished nor undone."""
    return bool(store.index.get(DELIVERY))


def recover(store: "Store") -> str:
    """Finish a delivery whose entry the ledger has, undo any other, and return what went wrong, "" for nothing.

    Only a record that this store has signed, in this folder, makes it touch files outside.
    """
    if not (found := store.index.get(DELIVERY)):
        return ""
    failed, delivery = "", _signed(store, found)
    if delivery is not None and delivery.store == str(store.path.resolve()):
        failed = _finished(delivery) if delivery.entered else ""
        with suppress(OSError):
            Path(delivery.made).unlink(missing_ok=True)
    with store.index.changing():
        store.index.set(DELIVERY, b"")
    return failed


def _finished(delivery: Delivery) -> str:
    target, made = Path(delivery.target), Path(delivery.made)
    try:
        if made.exists():  # otherwise a kill came after the file had got its name
            check_takes(target, made.read_bytes(), force=delivery.force)
            os.replace(made, target)
            objects.sync(target.parent)
    except (OSError, FedgramError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return (
            f"the ledger has the entry, and the file could not be written to {target}: {why}; give the command again, "
            "with another --out: the store has all that is in the file"
        )
    return ""


def _signed(store: "Store", record: bytes) -> Delivery | None:
    """Return the delivery of a record, None if this store has not signed it."""
    signature, _, text = record.partition(b" ")
    try:
        PublicKey(store.public_key).verify(DELIVERY, text, bytes.fromhex(signature.decode()))
        return Delivery(**json.loads(text))
    except (FedgramError, ValueError, TypeError):
        return None
