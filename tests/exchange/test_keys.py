"""Keys: signatures, written forms, and refusals."""

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import Doubtful, InvalidData, MissingExtra, RefusedMessage
from fedgram.exchange.format.key_files import file_name, named_by, new_pair, read_public
from fedgram.secure import signing_keys
from fedgram.secure.signing_keys import PrivateKey, PublicKey
from support.exchange import key_of

KEY = key_of(7)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_signature_fits_what_was_signed_and_nothing_else(data, other):
    signature = KEY.sign("summary", data)
    KEY.public.verify("summary", data, signature)
    for kind, content, signer in (("answer", data, KEY), ("summary", data, key_of(8)), ("summary", other + b"x", KEY)):
        if content != data or kind != "summary" or signer is not KEY:
            with pytest.raises(RefusedMessage, match="does not fit"):
                signer.public.verify(kind, content, signature)


@pytest.mark.parametrize("signature", [b"", b"\0" * 64, b"\0" * 63, b"\xff" * 64])
def test_made_up_signatures_are_refused(signature):
    with pytest.raises(RefusedMessage, match="does not fit"):
        KEY.public.verify("summary", b"data", signature)


@pytest.mark.parametrize("kind", ["", "a b", "summary\nanswer", "ü-ber"])
def test_a_kind_is_one_word_so_that_prefixes_cannot_be_shifted(kind):
    with pytest.raises(InvalidData, match="one word"):
        KEY.sign(kind, b"")


def test_what_is_signed_names_fedgram_schema_and_kind():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = Ed25519PublicKey.from_public_bytes(KEY.public.signing)
    public.verify(KEY.sign("summary", b"data"), f"fedgram exchange 1 summary {KEY.public}\ndata".encode())


def test_both_halves_of_a_key_belong_together():
    """A swapped opening half gives another text, and no signature fits that text."""
    other = PublicKey.of_bytes(KEY.public.signing, key_of(8).public.opening)
    assert other != KEY.public
    with pytest.raises(RefusedMessage, match="does not fit"):
        other.verify("summary", b"data", KEY.sign("summary", b"data"))


def test_a_public_key_is_one_line_that_survives_mail():
    text = KEY.public.text
    assert len(text) == 112 + 13
    assert text.isascii()
    for written in (text.upper(), text.replace("-", " "), f"  {text}\n", text.replace("-", "")):
        assert PublicKey(written) == KEY.public
        assert PublicKey(written).text == text


def test_any_typing_error_in_a_public_key_is_noticed():
    text = KEY.public.text
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    for place, letter in enumerate(text):
        if letter != "-":
            wrong = letters[(letters.index(letter) + 1) % 32]
            with pytest.raises(InvalidData, match="was mistyped"):
                PublicKey(text[:place] + wrong + text[place + 1 :])
    for wrong in ("", text[:-1], text + "a", text[:63], "0" * 112, "ä" * 112):
        with pytest.raises(InvalidData, match="is not a public key"):
            PublicKey(wrong)


def test_a_key_is_saved_for_its_owner_alone_and_never_over_a_file(tmp_path):
    path = tmp_path / "north.key"
    KEY.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert PrivateKey.load(path).public == KEY.public
    before = path.read_bytes()
    with pytest.raises(InvalidData, match="never overwritten"):
        key_of(8).save(path)
    assert path.read_bytes() == before
    with pytest.raises(InvalidData, match="cannot write"):
        KEY.save(tmp_path / "nowhere" / "north.key")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_key_that_others_may_read_is_warned_of(tmp_path):
    KEY.save(tmp_path / "north.key")
    (tmp_path / "north.key").chmod(0o644)
    with pytest.warns(Doubtful, match="chmod 600"):
        PrivateKey.load(tmp_path / "north.key")


def test_files_that_are_no_keys_are_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import x25519

    other = x25519.X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    KEY.save(tmp_path / "north.key")
    whole = (tmp_path / "north.key").read_bytes()
    signing, opening = (
        block + b"-----END PRIVATE KEY-----\n" for block in whole.split(b"-----END PRIVATE KEY-----\n")[:2]
    )
    assert (tmp_path / "north.key").write_bytes(whole.replace(b"\n", b"\r\n"))
    assert PrivateKey.load(tmp_path / "north.key").public == KEY.public
    made_up = [b"", b"\0" * 40, b"-----BEGIN PRIVATE KEY-----\nAAAA\n"]
    halves = [signing, opening, other + other, opening + signing, signing + signing, whole + other, whole + b"x"]
    for number, content in enumerate(made_up + halves):
        path = tmp_path / f"{number}.key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InvalidData, match="not a private key"):
            PrivateKey.load(path)
    with pytest.raises(InvalidData, match="cannot read the key"):
        PrivateKey.load(tmp_path / "none.key")
    with pytest.raises(InvalidData, match="cannot read the key"):
        PrivateKey.load(tmp_path)


def test_the_private_key_is_not_shown():
    assert repr(KEY) == "PrivateKey()"


@pytest.mark.parametrize(
    "name", ["north", "../../etc/passwd", ".hidden", "Straße 7", "a:b|c?", "50%", "北", "con", "LPT1.x"]
)
def test_a_pair_stays_in_its_folder_whatever_the_party_is_called(tmp_path, name):
    folder = tmp_path / "keys"
    private, public, key = new_pair(name, folder)
    assert {private.parent, public.parent} == {folder}
    assert sorted(folder.iterdir()) == sorted([private, public])
    assert named_by(private) == name
    assert read_public(public) == (name, key)
    assert file_name(name) == private.stem
    with pytest.raises(InvalidData, match="never overwritten"):
        new_pair(name, folder)


@pytest.mark.parametrize(
    "name", ["", " north", "north\n", "\x1b[2J", "e\u0301tage", "x" * 201, "\u202enorth", "\ud800"]
)
def test_names_that_others_could_mistake_are_refused(tmp_path, name):
    with pytest.raises(InvalidData, match="not a party's name"):
        new_pair(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_half_a_pair_is_not_left_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedgram.exchange.format.key_files.new_file", full)
    with pytest.raises(InvalidData, match="No space left"):
        new_pair("north", tmp_path)
    assert not list(tmp_path.iterdir())


def test_public_key_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "north.pub"
    for text in ("", "north", 'north = "abc"', "a = 1", f'a = "{KEY.public}"\nb = "{KEY.public}"', "[a]\nb = 1"):
        path.write_text(text)
        with pytest.raises(InvalidData, match="north.pub"):
            read_public(path)
    with pytest.raises(InvalidData, match="cannot read the public key"):
        read_public(tmp_path / "none.pub")


def test_without_cryptography_one_line_says_what_to_install(monkeypatch):
    import sys

    signing_keys._ed25519.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[exchange\]'"):
        PrivateKey.new()
