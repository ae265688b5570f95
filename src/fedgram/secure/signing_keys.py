"""Keys that sign files and open sealed ones. A private key never leaves its owner; a public key is one line of text.

Each key is two: Ed25519 signs, X25519 opens what was sealed for it (`sealing`). One text names both, and every
signature covers that text, so neither half can be exchanged for another.

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
import re
import stat
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from fedgram.core.errors import Doubtful, InvalidData, RefusedMessage
from fedgram.core.extras import require
from fedgram.core.filesystem import new_file, open_regular, writing
from fedgram.core.hashing import hash_bytes

SCHEMA = 1
_HALF, _CHECK = 32, 6  # bytes of each half of a public key, and of the checksum behind both
_GROUP = 8  # letters of a group, for reading a key aloud
_MOST_FILE = 1 << 14
_BLOCK = re.compile(rb"-----BEGIN PRIVATE KEY-----[^-]*-----END PRIVATE KEY-----\s*")


@dataclass(frozen=True)
class PublicKey:
    """Public key: it verifies signatures of the private key that belongs to it, and seals files for its owner.

    Attributes
    ----------
    text
        112 letters and digits in fourteen groups. The last are a checksum, so that a typing error is noticed. Upper
        case and blanks between the groups are understood.

    """

    text: str

    def __post_init__(self) -> None:
        """Raise if the text is not a key; otherwise bring it to the form that files have."""
        found = "".join(self.text.replace("-", " ").split()).lower()
        try:
            raw = base64.b32decode(found.upper())
        except ValueError:
            raw = b""
        keys = raw[: 2 * _HALF]
        if len(raw) != 2 * _HALF + _CHECK or raw[2 * _HALF :] != _checksum(keys):
            raise InvalidData(
                f"{self.text[:80]!r} is not a public key, or was mistyped: it is one line of 112 letters and "
                "digits, as in the .pub file that `fedgram keys new` wrote"
            )
        object.__setattr__(self, "text", "-".join(found[at : at + _GROUP] for at in range(0, len(found), _GROUP)))

    @classmethod
    def of_bytes(cls, signing: bytes, opening: bytes) -> Self:
        """Return the key of these two halves, of 32 bytes each."""
        raw = signing + opening
        return cls(base64.b32encode(raw + _checksum(raw)).decode())

    @property
    def signing(self) -> bytes:
        """The 32 bytes of the half that verifies signatures, of Ed25519."""
        return self._raw[:_HALF]

    @property
    def opening(self) -> bytes:
        """The 32 bytes of the half for which files are sealed, of X25519."""
        return self._raw[_HALF : 2 * _HALF]

    @property
    def _raw(self) -> bytes:
        return base64.b32decode(self.text.replace("-", "").upper())

    def verify(self, kind: str, data: bytes, signature: bytes) -> None:
        """Raise if the signature was not made with this key, of this data, as a file of this kind."""
        try:
            _ed25519().Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, _signed(kind, self, data))
        except (_exceptions().InvalidSignature, ValueError):
            raise RefusedMessage(
                "the signature does not fit: it was made with another key, or for something else"
            ) from None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PrivateKey:
    """Private key, which signs files and opens sealed ones. Only its owner may read its file."""

    _signing: Any = field(repr=False)
    _opening: Any = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        """Return a fresh key; its randomness is the operating system's."""
        return cls(_ed25519().Ed25519PrivateKey.generate(), _x25519().X25519PrivateKey.generate())

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
        try:
            halves = [_serialization().load_pem_private_key(block, password=None) for block in _BLOCK.findall(content)]
        except (ValueError, TypeError, _exceptions().UnsupportedAlgorithm):
            halves = []
        kinds = (_ed25519().Ed25519PrivateKey, _x25519().X25519PrivateKey)
        if len(halves) != 2 or not all(map(isinstance, halves, kinds)) or _BLOCK.sub(b"", content):
            raise InvalidData(f"{where} is not a private key that `fedgram keys new` wrote: give the .key file")
        if os.name == "posix" and stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
            warnings.warn(
                f"others on this machine may read the private key {where} (mode {stat.S_IMODE(mode):o}), and could "
                "sign with it and open what is sealed for it: chmod 600",
                Doubtful,
                stacklevel=2,
            )
        return cls(*halves)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner may read; an existing file is never overwritten."""
        serialization = _serialization()
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        content = self._signing.private_bytes(*form) + self._opening.private_bytes(*form)
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
        """The public key that belongs to this key."""
        return PublicKey.of_bytes(*(half.public_key().public_bytes_raw() for half in (self._signing, self._opening)))

    def sign(self, kind: str, data: bytes) -> bytes:
        """Return the signature (64 bytes) of data as a file of this kind; it fits no other kind."""
        signature: bytes = self._signing.sign(_signed(kind, self.public, data))
        return signature

    def agreed(self, other: bytes) -> bytes:
        """Return the secret that this key shares with an X25519 public key; raise if that key allows none."""
        try:
            secret: bytes = self._opening.exchange(_x25519().X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise RefusedMessage(
                "expected a public key of X25519, got one that shares no secret with any private key: it was made up"
            ) from None
        return secret


def _signed(kind: str, signer: PublicKey, data: bytes) -> bytes:
    """Return the signed bytes, with the kind of file and both halves of the key: a signature serves for no others."""
    if not kind.isidentifier():
        raise InvalidData(f"kind: expected one word, got {kind!r}")
    return f"fedgram exchange {SCHEMA} {kind} {signer}\n".encode() + data


def _checksum(raw: bytes) -> bytes:
    return bytes.fromhex(hash_bytes([b"fedgram public key\n", raw]))[:_CHECK]


@cache
def _ed25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.ed25519", "exchange", "signing files")


@cache
def _x25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.x25519", "exchange", "sealing files")


@cache
def _serialization() -> Any:
    return require("cryptography.hazmat.primitives.serialization", "exchange", "signing files")


@cache
def _exceptions() -> Any:
    return require("cryptography.exceptions", "exchange", "signing files")
