"""The .fgm file: what it says, who signed it, and that it can be written in one way only."""

import json
import os
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import FedgramError, InvalidData, Mismatch, RefusedMessage
from fedgram.exchange import files, header
from fedgram.exchange.header import CIRCUMSTANCES, KINDS, Header, is_time
from fedgram.exchange.opening import MOST_BYTES, is_exchanged
from support.exchange import key_of, keyed_study, refusal, summary, tables

KEY = key_of(0)
TIME = "2026-11-17T09:00:00Z"


def moments(n=12, columns=("age", "bp", "sex=M")):
    x = np.arange(n * len(columns), dtype=float).reshape(n, -1) % 7
    return fg.Moments.of(x, np.arange(n) % 2, classes=["ill", "well"], columns=columns)


def encoded(kind="summary", payload=None, **options):
    payload = moments() if payload is None else payload
    known = {"samples": payload.n, "columns": payload.kind.columns} if isinstance(payload, fg.Moments) else {}
    return files.encode(kind, payload, **{"study": "0f3a", "party": "north", "created": TIME} | known | options)


def rewritten(data, change, *, body=b""):
    """Return a file whose safetensors header was changed, as somebody would who knows no rules."""
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    change(entries)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :] + body


def test_a_file_gives_back_what_was_put_in():
    file = files.read(encoded(key=KEY))
    assert file.payload == moments()
    assert file.signer == KEY.public
    file.verify(KEY.public)
    assert (file.header.kind, file.header.study, file.header.party) == ("summary", "0f3a", "north")
    assert (file.header.samples, file.header.columns) == (12, ("age", "bp", "sex=M"))
    assert (file.header.created, file.header.software) == (TIME, f"fedgram {fg.__version__}")
    assert file.size == len(encoded(key=KEY))
    assert file.study is None


def test_the_study_can_be_part_of_a_file(tmp_path):
    study = keyed_study()
    file = summary(study, tables(tmp_path)["north"])
    assert file.study == study
    assert file.header.study == study.fingerprint
    assert file.payload.kind.features == study.features


