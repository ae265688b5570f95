"""How a store begins: what its first accepted file settles, its key, and the folders in which none may begin."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes

from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidData, Mismatch, StoreError
from fedgram.core.files import PRIVATE, writing
from fedgram.core.hashing import readable
from fedgram.exchange import files
from fedgram.exchange.admission import Terms, check_alone
from fedgram.exchange.combined import part_of
from fedgram.exchange.index import Index
from fedgram.exchange.keys import PrivateKey
from fedgram.exchange.objects import sync
from fedgram.exchange.sums import Sum, about, kind_of
from fedgram.studies.study import Study

STUDY, KIND, SECRET = "study", "kind", "secret"  # settings of the index


class NothingAccepted(InvalidData):
    """None of the files that came can begin a store; `why` says of each why it is refused, by its place."""

    def __init__(self, why: list[str]) -> None:
        super().__init__("a new store has the study of the first file that it accepts: give one, or --study")
        self.why = why


def settled_by(sources: Iterable[files.Source], now: str) -> Terms:
    """Return the terms of the first file that a store of these terms accepts: what is refused settles nothing."""
    why = []
    for source in sources:
        try:
            with files.refusing(files.name_of(source)):
                terms = _settled_by(files.read(source).of_kind("summary", "combined"), now)
        except FedgramError as error:
            why.append(str(error))
        else:
            return terms
    raise NothingAccepted(why)


def _settled_by(file: files.File, now: str) -> Terms:
    if file.study is None and file.header.study:
        raise Mismatch(
            f"{file.name} refused: it names study {readable(file.header.study)}, and does not have it in it: a new "
            "store must know its study, give --study"
        )
    terms = Terms(None, part_of(file).kind) if file.study is None else Terms.of(file.study)
    Sum.empty(terms.kind).plus(check_alone(file, terms, now=now))
    return terms


def settings_of(terms: Terms) -> dict[str, bytes]:
    """Return what the index of a new store is told: the study, or the kind of the moments, and a secret for marks."""
    kept = {KIND: json.dumps(about(terms.kind)).encode()} if terms.study is None else {STUDY: wire.encode(terms.study)}
    return kept | {SECRET: token_bytes(32)}


def terms_in(index: Index) -> Terms:
    """Return the terms that an index was told."""
    study, kind = index.get(STUDY), index.get(KIND)
    try:
        if study is None and kind is not None:
            return Terms(None, kind_of(json.loads(kind)))
        found = wire.decode(study or b"", sender=str(index.path))
        if isinstance(found, Study):
            return Terms.of(found)
    except (FedgramError, ValueError, KeyError, TypeError, RecursionError):
        pass
    what = STUDY if study is not None or kind is None else KIND
    raise StoreError(f"the index {index.path} has lost its setting {what!r}: restore the store from a copy")


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
        index.touch(mode=PRIVATE)  # before the key, so that a crash never leaves a key without an index
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
