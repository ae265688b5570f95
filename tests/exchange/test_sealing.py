"""Sealed files: opened by their receiver alone, whole or not at all, and joined like plain ones."""

import base64
import os
import random
import re
import signal
import tracemalloc
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram.core.errors import FedgramError, InvalidParameter, RefusedMessage
from fedgram.exchange.format import fgm
from fedgram.exchange.format.coordinator import receiver_in
from fedgram.exchange.format.sealing import PART, START, Opened, seal
from fedgram.exchange.format.signing_keys import PrivateKey, PublicKey
from fedgram.exchange.pages.passport import Passport, passport_page
from fedgram.exchange.rounds.party_side import model_of
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.study_store import Store
from support import campaign
from support.fgm import encoded, moments, rewritten
from support.stores import KEYS, STUDY, answered, summary

COORDINATOR, OTHER = PrivateKey.new(), PrivateKey.new()
NAMES = ("north", "south", "east")
NAMED = replace(
    STUDY, coordinator=COORDINATOR.public.text, parties={name: KEYS[name].public.text for name in (*NAMES, "west")}
)
HEAD = len(START) + 2 + 125 + 1 + 32  # bytes before the first part
WHOLE = PART + 16
LARGE = encoded(payload=moments(250, columns=tuple(f"c{number}" for number in range(200))))  # three parts


def sent(name, **options):
    """Return a party's signed summary, as bytes of a plain file."""
    return summary(name, study=NAMED, key=KEYS[name], **options)


def sealed(data, key=COORDINATOR):
    return seal(data, key.public)


def opened(data, key=COORDINATOR):
    return Opened(BytesIO(data), len(data), key)


def parts_of(data):
    return [data[:HEAD], *(data[at : at + WHOLE] for at in range(HEAD, len(data), WHOLE))]


def test_a_sealed_file_is_the_file_for_its_receiver():
    plain = fgm.read(sent("north"))
    file = fgm.read(sealed(plain.data), key=COORDINATOR)
    assert (file.data, file.digest, file.header) == (plain.data, plain.digest, plain.header)
    assert (plain.sealed_to, file.sealed_to) == (None, COORDINATOR.public)
    file.verify(KEYS["north"].public)


