"""How a store begins: what its first file settles, its key, and the folders in which none may begin."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedgram.core.errors import FedgramError, InvalidData, StoreError
from fedgram.core.files import writing
from fedgram.exchange import files
from fedgram.exchange.combined import sum_of
from fedgram.exchange.keys import PrivateKey
from fedgram.exchange.objects import sync
from fedgram.moments.kind import Kind
from fedgram.studies.study import Study

if TYPE_CHECKING:
    from fedgram.exchange.store import Source


def settled_by(sources: Iterable["Source"]) -> tuple[Study | None, Kind | None]:
    """Return the study of the first summary, or where it names none, the kind of its moments."""
    why = "begin with a summary that has it in it, or give --study"
    for source in sources:
        try:
            file = files.read(source).of_kind("summary", "combined")
        except FedgramError as error:
            why = f"{error}; give --study"
            continue
        if file.study is not None:
            return file.study, None
        if not file.header.study:
            return None, sum_of(file).kind
    raise InvalidData(f"a new store must know its study: {why}")


def prepare(contributions: Path, index: Path, key: Path, given: PrivateKey | None = None) -> None:
    """Write the coordinator's key for a new store, the given one or a fresh one.

    Refused where another store has lost its index, or files are.
    """
    found = [contributions.name] if contributions.is_dir() and any(contributions.iterdir()) else []
    if key.exists() and not index.exists():
        found.append(key.name)
    if found:
        raise StoreError(
            f"{index.parent} has {' and '.join(found)} but no index, so no new store is made there: restore "
            f"{index.name} from a copy, or use another folder"
        )
    with writing(index, StoreError):
        index.touch()  # before the key, so that a crash never leaves a key without an index
    _make_key(key, given)


def _make_key(path: Path, given: PrivateKey | None) -> None:
    """Write the store's key, whole or not at all; a usable one that a crash has left is kept."""
    with suppress(FedgramError):
        left = PrivateKey.load(path)
        if given is None or left.public == given.public:
            return
    made = path.with_name(f".{path.name}.new")
    with writing(path, StoreError):
        made.unlink(missing_ok=True)
        (given or PrivateKey.new()).save(made)
        sync(made)
        os.replace(made, path)
