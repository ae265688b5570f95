"""Files that were damaged or forged: every bit counts, a signature covers everything, and headers have one form."""

import json
import tracemalloc

import pytest

from fedgram.core.errors import FedgramError, RefusedMessage
from fedgram.exchange.format import fgm
from fedgram.exchange.format.fgm import MOST_BYTES
from fedgram.exchange.format.header import Header
from support.exchange import key_of, refusal
from support.fgm import KEY, encoded, moments, resealed, rewritten


def test_every_single_bit_counts():
    data = encoded(payload=moments(4, ("age",)), key=KEY)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert refusal(bytes(damaged)) is not None, f"bit {bit}"


def test_every_single_bit_of_an_unsigned_header_counts():
    data = encoded(payload=moments(4, ("age",)))
    for bit in range(8 * (8 + int.from_bytes(data[:8], "little"))):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert refusal(bytes(damaged)) is not None, f"bit {bit}"


def test_part_of_a_file_is_refused_wherever_it_ends(tmp_path):
    data, path = encoded(payload=moments(4, ("age",))), tmp_path / "north.fgm"
    for end in range(len(data)):
        assert refusal(data[:end]) is not None, end
        if end % 50 == 0:
            path.write_bytes(data[:end])
            with pytest.raises(RefusedMessage, match="north.fgm refused"):
                fgm.read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(RefusedMessage, match="not whole"):
        fgm.read(path)


@pytest.mark.parametrize(
    "change", [{"party": "south"}, {"study": "0f3b" * 16}, {"kind": "combined"}, {"created": "2020-01-01T00:00:00Z"}]
)
def test_a_signature_covers_the_whole_header(change):
    file = fgm.read(resealed(encoded(key=KEY), **change))  # a forger can compute hashes, too
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        file.verify()


def test_a_signature_of_other_content_or_by_another_key_does_not_fit():
    other = fgm.read(encoded(payload=moments(14), key=KEY)).header
    forged = fgm.read(resealed(encoded(key=KEY), signature=other.signature))
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        forged.verify(KEY.public)
    stolen = fgm.read(resealed(encoded(key=KEY), signer=key_of(1).public.text))
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        stolen.verify()


def test_someone_elses_name_is_refused_by_the_key_that_it_is_bound_to():
    with pytest.raises(RefusedMessage, match="'north' has the key .* someone else wrote it"):
        fgm.read(encoded(key=key_of(1))).verify(KEY.public)


def test_an_unsigned_file_says_so_and_does_not_pass_for_a_signed_one():
    file = fgm.read(encoded())
    assert file.signer is None
    for expected in (None, KEY.public):
        with pytest.raises(RefusedMessage, match="not signed"):
            file.verify(expected)
    assert "signature" in refusal(resealed(encoded(key=KEY), signer=""))
    assert "signature" in refusal(resealed(encoded(key=KEY), signature=""))


def test_a_newer_schema_is_refused_by_name_with_the_remedy():
    def newer(entries):
        entries["__metadata__"]["fgm"] = "2"
        entries["__metadata__"]["what came later"] = "yes"

    assert "schema: expected 1, got '2'; update fedgram" in refusal(rewritten(encoded(), newer))


@pytest.mark.parametrize("wrong", ["elsewhere", "", "Summary", "../summary"])
def test_an_unknown_kind_is_refused(wrong):
    with pytest.raises(FedgramError, match="unknown kind of file"):
        encoded(wrong)
    assert "unknown kind of file" in refusal(rewritten(encoded(), lambda e: e["__metadata__"].update(kind=wrong)))


def test_a_header_in_another_form_is_refused_even_if_it_says_the_same():
    data = encoded()
    length = int.from_bytes(data[:8], "little")
    header_text, body = data[8 : 8 + length].rstrip(), data[8 + length :]

    def with_header(text):
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body

    metadata = json.loads(header_text)["__metadata__"]
    swapped = rewritten(data, lambda e: e["__metadata__"].update(party=e["__metadata__"].pop("party")))
    extra = rewritten(data, lambda e: e["__metadata__"].update(comment="hello"))
    for other in (
        with_header(header_text + b" " * 8),
        with_header(header_text.replace(b'":"', b'": "', 1).replace(b'{"__metadata__": "', b'{"__metadata__":{"')),
        with_header(header_text.replace(b'"north"', b'"\\u006eorth"')),
        with_header(header_text.replace(b'"party":"north"', b'"party":"south","party":"north"')),
        with_header(header_text[:-1] + b',"__metadata__":' + json.dumps(metadata).encode() + b"}"),
        swapped,
        extra,
    ):
        assert refusal(other) is not None
    assert refusal(with_header(header_text)) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("samples", "-1"),
        ("samples", "012"),
        ("samples", "1e3"),
        ("samples", "9" * 19),
        ("samples", "9" * 4000),
        ("columns", "age"),
        ("columns", "[[]]"),
        ("columns", '["age", "age", "bp"]'),
        ("columns", "[" * 3000),
        ("created", "yesterday"),
        ("created", "2026-02-30T00:00:00Z"),
        ("created", "2026-1-1T00:00:00Z"),
        ("party", " north"),
        ("party", "nor\u202eth"),
        ("party", "\ud800"),
        ("party", "x" * 201),
        ("digest", "0" * 63),
        ("study", "../.."),
        ("signer", "abc"),
        ("samples", 12),
        ("party", None),
        ("party", ["north"]),
    ],
)
def test_header_fields_that_are_none_are_refused(name, text):
    refused = refusal(rewritten(encoded(), lambda entries: entries["__metadata__"].update({name: text})))
    assert refused is not None
    assert len(refused) < 500


@pytest.mark.parametrize("name", [n for n in Header(kind="round", study="", party="a").texts() if n != "fgm"])
def test_a_header_that_lacks_a_field_is_refused(name):
    assert refusal(rewritten(encoded(), lambda entries: entries["__metadata__"].pop(name))) is not None


def test_no_type_is_taken_that_is_not_registered():
    def named(entries):
        text = entries["__metadata__"]["fedgram"]
        entries["__metadata__"]["fedgram"] = text.replace('"message":"moments"', '"message":"os.system"')

    assert "'os.system' is not registered" in refusal(resealed(rewritten(encoded(), named)))


def test_a_small_file_cannot_claim_much_memory(tmp_path):
    data, path = encoded(), tmp_path / "north.fgm"
    length = 1 << 40

    def longer(entries):
        entries["payload/gram"]["shape"] = [length]
        entries["payload/gram"]["data_offsets"] = [0, 8 * length]

    hollow = b'{"__metadata__":{"fgm":"1","x":"' + b"[]," * 5_000_000 + b'"}}'
    for claimed in (
        rewritten(data, longer),
        length.to_bytes(8, "little") + data[8:],
        len(hollow).to_bytes(8, "little") + hollow,
    ):
        path.write_bytes(claimed)
        tracemalloc.start()
        with pytest.raises(RefusedMessage, match="north.fgm refused"):
            fgm.read(path)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 3 * len(claimed) + 2**20


def test_a_file_that_is_too_large_is_not_even_read(tmp_path):
    path = tmp_path / "large.fgm"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(RefusedMessage, match="expected at most 8,589,934,592 bytes, got 8,589,934,593"):
        fgm.read(path)
