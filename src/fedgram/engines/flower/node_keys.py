"""Keys of nodes: the app lists public keys by client name, and Flower tells the key that a node uses.

A SuperLink checks every message of a node against its key, and a ServerApp sees the keys. So a listed name belongs to
the holder of the private key, even if another node uses the same name.

`make_certificates` makes keys and certificates to try this with; a real federation brings its own.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key
from cryptography.x509.oid import NameOID

from fedgram.core.errors import InvalidParameter, RefusedMessage
from fedgram.core.filesystem import file_name, new_file, private_folder, read_regular, writing

PublicKey: TypeAlias = EllipticCurvePublicKey
LONGEST_NAME = 200  # characters of a client's name
_SPECIAL = frozenset('=,"\\')


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
        check_plain(name, "keys: the name")
        keys[name] = _public_key(written, f"keys: {name!r}")
    return keys


def key_line(file: Path) -> str:
    """Return the line of `keys` for a public key file NAME.pub, as `ssh-keygen -t ecdsa` writes it."""
    try:
        text = read_regular(file, most=1 << 14).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"cannot read the public key {file}: {error}") from error
    _public_key(text, str(file))
    name = unquote(file.stem)
    check_plain(name, f"{file.name!r}: the client's name")
    return f"{name} = {' '.join(text.split()[:2])}"  # without the comment, which may hold a comma


def check_plain(name: str, what: str) -> None:
    """Raise for a client's name that could be read as more than a name in a list of names, of keys, or in TOML."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or name != name.strip() or _SPECIAL & set(name):
        raise InvalidParameter(
            f"{what}: expected up to {LONGEST_NAME} printable characters, without {' '.join(sorted(_SPECIAL))} and "
            f"without blanks around them, got {name[:60]!r}; rename it"
        )


def _public_key(text: str, where: str) -> PublicKey:
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidParameter(f"{where} is not a public key as in NODE.pub (ecdsa-sha2-nistp384 AAAA…)") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidParameter(f"{where} is not an ECDSA key, which Flower's nodes need: ssh-keygen -t ecdsa -b 384")
    return key


def check_name(name: str, came_with: bytes, keys: Mapping[str, PublicKey]) -> None:
    """Raise for a node that lacks the key listed for its name."""
    try:
        key = load_pem_public_key(came_with)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if name not in keys:
        raise RefusedMessage(f"it calls itself {name!r}, for which no key is listed")
    if key != keys[name]:
        raise RefusedMessage(f"it calls itself {name!r}, but does not have the key that is listed for {name!r}")


DAYS = 30
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


def make_certificates(folder: Path, *, host: str, nodes: Sequence[str]) -> list[Path]:
    """Write a certificate authority, a certificate of the SuperLink at `host`, and a pair of keys per node.

    `ca.crt`, `server.crt`, `server.key` are for TLS; `NODE` and `NODE.pub` are as `ssh-keygen -t ecdsa` makes them.
    """
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise InvalidParameter(f"{folder} is not empty: keys are never overwritten, choose another folder")
    for name, count in Counter(nodes).items():
        check_plain(name, "node")
        if count > 1:
            raise InvalidParameter(f"node: expected each name once, got {name!r} {count} times")
    address = _address(host)
    with writing(folder, InvalidParameter):
        private_folder(folder)
        return _made(folder, address, host, nodes)


def _made(folder: Path, address: x509.GeneralName, host: str, nodes: Sequence[str]) -> list[Path]:
    """Write all files and return their paths."""
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = _certificate("fedgram test authority", authority_key, "fedgram test authority", authority_key, None)
    server = _certificate(host, server_key, "fedgram test authority", authority_key, address)
    made = [
        _write(folder / "ca.crt", authority.public_bytes(serialization.Encoding.PEM)),
        _write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM)),
        _write(folder / "server.key", _private(server_key, serialization.PrivateFormat.PKCS8)),
    ]
    for node in nodes:
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        made.append(_write(folder / file_name(node), _private(key, serialization.PrivateFormat.OpenSSH)))
        made.append(_write(folder / f"{file_name(node)}.pub", public + b"\n"))
    return made


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    host: x509.GeneralName | None,
) -> x509.Certificate:
    """Return a certificate: of a host, or (None) of an authority."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if host is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    else:
        signs = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(signs, critical=True)
    return builder.sign(signer, hashes.SHA384())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        if not _HOST.fullmatch(host):
            raise ValueError(host)
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidParameter(
            f"host: expected an IP address or a name such as link.example.org, got {host!r}"
        ) from error


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> Path:
    """Write a file that only its owner may read, from the moment it exists."""
    new_file(path, content, mode=0o600)
    return path
