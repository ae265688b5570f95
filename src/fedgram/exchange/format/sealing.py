"""Sealed files: an `.fgm` file that is encrypted for one receiver, so that mail servers and sticks cannot read it.

A sealed file begins with one line in plain text, `fedgram sealed 1 KEY`, which names the receiver's public key, and 32
bytes of a key pair of X25519 that the sender makes for this file alone. HKDF-SHA256 derives the file's key from the
secret that both pairs share; its `info` are line and bytes, so no part of this beginning can be changed. Then comes the
file, filled up with zero bytes to whole parts of 64 KiB, each encrypted with ChaCha20-Poly1305. The nonce of a part is
its number and whether it is the last: a part that is missing, moved or changed does not open.

Sealing hides the content, and does not prove who sent it. The signature inside does, which covers party and study.

>>> key = PrivateKey.new()
>>> sealed = seal(b"content", key.public)
>>> len(sealed), sealed.startswith(START + b"1 " + key.public.text.encode())
(65727, True)
>>> Opened(BytesIO(sealed), len(sealed), key).read(7)
b'content'
"""

import re
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any, BinaryIO, Literal

from fedgram.core.container import MOST_BYTES
from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.core.extras import require
from fedgram.exchange.format.signing_keys import PrivateKey, PublicKey

START = b"fedgram sealed "
VERSION = 1
PART = 1 << 16  # bytes of content in a part
_TAG = 16  # bytes that ChaCha20-Poly1305 adds to a part
_MOST_LINE = 200
_LINE = re.compile(rb"fedgram sealed ([0-9]+) (.*)\n")
_REMEDY = "have it sent again"


def seal(data: bytes, receiver: PublicKey) -> bytes:
    """Return a file's bytes, encrypted for a receiver; each call gives other bytes, of the same length.

    Parameters
    ----------
    data
        The bytes of the file.
    receiver
        The public key whose private key opens it.

    """
    fresh = PrivateKey.new()
    start = START + f"{VERSION} {receiver}\n".encode() + fresh.public.opening
    cipher, sealed = _cipher(fresh.agreed(receiver.opening), start), BytesIO()
    sealed.write(start)
    for at in range(0, len(data), PART):
        part = data[at : at + PART].ljust(PART, b"\0")
        sealed.write(cipher.encrypt(_nonce(at // PART, last=at + PART >= len(data)), part, None))
    if sealed.tell() > MOST_BYTES:
        raise InvalidData(f"size: expected at most {MOST_BYTES} bytes, got {sealed.tell()}; use fewer columns")
    return sealed.getvalue()


def is_sealed(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is sealed."""
    return start.startswith(START)


def receiver_of(file: BinaryIO) -> PublicKey:
    """Return the key that a file is sealed to, from its first line, and leave the file behind that line."""
    line = file.readline(_MOST_LINE)
    found = _LINE.fullmatch(line)
    if found is None:
        raise RefusedMessage(f"its first line: expected `fedgram sealed {VERSION} KEY`, got {line[:80]!r}; {_REMEDY}")
    version, text = found[1].decode(), found[2].decode(errors="replace")
    if version != str(VERSION):
        raise RefusedMessage(f"version of the seal: expected {VERSION}, got {version[:20]}; update fedgram")
    receiver = PublicKey(text)
    if receiver.text != text:
        raise RefusedMessage(f"its first line: expected a key in lower case with hyphens, got {text!r}; {_REMEDY}")
    return receiver


class Opened:
    """Content of a sealed file, decrypted part by part while it is read.

    Parameters
    ----------
    file
        The sealed file, at its beginning.
    size
        Number of its bytes.
    key
        The private key to open it with; without it the file is refused, with its receiver.

    Attributes
    ----------
    receiver
        The public key that the file is sealed to.
    size
        Number of bytes of the content, with the zero bytes at its end.

    """

    def __init__(self, file: BinaryIO, size: int, key: PrivateKey | None) -> None:
        self.receiver = receiver_of(file)
        if key is None or key.public != self.receiver:
            other = "" if key is None else f", not the key {key.public}"
            raise RefusedMessage(
                f"it is sealed to {self.receiver}{other}: give the private key that belongs to it to fedgram inspect "
                "with --key, or join it to the store that has it"
            )
        line = f"{VERSION} {self.receiver}\n".encode()
        fresh = file.read(32)
        self._start = len(START + line) + 32
        self._count, odd = divmod(size - self._start, PART + _TAG)
        if self._count < 1 or odd:
            raise RefusedMessage(
                f"size: expected {self._start:,} bytes and whole parts of {PART + _TAG:,}, got {size:,}; it is not "
                f"whole, {_REMEDY}"
            )
        self.size = self._count * PART
        self._file, self._cipher = file, _cipher(key.agreed(fresh), START + line + fresh)
        self.seek(0)

    def seek(self, at: Literal[0]) -> None:
        """Go back to the beginning of the content."""
        self._file.seek(self._start + at)
        self._parts, self._left = self._decrypted(), b""

    def read(self, count: int) -> bytes:
        """Return the next bytes of the content, fewer than `count` only at its end."""
        found = BytesIO()
        while (wanted := count - found.tell()) and (part := self._left or next(self._parts, b"")):
            found.write(part[:wanted])
            self._left = part[wanted:]
        return found.getvalue()

    def _decrypted(self) -> Iterator[bytes]:
        for number in range(self._count):
            part = self._file.read(PART + _TAG)
            try:
                content: bytes = self._cipher.decrypt(_nonce(number, last=number == self._count - 1), part, None)
            except _exceptions().InvalidTag:
                raise RefusedMessage(
                    f"part {number + 1} of {self._count} does not open: it was damaged, changed, moved or cut short on "
                    f"the way; {_REMEDY}"
                ) from None
            yield content


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _cipher(secret: bytes, info: bytes) -> Any:
    """Return the cipher of a file, whose key belongs to this secret and this beginning alone."""
    derived = _hkdf().HKDF(_hashes().SHA256(), 32, salt=None, info=info).derive(secret)
    return _aead().ChaCha20Poly1305(derived)


@cache
def _aead() -> Any:
    return require("cryptography.hazmat.primitives.ciphers.aead", "exchange", "sealing files")


@cache
def _hkdf() -> Any:
    return require("cryptography.hazmat.primitives.kdf.hkdf", "exchange", "sealing files")


@cache
def _hashes() -> Any:
    return require("cryptography.hazmat.primitives.hashes", "exchange", "sealing files")


@cache
def _exceptions() -> Any:
    return require("cryptography.exceptions", "exchange", "sealing files")
