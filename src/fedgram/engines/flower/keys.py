"""Whose key a node has: the app lists public keys by client name, and Flower says with which key a node came.

A SuperLink checks every message of a node against its key, and a ServerApp sees the keys. So a listed name belongs to
whoever has the private key, whatever another node calls itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

from fedgram.core.errors import InvalidParameter, RefusedMessage
from fedgram.core.files import read_regular

PublicKey: TypeAlias = EllipticCurvePublicKey


def read_keys(text: str) -> dict[str, PublicKey]:
    """Return keys by name from lines (or parts between commas) such as `ward-1 = ecdsa-sha2-nistp384 AAAA…`.

    >>> read_keys("")
    {}
    """
    keys: dict[str, PublicKey] = {}
    for line in filter(None, (part.strip() for part in text.replace(",", "\n").splitlines())):
        name, _, written = (part.strip() for part in line.partition("="))
        if not name or name in keys:
            raise InvalidParameter(f"keys: {name!r} is listed twice" if name else f"keys: {line[:40]!r} has no name")
        keys[name] = _public_key(written, f"keys: {name!r}")
    return keys


def key_line(file: Path) -> str:
    """Return the line of `keys` for a public key file NAME.pub, as `ssh-keygen -t ecdsa` writes it."""
    try:
        text = read_regular(file, most=1 << 14).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"cannot read the public key {file}: {error}") from error
    _public_key(text, str(file))
    return f"{unquote(file.stem)} = {' '.join(text.split()[:2])}"  # without the comment, which may hold a comma


def _public_key(text: str, where: str) -> PublicKey:
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidParameter(f"{where} is not a public key as in NODE.pub (ecdsa-sha2-nistp384 AAAA…)") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidParameter(f"{where} is not an ECDSA key, which Flower's nodes need: ssh-keygen -t ecdsa -b 384")
    return key


def check_name(name: str, came_with: bytes, keys: Mapping[str, PublicKey]) -> None:
    """Refuse a node that has not the key that is listed for the name it gives."""
    try:
        key = load_pem_public_key(came_with)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if name not in keys:
        raise RefusedMessage(f"it calls itself {name!r}, for which no key is listed")
    if key != keys[name]:
        raise RefusedMessage(f"it calls itself {name!r}, but has not the key that is listed for {name!r}")
