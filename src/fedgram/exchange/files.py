"""`.fgm` files: one payload with a header that says whose it is, of which study, and who signed it.

An `.fgm` file is a safetensors file, which anyone with that library can open: the header stands in `__metadata__`, the
arrays follow. `docs/format.md` describes it byte by byte. Three rules tie it together, each about the safetensors
header with some fields left empty:

- `digest` is the SHA-256 of the header without time, software, signer and signature, and of all arrays,
- `signature` is Ed25519's, of the header without `signature` and `sha256`, with a prefix that names the kind of file,
- `sha256` is that of the header without itself, so that no bit of an unsigned file can change unnoticed either.

>>> from fedgram import Moments
>>> moments = Moments.of([[1.0], [2.0]], ["ill", "well"], classes=["ill", "well"], columns=["age"])
>>> data = encode("summary", moments, study="0f3a", party="north", samples=2, columns=("age",))
>>> read(data).payload.n, read(data).header.party, read(data).signer
(2, 'north', None)
>>> read(data.replace(b"north", b"south"))
Traceback (most recent call last):
fedgram.core.errors.RefusedMessage: bytes refused: its header was damaged or changed on the way; send it again
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeVar

from fedgram.core import wire
from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidData, Mismatch, RefusedMessage
from fedgram.core.files import replace_file, writing
from fedgram.core.hashing import hash_bytes
from fedgram.core.wire import container
from fedgram.core.wire.container import DTYPES, MOST_HEADER, AnyArray, Shapes
from fedgram.core.wire.tree import to_tree
from fedgram.exchange.header import CIRCUMSTANCES, SCHEMA, Header, now
from fedgram.exchange.keys import PrivateKey, PublicKey
from fedgram.moments.moments import Moments

T = TypeVar("T")
MOST_BYTES = 1 << 33  # of a file: moments of some 45,000 columns
BEGINNING = b'{"__metadata__":{"fgm":"'  # of the JSON header, after its length


@dataclass(frozen=True, eq=False)
class File:
    """An `.fgm` file that has passed every check but that of its signer, which `verify` makes."""

    header: Header
    payload: Any
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
    study: str,
    party: str,
    samples: int = 0,
    columns: Columns = (),
    key: PrivateKey | None = None,
    created: str | None = None,
) -> bytes:
    """Return a payload as the bytes of a file of this kind, signed if there is a key.

    `study` is the study's fingerprint. `created` is now unless it is given; the same content and time give the same
    bytes on every machine.
    """
    arrays: dict[str, AnyArray] = {}
    tree = container.as_text(to_tree(payload, "", arrays))
    shapes, contents = container.shapes_of(arrays), [array.data for array in arrays.values() if array.size]
    signer = "" if key is None else key.public.text
    header = Header(kind=kind, study=study, party=party, samples=samples, columns=columns, created=created or now())
    header = replace(header, software=software(), signer=signer)
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


def read(source: bytes | str | os.PathLike[str], *, name: str | None = None, checked: bool = False) -> File:
    """Return the file of these bytes, or at this path, with every check that what a stranger sends gets.

    Its signature is not looked at: `File.verify` needs to know whose it should be. `name` is what errors call the
    file. `checked` says that the payload has passed before, so that only the digests are compared.
    """
    name = name or ("bytes" if isinstance(source, bytes) else os.fspath(source))
    try:
        data = source if isinstance(source, bytes) else _load(Path(source))
        metadata, shapes = _parse(data)
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
    payload = wire.decode(data, sender=None if checked else name, sealed=False)
    _check_claims(header, payload, name)
    return File(header, payload, len(data), name, _signed(header, tree, shapes), data)


def is_exchanged(path: str | os.PathLike[str]) -> bool:
    """Say whether a file begins like an `.fgm` file, whatever it is called."""
    try:
        with open(path, "rb") as file:
            return file.read(8 + len(BEGINNING))[8:] == BEGINNING
    except OSError:
        return False


def _load(path: Path) -> bytes:
    """Return a file's content; one whose header promises another length is not read any further."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise RefusedMessage(f"{size} bytes are more than the {MOST_BYTES} that a file may have")
            start = file.read(8 + len(BEGINNING))
            _check_beginning(start)
            head = start + _exactly(file, _header_length(start) - len(BEGINNING))
            if (end := _end(_entries(head))) != size - len(head):
                raise RefusedMessage(f"{size} bytes, its header accounts for {len(head) + end}: it is not whole")
            return head + _exactly(file, end)
    except OSError as error:
        raise InvalidData(f"cannot read it: {error.strerror or error}") from error


