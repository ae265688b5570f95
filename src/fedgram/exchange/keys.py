"""Ed25519 keys: who signed a file. A party's private key never leaves it; its public key is one line of text.

>>> key = PrivateKey.new()
>>> signature = key.sign("summary", b"what was sent")
>>> key.public.verify("summary", b"what was sent", signature)
>>> key.public.verify("answer", b"what was sent", signature)
Traceback (most recent call last):
fedgram.core.errors.RefusedMessage: the signature does not fit: it was made with another key, or for something else
>>> PublicKey(key.public.text) == key.public
True
"""

import base64
import os
import stat
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from fedgram.core.errors import Doubtful, InvalidData, RefusedMessage
from fedgram.core.extras import require
from fedgram.core.files import new_file, open_regular, writing
from fedgram.core.hashing import hash_bytes

SCHEMA = 1
_RAW, _CHECK = 32, 3  # bytes of a public key, and of the checksum behind it
_GROUP = 8  # letters that are read aloud in one breath
_MOST_FILE = 1 << 14


@dataclass(frozen=True)
class PublicKey:
    """Says whether a file was signed with the private key that belongs to it.

    Its text is 56 letters and digits in seven groups; the last ones are a checksum, so that a typing error
    is noticed. Upper case and blanks between the groups are understood.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse a text that is no key, and take others to the one form that they have in files."""
        found = "".join(self.text.replace("-", " ").split()).lower()
        try:
            raw = base64.b32decode(found.upper())
        except ValueError:
            raw = b""
        if len(raw) != _RAW + _CHECK or raw[_RAW:] != _checksum(raw[:_RAW]):
            raise InvalidData(
                f"{self.text[:80]!r} is not a public key, or was mistyped: it is one line of 56 letters and "
                "digits, as in the .pub file that `fedgram keys new` wrote"
            )
        object.__setattr__(self, "text", "-".join(found[at : at + _GROUP] for at in range(0, len(found), _GROUP)))

    @classmethod
    def of_bytes(cls, raw: bytes) -> Self:
        """Return the key of these 32 bytes."""
        return cls(base64.b32encode(raw + _checksum(raw)).decode())

    @property
    def raw(self) -> bytes:
        """The key's 32 bytes."""
        return base64.b32decode(self.text.replace("-", "").upper())[:_RAW]

    def verify(self, kind: str, data: bytes, signature: bytes) -> None:
        """Refuse a signature that this key's owner did not make of this data, as a file of this kind."""
        try:
            _ed25519().Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, _signed(kind, data))
        except (_exceptions().InvalidSignature, ValueError):
            raise RefusedMessage(
                "the signature does not fit: it was made with another key, or for something else"
            ) from None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PrivateKey:
    """Signs files. Whoever has it can speak in its owner's name, so it is kept in a file that only the owner reads."""

    _key: Any = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        """Return a fresh key; its randomness is the operating system's."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the key of a file that `save` wrote."""
        where = os.fspath(path)
        try:
            with open_regular(path) as file:
                content = file.read(_MOST_FILE)
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise InvalidData(f"cannot read the key {where}: {error.strerror}") from error
        serialization = _serialization()
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except (ValueError, TypeError, _exceptions().UnsupportedAlgorithm):
            key = None
        if not isinstance(key, _ed25519().Ed25519PrivateKey):
            raise InvalidData(f"{where} is not a private key that `fedgram keys new` wrote: give the .key file")
        if os.name == "posix" and stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
            warnings.warn(
                f"others on this machine may read the private key {where} (mode {stat.S_IMODE(mode):o}), and could "
                "sign with it: chmod 600",
                Doubtful,
                stacklevel=2,
            )
        return cls(key)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner may read; an existing file is never overwritten."""
        serialization = _serialization()
        content = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            with writing(Path(path)):
                new_file(Path(path), content, mode=0o600)
        except InvalidData as error:
            if isinstance(error.__cause__, FileExistsError):
                raise InvalidData(
                    f"{os.fspath(path)} exists, and a key is never overwritten: what it signed could not be told apart "
                    "any more; give another name"
                ) from error
            raise

    @property
    def public(self) -> PublicKey:
        """The public key, for others to know this one's signatures by."""
        return PublicKey.of_bytes(self._key.public_key().public_bytes_raw())

    def sign(self, kind: str, data: bytes) -> bytes:
        """Return the signature (64 bytes) of data as a file of this kind; it fits no other kind."""
        signature: bytes = self._key.sign(_signed(kind, data))
        return signature


def _signed(kind: str, data: bytes) -> bytes:
    """Return what is really signed: a signature of one kind of file must never serve for another."""
    if not kind.isidentifier():
        raise InvalidData(f"a kind of file is one word, got {kind!r}")
    return f"fedgram exchange {SCHEMA} {kind}\n".encode() + data


def _checksum(raw: bytes) -> bytes:
    return bytes.fromhex(hash_bytes([b"fedgram public key\n", raw]))[:_CHECK]


@cache
def _ed25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.ed25519", "exchange", "signing files")


@cache
def _serialization() -> Any:
    return require("cryptography.hazmat.primitives.serialization", "exchange", "signing files")


@cache
def _exceptions() -> Any:
    return require("cryptography.exceptions", "exchange", "signing files")
