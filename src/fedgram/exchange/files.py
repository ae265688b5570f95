"""`.fgm` files: one payload with a header that says whose it is, of which study, and who signed it.

An `.fgm` file is a safetensors file, which anyone with that library can open: the header stands in `__metadata__`, the
arrays follow. `docs/format.md` describes it byte by byte. Three rules tie it together, each about the safetensors
header with some fields left empty:

- `digest` is the SHA-256 of the header without time, software, signer and signature, and of all arrays,
- `signature` is Ed25519's, of the header without `signature` and `sha256`, with a prefix that names the kind of file,
- `sha256` is that of the header without itself, so that no bit of an unsigned file can change unnoticed either.

>>> from fedgram import Moments
>>> moments = Moments.of([[1.0], [2.0]], ["ill", "well"], classes=["ill", "well"], columns=["age"])
>>> data = encode("summary", moments, study="", party="north", samples=2, columns=("age",))
>>> read(data).payload.n, read(data).header.party, read(data).signer
(2, 'north', None)
>>> read(data.replace(b"north", b"south"))
Traceback (most recent call last):
fedgram.core.errors.RefusedMessage: bytes refused: its header was damaged or changed on the way; send it again
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeAlias, TypeVar

from fedgram.core import wire
from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidData, Mismatch, RefusedMessage
from fedgram.core.files import replace_file, writing
from fedgram.core.hashing import hash_bytes
from fedgram.core.wire import container
from fedgram.core.wire.container import MOST_BYTES, AnyArray, Shapes
from fedgram.core.wire.tree import to_tree
from fedgram.exchange.header import CIRCUMSTANCES, Header, now
from fedgram.exchange.keys import PrivateKey, PublicKey
from fedgram.exchange.opening import load, parse
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.studies.identity import check_same, is_same
from fedgram.studies.model import StudyModel
from fedgram.studies.study import Study

T = TypeVar("T")
Source: TypeAlias = bytes | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class File:
    """An `.fgm` file that has passed every check but that of its signer, which `verify` makes."""

    header: Header
    payload: Any
    study: Study | None  # the whole study, where the file has it in it, beside its payload or as a part of that
    size: int  # bytes
    name: str  # what errors call it
    _signed: bytes = field(repr=False)
    data: bytes = field(repr=False)  # as it was read

    @property
    def digest(self) -> str:
        """Identifies the content, whenever it was written and whoever signed it."""
        return self.header.digest

    @property
    def signer(self) -> PublicKey | None:
        """The key that the file says it was signed with, None if it is not signed."""
        return PublicKey(self.header.signer) if self.header.signer else None

    def verify(self, expected: PublicKey | None = None) -> None:
        """Refuse a file that is not signed, or not by its signer; or, where one is given, not by the expected key."""
        signer = self.signer
        if signer is None:
            raise RefusedMessage(f"{self.name} is not signed: write it again with --key")
        if expected is not None and signer != expected:
            raise RefusedMessage(
                f"{self.name} is signed with the key {signer}, and {self.header.party!r} has the key {expected}: "
                "someone else wrote it, or the study lists another key"
            )
        try:
            signer.verify(self.header.kind, self._signed, bytes.fromhex(self.header.signature))
        except RefusedMessage as error:
            raise RefusedMessage(f"{self.name}: {error}") from None

    def check_study(self, agreed: Study | None, *, remedy: str) -> None:
        """Refuse a file of another study, None for none; the whole study is compared where the file has it."""
        check_same(self.name, agreed, self.header.study, self.study, remedy=remedy)

    def of_kind(self, *kinds: str) -> "File":
        """Return the file, if it is of one of these kinds."""
        if self.header.kind not in kinds:
            raise Mismatch(f"{self.name} is a {self.header.kind} file, and a {' or '.join(kinds)} file is wanted")
        return self

    def holding(self, kind: type[T]) -> T:
        """Return the payload, if it is of this type."""
        if not isinstance(self.payload, kind):
            raise Mismatch(f"{self.name} holds a {type(self.payload).__name__}, not a {kind.__name__}")
        return self.payload


def encode(
    kind: str,
    payload: Any,
    *,
    study: Study | str,
    party: str,
    samples: int = 0,
    columns: Columns = (),
    key: PrivateKey | None = None,
    created: str | None = None,
) -> bytes:
    """Return a payload as the bytes of a file of this kind, signed if there is a key.

    `study` is the study, which is then part of the file, or only its fingerprint. `created` is now unless it is given;
    the same content and time give the same bytes on every machine.
    """
    arrays: dict[str, AnyArray] = {}
    whole = {"study": study} if isinstance(study, Study) else {}
    tree = container.as_text(to_tree({"payload": payload, **whole}, "", arrays))
    shapes, contents = container.shapes_of(arrays), [array.data for array in arrays.values() if array.size]
    signer = "" if key is None else key.public.text
    header = Header(
        kind=kind,
        study=study.fingerprint if isinstance(study, Study) else study,
        party=party,
        samples=samples,
        columns=columns,
        created=created or now(),
        software=software(),
        signer=signer,
    )
    header = replace(header, digest=_digest(header, tree, shapes, contents))
    if key is not None:
        header = replace(header, signature=key.sign(kind, _signed(header, tree, shapes)).hex())
    data = b"".join((_head(header, tree, shapes, _seal(header, tree, shapes)), *contents))
    if len(data) > MOST_BYTES:
        raise InvalidData(f"{len(data)} bytes are more than the {MOST_BYTES} that a file may have: use fewer columns")
    return data


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file's bytes, whole or not at all."""
    with writing(Path(path)):
        replace_file(Path(path), data)