def _exactly(file: IO[bytes], count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise RefusedMessage(f"it ends {count - len(found)} bytes too early: it is not whole")
    return found


def _check_beginning(data: bytes) -> None:
    if data[8 : 8 + len(BEGINNING)] != BEGINNING:
        raise RefusedMessage("it is not a file that fedgram exchanges")


def _header_length(data: bytes) -> int:
    length = int.from_bytes(data[:8], "little")
    if not len(BEGINNING) < length <= MOST_HEADER:
        raise RefusedMessage(f"a header of {length} bytes, which no file has")
    return length


def _entries(data: bytes) -> dict[str, Any]:
    """Return the safetensors header of these bytes."""
    length = _header_length(data)
    header = data[8 : 8 + length]
    container.check_header(header, length)
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict) or not isinstance(entries.get("__metadata__"), dict):
        raise RefusedMessage("its header is damaged, or the file is not whole")
    return entries


def _parse(data: bytes) -> tuple[dict[str, Any], Shapes]:
    """Return a file's metadata and what it says of its arrays; a file of a newer version is refused by name."""
    _check_beginning(data)
    entries = _entries(data)
    metadata = entries.pop("__metadata__")
    schema = metadata.get("fgm")
    if schema != str(SCHEMA):
        raise RefusedMessage(
            f"it is of schema {str(schema)[:40]!r}, and this version of fedgram reads schema {SCHEMA}: update fedgram"
        )
    for name in ("sha256", "fedgram"):
        if not isinstance(metadata.get(name), str):
            raise RefusedMessage(f"its header lacks {name!r}: it is damaged")
    return metadata, tuple((name, *_shape(name, entry)) for name, entry in entries.items())


def _shape(name: str, entry: Any) -> tuple[Any, tuple[int, ...]]:
    known = isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and entry["dtype"] in DTYPES
    shape = entry.get("shape") if known else None
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= MOST_BYTES for size in shape):
        raise RefusedMessage(f"its array {name[:60]!r} is of no kind and shape that is ever sent")
    return DTYPES[entry["dtype"]], tuple(shape)


def _end(entries: dict[str, Any]) -> int:
    """Return where the last array ends, as a header says."""
    ends = [0]
    for name, entry in entries.items():
        if name != "__metadata__":
            offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
            if not isinstance(offsets, list) or len(offsets) != 2 or type(offsets[1]) is not int:
                raise RefusedMessage(f"its array {name[:60]!r} has no place in the file")
            ends.append(offsets[1])
    return max(ends)


def _head(header: Header, tree: str, shapes: Shapes, seal: str) -> bytes:
    return container.layout({**header.texts(), "sha256": seal, "fedgram": tree}, shapes)


def _digest(header: Header, tree: str, shapes: Shapes, contents: Iterable[Any]) -> str:
    return hash_bytes((_head(header.blank(*CIRCUMSTANCES), tree, shapes, ""), *contents))


def _signed(header: Header, tree: str, shapes: Shapes) -> bytes:
    return _head(header.blank("signature"), tree, shapes, "")


def _seal(header: Header, tree: str, shapes: Shapes) -> str:
    return hash_bytes([_head(header, tree, shapes, "")])


def _check_claims(header: Header, payload: Any, name: str) -> None:
    """Refuse a header that says something else of the moments than they do themselves."""
    if isinstance(payload, Moments) and (header.samples, header.columns) != (payload.n, payload.kind.columns):
        raise RefusedMessage(
            f"{name} refused: its header has {header.samples} samples of {len(header.columns)} columns, its moments "
            f"have {payload.n} of {len(payload.kind.columns)}"
        )


def software() -> str:
    """Return the name and version of what writes files here."""
    from fedgram import __version__  # the package itself, which is ready by now

    return f"fedgram {__version__}"