def test_anyone_with_the_safetensors_library_can_open_one(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    path = tmp_path / "north.fgm"
    files.write(path, encoded(key=KEY))
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()
        assert np.array_equal(file.get_tensor("payload/counts"), [6, 6])
        assert file.get_tensor("payload/gram").shape == (6,)
    assert metadata["kind"] == "summary"
    assert metadata["party"] == "north"
    assert metadata["samples"] == "12"
    assert json.loads(metadata["columns"]) == ["age", "bp", "sex=M"]
    assert metadata["signer"] == KEY.public.text
    assert metadata["digest"] == files.read(path).digest


def test_the_same_content_has_the_same_digest_whenever_and_by_whomever_it_was_signed(monkeypatch):
    first = files.read(encoded(key=KEY))
    later = files.read(encoded(key=key_of(1), created="2031-01-01T00:00:00Z"))
    monkeypatch.setattr(fg, "__version__", "9.9")
    assert first.digest == later.digest == files.read(encoded()).digest
    others = [
        encoded(party="south"),
        encoded(study="0f3b"),
        encoded("combined"),
        encoded(payload=moments(14)),
        encoded(payload=moments(columns=("age", "bp", "sex=F"))),
    ]
    digests = {files.read(data).digest for data in others}
    assert len(digests) == len(others)
    assert first.digest not in digests


def test_the_same_content_and_time_give_the_same_bytes():
    assert encoded(key=KEY) == encoded(key=KEY)


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
                files.read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(RefusedMessage, match="not whole"):
        files.read(path)


def resealed(data, change):
    """Return a file whose header fields were changed by somebody who knows how seal and digest are made."""
    metadata, shapes = files.parse(data)
    said, contents = Header.of_texts(metadata), [data[8 + int.from_bytes(data[:8], "little") :]]
    said = replace(said, **change)
    said = replace(said, digest=files._digest(said, metadata["fedgram"], shapes, contents))
    seal = files._seal(said, metadata["fedgram"], shapes)
    return files._head(said, metadata["fedgram"], shapes, seal) + contents[0]


@pytest.mark.parametrize(
    "change", [{"party": "south"}, {"study": "0f3b"}, {"kind": "combined"}, {"created": "2020-01-01T00:00:00Z"}]
)
def test_a_signature_covers_the_whole_header(change):
    file = files.read(resealed(encoded(key=KEY), change))  # whoever forges can count hashes, too
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        file.verify()


def test_a_signature_of_other_content_or_by_another_key_does_not_fit():
    other = files.read(encoded(payload=moments(14), key=KEY)).header
    forged = files.read(resealed(encoded(key=KEY), {"signature": other.signature}))
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        forged.verify(KEY.public)
    stolen = files.read(resealed(encoded(key=KEY), {"signer": key_of(1).public.text}))
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        stolen.verify()


def test_someone_elses_name_is_refused_by_the_key_that_it_is_bound_to():
    with pytest.raises(RefusedMessage, match="'north' has the key .* someone else wrote it"):
        files.read(encoded(key=key_of(1))).verify(KEY.public)


def test_an_unsigned_file_says_so_and_does_not_pass_for_a_signed_one():
    file = files.read(encoded())
    assert file.signer is None
    for expected in (None, KEY.public):
        with pytest.raises(RefusedMessage, match="not signed"):
            file.verify(expected)
    assert "signature" in refusal(resealed(encoded(key=KEY), {"signer": ""}))
    assert "signature" in refusal(resealed(encoded(key=KEY), {"signature": ""}))


def test_a_newer_schema_is_refused_by_name_with_the_remedy():
    def newer(entries):
        entries["__metadata__"]["fgm"] = "2"
        entries["__metadata__"]["what came later"] = "yes"

    assert "schema '2', and this version of fedgram reads schema 1: update fedgram" in refusal(
        rewritten(encoded(), newer)
    )


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


def test_what_the_header_says_of_moments_must_be_so(tmp_path):
    assert "its header has 13 samples" in refusal(encoded(samples=13))
    assert "of 2 columns" in refusal(encoded(columns=("age", "bp")))
    study = keyed_study()
    north = summary(study, tables(tmp_path)["north"]).payload
    other = replace(study, minimum_samples=11)
    assert "not moments of what study 'walks' sends" in refusal(encoded(payload=north, study=other))
    assert "its header names" in refusal(resealed(encoded(payload=north, study=study), {"study": "0f3a"}))


def test_the_payload_gets_every_check_of_what_a_stranger_sends():
    impossible = fg.Moments(
        moments().kind, sums=np.full((2, 3), 1e3), counts=np.array([6, 6]), packed=moments().packed.copy()
    )
    assert "refused" in refusal(encoded(payload=impossible))
    assert "nan" in refusal(encoded("receipt", {"x": np.array([np.nan])}))
    with pytest.raises(Mismatch, match="holds a dict, not a Moments"):
        files.read(encoded("receipt", {"x": 1})).holding(fg.Moments)
    with pytest.raises(Mismatch, match="is a receipt file, and a summary or combined file is wanted"):
        files.read(encoded("receipt", {"x": 1})).of_kind("summary", "combined")


def test_no_type_is_taken_that_is_not_registered():
    def named(entries):
        text = entries["__metadata__"]["fedgram"]
        entries["__metadata__"]["fedgram"] = text.replace('"message":"moments"', '"message":"os.system"')

    data = rewritten(encoded(), named)
    metadata, shapes = files.parse(data)
    said, body = Header.of_texts(metadata), data[8 + int.from_bytes(data[:8], "little") :]
    said = replace(said, digest=files._digest(said, metadata["fedgram"], shapes, [body]))
    forged = files._head(said, metadata["fedgram"], shapes, files._seal(said, metadata["fedgram"], shapes)) + body
    assert "'os.system' is not registered" in refusal(forged)


def test_every_kind_has_a_signature_of_its_own():
    signatures = {files.read(encoded(kind, {"x": 1}, key=KEY)).header.signature for kind in KINDS}
    assert len(signatures) == len(KINDS)


def test_a_file_without_arrays_and_one_with_unicode_names():
    for party in ("Straße 7", "北", "a" * 200, "O'Neil & <Söhne>"):
        file = files.read(encoded("certificate", {"said": "ok"}, party=party, key=KEY))
        assert file.header.party == party
        file.verify(KEY.public)


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
            files.read(path)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 3 * len(claimed) + 2**20


def test_a_file_that_is_too_large_is_not_even_read(tmp_path):
    path = tmp_path / "large.fgm"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(RefusedMessage, match="more than the"):
        files.read(path)


def test_what_cannot_be_read_is_one_line(tmp_path):
    for path in (tmp_path / "none.fgm", tmp_path):
        with pytest.raises(RefusedMessage, match="cannot read it"):
            files.read(path)
        assert not is_exchanged(path)


def test_files_of_other_kinds_are_told_apart(tmp_path):
    path = tmp_path / "fit"
    path.write_bytes(moments().to_bytes())
    assert not is_exchanged(path)
    with pytest.raises(RefusedMessage, match="not a file that fedgram exchanges"):
        files.read(path)
    path.write_bytes(encoded())
    assert is_exchanged(path)


def test_a_full_or_read_only_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "north.fgm"
    files.write(path, encoded())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InvalidData, match="cannot write .*north.fgm: No space left"):
        files.write(path, encoded(key=KEY))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["north.fgm"]
    with pytest.raises(InvalidData, match="cannot write"):
        files.write("/proc/north.fgm", encoded())


def test_clocks_that_go_backwards_change_nothing(monkeypatch):
    digests = set()
    for time in ("2026-11-17T09:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        monkeypatch.setattr(files, "now", lambda time=time: time)
        file = files.read(encoded(created=None, key=KEY))
        assert file.header.created == time
        file.verify(KEY.public)
        digests.add(file.digest)
    assert len(digests) == 1
    assert is_time(header.now())


def test_only_the_circumstances_are_not_in_the_digest():
    assert set(CIRCUMSTANCES) == {"digest", "created", "software", "signer", "signature"}
    assert re.fullmatch("[0-9a-f]{64}", files.read(encoded()).digest)
