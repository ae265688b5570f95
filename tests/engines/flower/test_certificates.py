"""Certificates and keys of `fedgram flower certificates`: they hold in a real TLS handshake."""

import ssl
import stat

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedgram.core.errors import InvalidParameter
from fedgram.engines.flower.node_keys import make_certificates


def test_certificates_are_good(tmp_path):
    made = make_certificates(tmp_path / "keys", host="127.0.0.1", nodes=["hospital-a"])
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in made)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    client = ssl.create_default_context(cafile=tmp_path / "keys" / "ca.crt")
    assert shake_hands(client, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(client, server, "127.0.0.2")
    private = load_ssh_private_key((tmp_path / "keys" / "hospital-a").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "keys" / "hospital-a.pub").read_bytes())
    assert private.public_key() == public
    with pytest.raises(InvalidParameter, match="keys are never overwritten"):
        make_certificates(tmp_path / "keys", host="localhost", nodes=[])


def shake_hands(client, server, host):
    """Let both sides of a TLS connection talk in memory until each has accepted the other."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(10):
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue
    return not sides