@pytest.mark.parametrize("size", [1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 5])
def test_content_of_any_length_comes_back(size):
    content = os.urandom(size)
    data = sealed(content)
    assert len(data) == HEAD + -(-size // PART) * WHOLE
    assert opened(data).read(size) == content
    reader, steps = opened(data), []
    while piece := reader.read(40_000):
        steps.append(piece)
    assert b"".join(steps) == content + bytes(-size % PART)
    reader.seek(0)
    assert reader.read(7) == (content + bytes(7))[:7]


def test_an_independent_reader_opens_it():
    """From `docs/format.md`, with `cryptography` alone."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    def open_sealed(data, key_file):
        private = [block + b"-----END PRIVATE KEY-----\n" for block in key_file.split(b"-----END PRIVATE KEY-----\n")]
        opening = serialization.load_pem_private_key(private[1], None)
        line, rest = data[: data.index(b"\n") + 1], data[data.index(b"\n") + 1 :]
        word, kind, version, receiver = line.decode().split()
        assert (word, kind, version) == ("fedgram", "sealed", "1")
        both = base64.b32decode(receiver.replace("-", "").upper())
        assert both[32:64] == opening.public_key().public_bytes_raw()
        secret = opening.exchange(X25519PublicKey.from_public_bytes(rest[:32]))
        cipher = ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, None, line + rest[:32]).derive(secret))
        parts = [rest[at : at + 65_552] for at in range(32, len(rest), 65_552)]
        nonces = (number.to_bytes(11, "big") + bytes([number == len(parts) - 1]) for number in range(len(parts)))
        content = b"".join(map(lambda nonce, part: cipher.decrypt(nonce, part, None), nonces, parts))
        length = 8 + int.from_bytes(content[:8], "little")
        entries = re.findall(rb'"data_offsets":\[\d+,(\d+)\]', content[8:length])
        return content[: length + max(map(int, entries))]

    def key_file(key):
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return key._signing.private_bytes(*form) + key._opening.private_bytes(*form)

    for plain in (sent("north"), LARGE):
        assert open_sealed(sealed(plain), key_file(COORDINATOR)) == plain


def test_randomness_is_the_systems():
    """The same seeds give other bytes: with the same key and nonce, two contents would show their difference."""
    found = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global state is what must not matter
        found.append(sealed(LARGE))
    one, other = found
    assert len(one) == len(other)
    same = sum(a == b for a, b in zip(one[HEAD:], other[HEAD:], strict=True))
    assert same < 3 * len(one) / 256
    assert one[HEAD - 32 : HEAD] != other[HEAD - 32 : HEAD]


def test_only_the_receiver_can_be_read_off_a_sealed_file():
    north = fgm.read(sent("north", n=40))
    data = sealed(north.data)
    assert data.startswith(b"fedgram sealed 1 " + COORDINATOR.public.text.encode() + b"\n")
    header, rest = north.header, data[HEAD:].lower()
    hidden = [
        header.party,
        NAMED.name,
        header.study,
        header.digest,
        header.signer,
        header.created,
        "fedgram",
        "samples",
    ]
    hidden += [*NAMED.columns, *NAMED.classes, KEYS["north"].public.text]
    for text in hidden:
        if len(text) > 4:  # 64 KiB of random bytes hold a given word of three letters once in thirty files
            assert text.lower().encode() not in rest, text
    for raw in (bytes.fromhex(header.digest), north.payload.packed.tobytes(), KEYS["north"].public.signing):
        assert raw not in data
    counts = np.bincount(np.frombuffer(data[HEAD:], np.uint8), minlength=256)
    assert abs(counts - counts.mean()).max() < 8 * np.sqrt(counts.mean())  # as even as random bytes
    # Nor does the length show how many samples a party has, or how long its name is.
    assert len(sealed(sent("south", n=6))) == len(sealed(sent("east", n=400))) == len(data)


def test_every_flipped_byte_is_refused():
    data = sealed(LARGE)
    assert len(parts_of(data)) == 4
    rng = random.Random(0)
    places = [*range(HEAD), *rng.sample(range(HEAD, len(data)), campaign.size(60)), *range(len(data) - 16, len(data))]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        with pytest.raises(RefusedMessage, match="bytes refused"):
            fgm.read(bytes(changed), key=COORDINATOR)
    assert fgm.read(data, key=COORDINATOR).data == LARGE


def test_parts_are_whole_in_their_order_and_of_one_file(tmp_path):
    start, first, second, last = parts_of(sealed(LARGE))
    elsewhere = parts_of(sealed(LARGE))
    changed = {
        "swapped": [start, second, first, last],
        "without the last": [start, first, second],
        "without the first": [start, second, last],
        "without the middle": [start, first, last],
        "doubled": [start, first, first, last],
        "the last twice": [start, first, second, last, last],
        "another file's part": [start, first, elsewhere[2], last],
        "another file's start": [elsewhere[0], first, second, last],
        "cut in a part": [start, first, second, last[:-1]],
        "cut in the tag": [start, first, second, last[:-17]],
        "no parts": [start],
        "cut in the start": [start[:150]],
        "cut in the line": [start[:60]],
        "one byte more": [start, first, second, last, b"\0"],
    }
    for name, parts in changed.items():
        (tmp_path / "north.fgm").write_bytes(b"".join(parts))
        with pytest.raises(RefusedMessage, match=r"north.fgm refused: .*sen[dt] (it )?again") as refused:
            fgm.read(tmp_path / "north.fgm", key=COORDINATOR)
        assert len(str(refused.value)) < 500, name
        # The seal itself notices it, also where the header inside says nothing of the length.
        with pytest.raises(RefusedMessage, match=r"sen[dt] (it )?again"):
            opened(b"".join(parts)).read(len(parts) * PART)


@given(st.binary(max_size=300), st.integers(0, 250))
@settings(max_examples=campaign.size(50))
def test_any_bytes_are_refused_and_break_nothing(noise, kept):
    for data in (sealed(b"x")[:kept] + noise, START + noise):
        with pytest.raises(FedgramError, match="bytes refused"):
            fgm.read(data, key=COORDINATOR)


def test_content_that_is_not_one_file_is_refused():
    for content, words in (
        (b"x" * 100, "not a file that fedgram exchanges"),
        (b"", "it is not whole"),
        (LARGE + b"\0", "not_refused"),
        (LARGE + b"x", "other bytes behind its content"),
        (LARGE + bytes(PART), "not whole"),
        (LARGE[:-PART], "not whole"),
        (sealed(LARGE), "not a file that fedgram exchanges"),  # a seal in a seal
    ):
        if words == "not_refused":  # zeros are what fills up a part
            assert fgm.read(sealed(content), key=COORDINATOR).data == LARGE
            continue
        with pytest.raises(RefusedMessage, match=words):
            fgm.read(sealed(content), key=COORDINATOR)


def test_a_newer_seal_is_refused_with_the_remedy():
    newer = sealed(LARGE).replace(b"fedgram sealed 1 ", b"fedgram sealed 2 ", 1)
    with pytest.raises(RefusedMessage, match="version of the seal: expected 1, got 2; update fedgram"):
        fgm.read(newer, key=COORDINATOR)
    upper = COORDINATOR.public.text.upper().encode()
    with pytest.raises(RefusedMessage, match="expected a key in lower case"):
        fgm.read(sealed(LARGE).replace(COORDINATOR.public.text.encode(), upper), key=COORDINATOR)


def test_other_keys_do_not_open_it(tmp_path):
    (tmp_path / "north.fgm").write_bytes(sealed(sent("north")))
    with pytest.raises(RefusedMessage, match=f"it is sealed to {COORDINATOR.public}: give the private key"):
        fgm.read(tmp_path / "north.fgm")
    with pytest.raises(RefusedMessage, match=f"sealed to {COORDINATOR.public}, not the key {OTHER.public}: give"):
        fgm.read(tmp_path / "north.fgm", key=OTHER)
    with pytest.raises(RefusedMessage, match="is sealed to"):  # and not: it is not a model
        model_of(tmp_path / "north.fgm")
    # The line names another receiver, as if a seal could be passed on.
    stolen = sealed(sent("north")).replace(COORDINATOR.public.text.encode(), OTHER.public.text.encode())
    with pytest.raises(RefusedMessage, match="does not open"):
        fgm.read(stolen, key=OTHER)
    # The same opening half beside another signing half is another receiver.
    mixed = PrivateKey(OTHER._signing, COORDINATOR._opening)
    with pytest.raises(RefusedMessage, match="not the key"):
        fgm.read(tmp_path / "north.fgm", key=mixed)


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31)])
def test_points_that_give_everybody_the_same_secret_are_refused(point):
    with pytest.raises(RefusedMessage, match="it was made up"):
        seal(LARGE, PublicKey.of_bytes(COORDINATOR.public.signing, point))
    data = sealed(LARGE)
    with pytest.raises(RefusedMessage, match="it was made up"):
        fgm.read(data[: HEAD - 32] + point + data[HEAD:], key=COORDINATOR)


def test_a_sealed_file_joins_like_a_plain_one(tmp_path):
    plain, store = (Store(tmp_path / name, study=NAMED, key=COORDINATOR) for name in ("plain", "sealed"))
    files = [sent(name) for name in NAMES]
    plain.join(*files)
    for name, data in zip(NAMES, files, strict=True):
        (tmp_path / f"{name}.fgm").write_bytes(sealed(data))
    found = store.join(*(tmp_path / f"{name}.fgm" for name in NAMES))
    assert [each.outcome for each in found] == ["joined"] * 3, found
    assert store.total().digest == plain.total().digest
    assert [each.digest for each in store.contributions()] == [each.digest for each in plain.contributions()]
    again = store.join(sealed(files[0]), files[1])  # sealed twice, or sent without the seal
    assert [each.outcome for each in again] == ["already in"] * 2
    assert store.objects.path(found[0].digest).read_bytes() == files[0]
    replaced = store.join(sealed(sent("north", seed=1)), replace=True)
    assert replaced[0].outcome == "replaced"
    assert store.publish("afl").data


def test_a_store_begins_with_a_sealed_file_and_its_key(tmp_path):
    data = sealed(sent("north"))
    [refused] = Store(tmp_path / "store").join(data)
    assert f"sealed to {COORDINATOR.public}: give the private key" in refused.why
    assert Store(tmp_path / "store", key=COORDINATOR).join(data)[0].outcome == "joined"
    (tmp_path / "store" / "coordinator.key").rename(tmp_path / "away.key")
    with pytest.raises(FedgramError, match="has lost its private key: put coordinator.key back from a copy"):
        Store(tmp_path / "store").join(sealed(sent("south")))


def test_a_store_refuses_what_was_sealed_to_others_and_takes_the_rest(tmp_path):
    store = Store(tmp_path, study=NAMED, key=COORDINATOR)
    other = replace(NAMED, name="runs")
    found = store.join(
        sealed(sent("north"), OTHER),
        sealed(summary("north", study=other, key=KEYS["north"])),
        sealed(summary("north", study=NAMED, key=KEYS["south"])),  # another party in its name
        sealed(summary("north", study=NAMED)),
        sealed(sent("south")),
    )
    assert [each.outcome for each in found] == ["refused"] * 4 + ["joined"]
    for each, words in zip(
        found, ("is sealed to", "study 'runs'", "someone else wrote it", "is not signed"), strict=False
    ):
        assert words in each.why
    # A coordinator that passes a summary on to another, sealed anew, is told by the study that the party has signed.
    theirs = Store(tmp_path / "theirs", study=replace(NAMED, coordinator=OTHER.public.text), key=OTHER)
    [passed_on] = theirs.join(sealed(fgm.read(sealed(sent("north")), key=COORDINATOR).data, OTHER))
    assert passed_on.outcome == "refused"
    assert "study 'walks'" in passed_on.why


def test_answers_can_be_sealed(tmp_path):
    store = Store(tmp_path, study=NAMED, key=COORDINATOR)
    store.join(*(sealed(sent(name)) for name in NAMES))
    request = advance(store, "fedlogit", {"rounds": 1}).data
    found = store.join(*(sealed(answered(name, request, study=NAMED, key=KEYS[name])) for name in NAMES))
    assert [each.outcome for each in found] == ["answered"] * 3, found
    assert advance(store, "fedlogit", {"rounds": 1}).entry.says["method"] == "fedlogit"


def test_a_seal_does_not_raise_the_limit_of_its_kind(tmp_path):
    """Refused by the size of the file, or by the header in its first part, not after all of it is in memory."""
    data = sealed(LARGE)
    kept = {"summary": len(LARGE) - PART}
    with pytest.raises(RefusedMessage, match="expected at most .* bytes of a summary in this study"):
        fgm.read(data, key=COORDINATOR, most=kept)
    assert fgm.read(data, key=COORDINATOR, most={"summary": len(LARGE)}).digest

    def longer(entries):
        entries["payload/gram"]["data_offsets"] = [0, 1 << 40]

    hollow = sealed(rewritten(encoded(), longer) + bytes(40 * PART))
    (tmp_path / "north.fgm").write_bytes(hollow)
    tracemalloc.start()
    with pytest.raises(RefusedMessage, match="not whole"):
        fgm.read(tmp_path / "north.fgm", key=COORDINATOR)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * PART


def test_the_memory_of_a_store_does_not_grow_with_sealed_files(tmp_path):
    parties = tuple(f"p{number}" for number in range(100))
    study = replace(STUDY, coordinator=COORDINATOR.public.text, parties=dict.fromkeys(parties, ""))
    for number, name in enumerate(parties):
        (tmp_path / f"{name}.fgm").write_bytes(sealed(summary(name, seed=number, study=study)))
    store, peaks = Store(tmp_path / "store", study=study, key=COORDINATOR), []
    tracemalloc.start()
    for start in (0, 20):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        found = store.join(*(tmp_path / f"{name}.fgm" for name in parties[start : start + (20 if not start else 80)]))
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        assert {each.outcome for each in found} == {"joined"}
    tracemalloc.stop()
    assert peaks[1] < peaks[0] + 10 * PART  # 80 files are of 80 parts


def test_the_passport_says_that_it_is_sealed_and_to_whom():
    file = fgm.read(sealed(sent("north")), key=COORDINATOR)
    passport = Passport.of(file)
    assert dict(passport.facts())["sealed to"] == f"the coordinator, {COORDINATOR.public}"
    assert passport.fields()["sealed_to"] == passport.sealed_to
    assert COORDINATOR.public.text in passport_page(passport)
    plain = Passport.of(fgm.read(sent("north")))
    assert "sealed to" not in dict(plain.facts())
    assert (plain.digest, plain.size, plain.signer) == (passport.digest, passport.size, passport.signer)
    alone = Passport.of(replace(fgm.read(sent("north")), sealed_to=OTHER.public))
    assert dict(alone.facts())["sealed to"] == OTHER.public.text


def test_a_study_without_a_coordinator_has_no_receiver():
    assert receiver_in(NAMED) == COORDINATOR.public
    with pytest.raises(InvalidParameter, match="got 'walks', which names none; have it entered with"):
        receiver_in(STUDY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["replace", "write"])
def test_a_kill_leaves_no_half_of_a_sealed_file(tmp_path, name):
    data, path = sealed(LARGE), tmp_path / "north.fgm"
    child = os.fork()
    if child == 0:
        from fedgram.core import filesystem

        def killed(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        if name == "replace":
            filesystem.os.replace = killed
            fgm.write(path, data)
        else:
            with filesystem.replacing(path) as file:
                file.write(data[:PART])
                file.flush()
                killed()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not path.exists()
    assert all(b"north" not in left.read_bytes()[HEAD:] for left in tmp_path.iterdir())
    fgm.write(path, data)
    assert fgm.read(path, key=COORDINATOR).data == LARGE
