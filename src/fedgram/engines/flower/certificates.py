"""Certificates and keys to try TLS and SuperNode authentication with; a real federation brings its own."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgram.core.errors import InvalidParameter
from fedgram.core.files import new_file
from fedgram.engines.flower.node import folder_name

DAYS = 30


def make_certificates(folder: Path, *, host: str, nodes: Sequence[str]) -> list[Path]:
    """Write a certificate authority, a certificate of the SuperLink at `host`, and a pair of keys per node.

    `ca.crt`, `server.crt`, `server.key` are for TLS; `NODE` and `NODE.pub` are as `ssh-keygen -t ecdsa` makes them.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidParameter(f"{folder} is not empty: keys are never overwritten, choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = _certificate("fedgram test authority", authority_key, "fedgram test authority", authority_key, None)
    server = _certificate(host, server_key, "fedgram test authority", authority_key, host)
    made = [
        _write(folder / "ca.crt", authority.public_bytes(serialization.Encoding.PEM)),
        _write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM)),
        _write(folder / "server.key", _private(server_key, serialization.PrivateFormat.PKCS8)),
    ]
    for node in nodes:
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        made.append(_write(folder / folder_name(node), _private(key, serialization.PrivateFormat.OpenSSH)))
        made.append(_write(folder / f"{folder_name(node)}.pub", public + b"\n"))
    return made


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, host: str | None
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
        builder = builder.add_extension(x509.SubjectAlternativeName([_address(host)]), critical=False)
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
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> Path:
    """Write a file that only its owner may read, from the moment it exists."""
    new_file(path, content, mode=0o600)
    return path
