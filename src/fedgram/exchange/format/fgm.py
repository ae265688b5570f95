"""`.fgm` files: one payload with a header that names its party, study and signer.

An `.fgm` file is a safetensors file, which that library can open: the header stands in `__metadata__`, the
arrays follow. `docs/format.md` describes it byte by byte. Three rules tie it together, each about the safetensors
header with some fields left empty:

- `digest` is the SHA-256 of the header without time, software, signer and signature, and of all arrays,
- `signature` is Ed25519's, of the header without `signature` and `sha256`, with a prefix that names the kind of file,
- `sha256` is that of the header without itself, so that no bit of an unsigned file can change unnoticed either.

A sealed file (`sealing`) is such a file, encrypted for one receiver, and is opened while it is read.

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
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, BinaryIO, TypeAlias, TypeVar

from fedgram.core import container, wire
from fedgram.core.columns import Columns
from fedgram.core.container import BEGINNING, DTYPES, MOST_BYTES, MOST_HEADER, AnyArray, Shapes
from fedgram.core.errors import FedgramError, InvalidData, Mismatch, RefusedMessage
from fedgram.core.filesystem import open_regular, replace_file, writing
from fedgram.core.hashing import hash_bytes
from fedgram.core.wire import to_tree
from fedgram.exchange.format import sealing
from fedgram.exchange.format.header import CIRCUMSTANCES, SCHEMA, Header, now
from fedgram.exchange.format.signing_keys import PrivateKey, PublicKey
from fedgram.moments.feasibility import MOST_SAMPLES
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.studies.model import StudyModel
from fedgram.studies.study import Study, check_same, is_same

T = TypeVar("T")
Source: TypeAlias = bytes | str | os.PathLike[str]
MOST_FEATURES = 1 << 14  # random features a party makes at most: their moments fill a file of 1 GB
_BASE64 = re.compile(rb"[A-Za-z0-9+/\r\n]{16,32}={0,2}\s*")


def is_exchanged(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins like an `.fgm` file, plain or sealed; its name does not matter."""
    try:
        with open_regular(path) as file:
            start = file.read(8 + len(BEGINNING))
            return container.is_exchanged(start) or sealing.is_sealed(start)
    except OSError:
        return False


def sealed_to(path: str | os.PathLike[str]) -> PublicKey | None:
    """Return the receiver of a sealed file, None for any other file."""
    try:
        with open_regular(path) as file:
            start = file.read(len(sealing.START))
            file.seek(0)
            return sealing.receiver_of(file) if sealing.is_sealed(start) else None
    except OSError:
        return None
    except FedgramError as error:
        raise RefusedMessage(f"{os.fspath(path)} refused: {error}") from error