def name_of(source: Source) -> str:
    """Return the display name of a source for messages."""
    return "bytes" if isinstance(source, bytes) else os.fspath(source)


def read(
    source: Source, *, name: str | None = None, checked: bool = False, most: Mapping[str, int] | None = None
) -> File:
    """Return the file of these bytes, or at this path, with every check that what a stranger sends gets.

    Its signature is not looked at: `File.verify` needs to know whose it should be. `name` is what errors call the
    file. `checked` says that the payload has passed before, so that only the digests are compared. `most` are
    the bytes that a file of each kind may have: a larger one is refused before more than its header is read.
    """
    name = name or name_of(source)
    try:
        data = source if isinstance(source, bytes) else load(Path(source), most or {})
        metadata, shapes = parse(data)
        header = Header.of_texts(metadata)
        tree = metadata["fedgram"]
        if metadata["sha256"] != _seal(header, tree, shapes):
            raise RefusedMessage("its header was damaged or changed on the way; send it again")
        if not data.startswith(head := _head(header, tree, shapes, metadata["sha256"])):
            raise RefusedMessage("its header is in a form that fedgram never writes")
        if header.digest != _digest(header, tree, shapes, [memoryview(data)[len(head) :]]):
            raise RefusedMessage("its digest does not fit its content: it was damaged or changed on the way")
    except (FedgramError, MemoryError) as error:
        raise RefusedMessage(f"{name} refused: {error}") from error
    _read_types()
    content = wire.decode(data, sender=None if checked else name, sealed=False)
    with refusing(name):
        payload, study = _taken_apart(header, content, name)
    return File(header, payload, study, len(data), name, _signed(header, tree, shapes), data)


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn any error raised while a file is checked into a refusal of that file, which cannot stop other files.

    An error that is not ours is a fault of fedgram that the file has found: it is refused all the same.
    """
    try:
        yield
    except FedgramError:
        raise
    except MemoryError as error:
        raise RefusedMessage(f"{name} refused: checking it needs more memory than there is") from error
    except Exception as error:
        raise RefusedMessage(
            f"{name} refused: checking it failed with {type(error).__name__} ({error!s:.200}), which is an error in "
            "fedgram: please report it, with the file if that may be shown"
        ) from error


def _head(header: Header, tree: str, shapes: Shapes, seal: str) -> bytes:
    return container.layout({**header.texts(), "sha256": seal, "fedgram": tree}, shapes)


def _digest(header: Header, tree: str, shapes: Shapes, contents: Iterable[Any]) -> str:
    return hash_bytes((_head(header.blank(*CIRCUMSTANCES), tree, shapes, ""), *contents))


def _signed(header: Header, tree: str, shapes: Shapes) -> bytes:
    return _head(header.blank("signature"), tree, shapes, "")


def _seal(header: Header, tree: str, shapes: Shapes) -> str:
    return hash_bytes([_head(header, tree, shapes, "")])


def _taken_apart(header: Header, content: Any, name: str) -> tuple[Any, Study | None]:
    """Return payload and study of a file, if its header says nothing else of them than they do themselves."""
    if not isinstance(content, dict) or not {"payload"} <= content.keys() <= {"payload", "study"}:
        raise RefusedMessage(f"{name} refused: a payload is wanted in it, and perhaps a study, and nothing else")
    payload, beside = content["payload"], content.get("study")
    inside = payload.recipe if isinstance(payload, Fit) else payload.study if isinstance(payload, StudyModel) else None
    studies: list[Any] = [each for each in (beside, inside) if each is not None]
    if not all(isinstance(each, Study) and is_same(each, header.study, studies[0]) for each in studies):
        raise RefusedMessage(f"{name} refused: the study in it is not the one that its header names")
    study: Study | None = studies[0] if studies else None
    if isinstance(payload, Moments):
        kind = payload.kind
        if (header.samples, header.columns) != (payload.n, kind.columns):
            raise RefusedMessage(
                f"{name} refused: its header has {header.samples} samples of {len(header.columns)} columns, its "
                f"moments have {payload.n} of {len(kind.columns)}"
            )
        # Whether the sums keep the study's rules is for a store to say, at its door.
        if study is not None and kind != study.kind:
            raise RefusedMessage(f"{name} refused: these are not moments of what study {study.name!r} sends")
    return payload, study


@cache
def _read_types() -> None:
    """Have all messages of this package registered, whichever of its modules the caller has imported."""
    package = import_module("fedgram.exchange")
    for module in iter_modules(package.__path__, "fedgram.exchange."):
        import_module(module.name)


def software() -> str:
    """Return the name and version of what writes files here."""
    from fedgram import __version__  # the package itself, which is ready by now

    return f"fedgram {__version__}"