def load(path: Path, most: Mapping[str, int], key: PrivateKey | None) -> tuple[bytes, PublicKey | None]:
    """Return a file's content and, of a sealed file, the receiver, whose private key must be given."""
    try:
        with open_regular(path, most=MOST_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(len(sealing.START))
            file.seek(0)
            return _opened(file, size, most, key) if sealing.is_sealed(start) else (_content(file, size, most), None)
    except OSError as error:
        raise InvalidData(f"cannot read it: {error.strerror or error}") from error


def _opened(file: BinaryIO, size: int, most: Mapping[str, int], key: PrivateKey | None) -> tuple[bytes, PublicKey]:
    content = sealing.Opened(file, size, key)
    return _content(content, content.size, most, filled=sealing.PART - 1), content.receiver


def _content(file: BinaryIO | sealing.Opened, size: int, most: Mapping[str, int], *, filled: int = 0) -> bytes:
    """Return the file in these bytes, which end with at most `filled` zero bytes that do not belong to it.

    Raises before all of it is read if its header promises another length, or if it is larger than `most` allows for its
    kind.
    """
    start = file.read(8 + len(BEGINNING))
    _check_beginning(start)
    head = start + _exactly(file, _header_length(start) - len(BEGINNING))
    entries = _entries(head)
    kind, promised = str(entries["__metadata__"].get("kind")), len(head) + _end(entries)
    if kind in most and size - filled > most[kind]:
        raise RefusedMessage(f"expected at most {most[kind]:,} bytes of a {kind} in this study, got {size:,}")
    if not size - filled <= promised <= size:
        raise RefusedMessage(
            f"size: expected {promised} bytes by its header, got {size}; it is not whole, send it again"
        )
    file.seek(0)
    data = _exactly(file, promised)
    if any(file.read(filled)):
        raise RefusedMessage("it has other bytes behind its content than zeros; seal it again")
    return data


def _exactly(file: BinaryIO | sealing.Opened, count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise RefusedMessage(f"size: expected {count} bytes, got {len(found)}; it is not whole, send it again")
    return found


def _check_beginning(data: bytes) -> None:
    if not container.is_exchanged(data):
        raise RefusedMessage(f"it is not a file that fedgram exchanges{_instead(data)}")


def _instead(data: bytes) -> str:
    """Return the likely kind of a file that begins with these bytes, as the end of a message; "" if unknown."""
    if not data:
        return ": it is empty; send it again"
    if data.startswith((b"PK\x03\x04", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!")):
        return ": it is an archive (zip or the like); unpack it first"
    if _BASE64.fullmatch(data[:32]):
        return ": it looks like base64, as mail programs encode attachments; decode it first"
    return ""


def _header_length(data: bytes) -> int:
    length = int.from_bytes(data[:8], "little")
    if not len(BEGINNING) < length <= MOST_HEADER:
        raise RefusedMessage(
            f"header: expected {len(BEGINNING) + 1} to {MOST_HEADER} bytes, got {length}; send the file again"
        )
    return length


def _entries(data: bytes) -> dict[str, Any]:
    """Return the safetensors header of these bytes."""
    length = _header_length(data)
    header = data[8 : 8 + length]
    container.check_header(header, length)
    try:
        entries = container.parse(header)
    except ValueError as error:
        raise RefusedMessage(f"its header is damaged, or the file is not whole: {error}") from None
    if not isinstance(entries, dict) or not isinstance(entries.get("__metadata__"), dict):
        raise RefusedMessage("its header is damaged, or the file is not whole")
    return entries


def parse(data: bytes) -> tuple[dict[str, Any], Shapes]:
    """Return a file's metadata and the dtypes and shapes of its arrays; raise for a file of another schema."""
    _check_beginning(data)
    entries = _entries(data)
    metadata = entries.pop("__metadata__")
    schema = metadata.get("fgm")
    if schema != str(SCHEMA):
        raise RefusedMessage(f"schema: expected {SCHEMA}, got {str(schema)[:40]!r}; update fedgram")
    for name in ("sha256", "fedgram"):
        if not isinstance(metadata.get(name), str):
            raise RefusedMessage(
                f"header field {name!r}: expected a text, got none; the file is damaged, send it again"
            )
    return metadata, tuple((name, *_shape(name, entry)) for name, entry in entries.items())


def _shape(name: str, entry: Any) -> tuple[Any, tuple[int, ...]]:
    known = isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and entry["dtype"] in DTYPES
    shape = entry.get("shape") if known else None
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= MOST_BYTES for size in shape):
        raise RefusedMessage(
            f"array {name[:60]!r}: expected a dtype and shape that fedgram writes, got others; send the file again"
        )
    return DTYPES[entry["dtype"]], tuple(shape)


def _end(entries: dict[str, Any]) -> int:
    """Return the end of the last array according to a header."""
    ends = [0]
    for name, entry in entries.items():
        if name != "__metadata__":
            offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
            if not isinstance(offsets, list) or len(offsets) != 2 or type(offsets[1]) is not int:
                raise RefusedMessage(
                    f"array {name[:60]!r}: expected its place in the file, got none; send the file again"
                )
            ends.append(offsets[1])
    return max(ends)


@dataclass(frozen=True, eq=False)
class File:
    """An `.fgm` file that has passed every check except that of its signer, which `verify` makes.

    Attributes
    ----------
    header
        The file's kind, party, study and signer.
    payload
        The content.
    study
        The whole study, if the file holds it, beside its payload or in it.
    size
        Number of bytes.
    name
        Name of the file in errors.
    data
        The bytes of the file; those inside, if it was sealed.
    sealed_to
        The key that it was sealed to, None if it was not sealed.
    dropped
        The rows that a summary's party left out because they lack a value, by column.

    """

    header: Header
    payload: Any
    study: Study | None
    size: int  # bytes
    name: str
    _signed: bytes = field(repr=False)
    data: bytes = field(repr=False)
    sealed_to: PublicKey | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the content, independent of time and signer."""
        return self.header.digest

    @property
    def signer(self) -> PublicKey | None:
        """The signer's key according to the header, None if the file is not signed."""
        return PublicKey(self.header.signer) if self.header.signer else None

    def verify(self, expected: PublicKey | None = None) -> None:
        """Raise if the file is not signed by its signer or, if a key is given, not with the expected key."""
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
        """Raise if the file is of another study (None: of any study); compare the rules if the file holds its study."""
        check_same(f"{self.name} refused: it", agreed, self.header.study, self.study, remedy=remedy)

    def of_kind(self, *kinds: str) -> "File":
        """Return the file; raise if it is not of one of these kinds."""
        if self.header.kind not in kinds:
            raise Mismatch(f"{self.name}: expected a {' or '.join(kinds)} file, got a {self.header.kind} file")
        return self

    def holding(self, kind: type[T]) -> T:
        """Return the payload; raise if it is not of this type."""
        if not isinstance(self.payload, kind):
            raise Mismatch(f"{self.name}: expected a {kind.__name__} in it, got a {type(self.payload).__name__}")
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
    dropped: Mapping[str, int] | None = None,
) -> bytes:
    """Return the bytes of a file of this kind, signed if there is a key.

    The same content and time give the same bytes on every machine.

    Parameters
    ----------
    kind
        One of `header.KINDS`.
    payload
        The content: arrays, plain values or registered messages.
    study
        The study, which then becomes part of the file, or only its fingerprint.
    party
        Name of the party that the file comes from.
    samples, columns
        Those of the moments in the payload; 0 and () if it holds none.
    key
        The private key to sign with; None leaves the file unsigned.
    created
        Time in UTC, as `header.now` writes it; by default the present.
    dropped
        Of a summary, the rows that were left out because they lack a value, by column.

    """
    arrays: dict[str, AnyArray] = {}
    whole: dict[str, Any] = {"study": study} if isinstance(study, Study) else {}
    whole |= {"dropped": dict(dropped)} if dropped else {}
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
    data = b"".join((_head(header, tree, shapes, _header_hash(header, tree, shapes)), *contents))
    if len(data) > MOST_BYTES:
        raise InvalidData(f"size: expected at most {MOST_BYTES} bytes, got {len(data)}; use fewer columns")
    return data


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file's bytes, all of them or none."""
    with writing(Path(path)):
        replace_file(Path(path), data)


def name_of(source: Source) -> str:
    """Return the display name of a source for messages."""
    return "bytes" if isinstance(source, bytes) else os.fspath(source)


def read(
    source: Source,
    *,
    name: str | None = None,
    checked: bool = False,
    most: Mapping[str, int] | None = None,
    key: PrivateKey | None = None,
) -> File:
    """Return the file of these bytes, or at this path, after every check that untrusted content needs.

    The signature is left to `File.verify`, which needs to know the expected signer.

    Parameters
    ----------
    source
        Bytes or a path.
    name
        Name of the file in errors; by default its path.
    checked
        Whether the payload has passed the checks before, so that only digests are compared.
    most
        Largest number of bytes for each kind of file: a larger one raises before more than its header is read.
    key
        The private key that opens the file if it is sealed.

    """
    name = name or name_of(source)
    try:
        if not isinstance(source, bytes):
            data, receiver = load(Path(source), most or {}, key)
        elif sealing.is_sealed(source):
            data, receiver = _opened(BytesIO(source), len(source), most or {}, key)
        else:
            data, receiver = source, None
        metadata, shapes = parse(data)
        header = Header.of_texts(metadata)
        tree = metadata["fedgram"]
        if metadata["sha256"] != _header_hash(header, tree, shapes):
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
        dropped = _dropped(header, content.get("dropped"), study, name)
    return File(header, payload, study, len(data), name, _signed(header, tree, shapes), data, receiver, dropped)


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn any error raised while a file is checked into a refusal of that file, so that other files go on.

    An error that is not a `FedgramError` is a fault of fedgram that this file has found; it is refused all the same.
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


def _head(header: Header, tree: str, shapes: Shapes, sha256: str) -> bytes:
    return container.layout({**header.texts(), "sha256": sha256, "fedgram": tree}, shapes)


def _digest(header: Header, tree: str, shapes: Shapes, contents: Iterable[Any]) -> str:
    return hash_bytes((_head(header.blank(*CIRCUMSTANCES), tree, shapes, ""), *contents))


def _signed(header: Header, tree: str, shapes: Shapes) -> bytes:
    return _head(header.blank("signature"), tree, shapes, "")


def _header_hash(header: Header, tree: str, shapes: Shapes) -> str:
    return hash_bytes([_head(header, tree, shapes, "")])


def _taken_apart(header: Header, content: Any, name: str) -> tuple[Any, Study | None]:
    """Return payload and study of a file; raise if its header contradicts them."""
    if not isinstance(content, dict) or not {"payload"} <= content.keys() <= {"payload", "study", "dropped"}:
        raise RefusedMessage(f"{name} refused: expected a payload, perhaps with a study, got other content")
    payload, beside = content["payload"], content.get("study")
    inside = payload.study if isinstance(payload, Fit | StudyModel) else None
    studies: list[Any] = [each for each in (beside, inside) if each is not None]
    if not all(isinstance(each, Study) and is_same(each, header.study) and each == studies[0] for each in studies):
        raise RefusedMessage(f"{name} refused: the study in it is not the one that its header names")
    study: Study | None = studies[0] if studies else None
    if isinstance(payload, Moments):
        kind = payload.schema
        if (header.samples, header.columns) != (payload.n, kind.columns):
            raise RefusedMessage(
                f"{name} refused: its header has {header.samples} samples of {len(header.columns)} columns, its "
                f"moments have {payload.n} of {len(kind.columns)}"
            )
        # A store checks the study's rules when the file joins.
        if study is not None and kind != study.schema:
            raise RefusedMessage(
                f"{name} refused: expected moments of the columns of study {study.name!r}, got others; summarize anew"
            )
    return payload, study


def _dropped(header: Header, found: Any, study: Study | None, name: str) -> dict[str, int]:
    """Return the counts of rows without a value, by column; raise for others than a summary under its study has."""
    if found is None:
        return {}
    columns = study.dropping if study is not None and header.kind == "summary" else ()
    known = isinstance(found, dict) and found and set(found) <= set(columns)
    if not known or not all(type(count) is int and 0 < count <= MOST_SAMPLES for count in found.values()):
        raise RefusedMessage(
            f"{name} refused: dropped: expected counts of rows by columns with missing = 'drop' of its study, got "
            f"{str(found)[:60]}; summarize anew"
        )
    return dict(found)


@cache
def _read_types() -> None:
    """Register all messages of this package, whichever modules the caller has imported."""
    package = import_module("fedgram.exchange")
    for module in walk_packages(package.__path__, "fedgram.exchange."):
        import_module(module.name)


def software() -> str:
    """Return the name and version of the software that writes files here."""
    from fedgram import __version__  # here, because the package imports this module

    return f"fedgram {__version__}"
