"""The .fgm file: its content, its signer, and its unique form."""

import json
import os
import re
import unicodedata
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load

import fedgram as fg
from fedgram.core.errors import InvalidData, Mismatch, RefusedMessage
from fedgram.exchange.format import fgm, header
from fedgram.exchange.format.fgm import is_exchanged
from fedgram.exchange.format.header import CIRCUMSTANCES, KINDS, is_time
from support.campaign import examples
from support.exchange import key_of, keyed_study, refusal, summary, tables
from support.fgm import KEY, TIME, encoded, moments, resealed


def test_a_file_gives_back_what_was_put_in():
    file = fgm.read(encoded(key=KEY))
    assert file.payload == moments()
    assert file.signer == KEY.public
    file.verify(KEY.public)
    assert (file.header.kind, file.header.study, file.header.party) == ("summary", "0f3a" * 16, "north")
    assert (file.header.samples, file.header.columns) == (12, ("age", "bp", "sex=M"))
    assert (file.header.created, file.header.software) == (TIME, f"fedgram {fg.__version__}")
    assert file.size == len(encoded(key=KEY))
    assert file.study is None


def test_the_study_can_be_part_of_a_file(tmp_path):
    study = keyed_study()
    file = summary(study, tables(tmp_path)["north"])
    assert file.study == study
    assert file.header.study == study.fingerprint
    assert file.payload.schema.features == study.features


def test_anyone_with_the_safetensors_library_can_open_one(tmp_path):
    path = tmp_path / "north.fgm"
    fgm.write(path, encoded(key=KEY))
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
        assert np.array_equal(file.get_tensor("payload/counts"), [6, 6])
        assert file.get_tensor("payload/gram").shape == (6,)
    assert metadata["kind"] == "summary"
    assert metadata["party"] == "north"
    assert metadata["samples"] == "12"
    assert json.loads(metadata["columns"]) == ["age", "bp", "sex=M"]
    assert metadata["signer"] == KEY.public.text
    assert metadata["digest"] == fgm.read(path).digest


def test_the_same_content_has_the_same_digest_whenever_and_by_whomever_it_was_signed(monkeypatch):
    first = fgm.read(encoded(key=KEY))
    later = fgm.read(encoded(key=key_of(1), created="2031-01-01T00:00:00Z"))
    monkeypatch.setattr(fg, "__version__", "9.9")
    assert first.digest == later.digest == fgm.read(encoded()).digest
    others = [
        encoded(party="south"),
        encoded(study="0f3b" * 16),
        encoded("combined"),
        encoded(payload=moments(14)),
        encoded(payload=moments(columns=("age", "bp", "sex=F"))),
    ]
    digests = {fgm.read(data).digest for data in others}
    assert len(digests) == len(others)
    assert first.digest not in digests


NAMES = st.text(max_size=40).map(lambda text: unicodedata.normalize("NFC", text).strip()).filter(str.isprintable)
TIMES = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1))


@examples(50)
@given(NAMES.filter(bool), st.lists(st.text(max_size=20), max_size=5, unique=True), TIMES, st.sampled_from(KINDS))
def test_any_header_comes_back_as_it_was(party, columns, time, kind):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ")
    data = encoded(kind, {"x": np.arange(3.0)}, party=party, columns=tuple(columns), created=created, key=KEY)
    file = fgm.read(data)
    file.verify(KEY.public)
    assert (file.header.party, file.header.columns, file.header.created) == (party, tuple(columns), created)
    assert np.array_equal(load(data)["payload/x"], [0.0, 1.0, 2.0])  # by the library


def test_the_same_content_and_time_give_the_same_bytes():
    assert encoded(key=KEY) == encoded(key=KEY)


def test_what_the_header_says_of_moments_must_be_so(tmp_path):
    assert "its header has 13 samples" in refusal(encoded(samples=13))
    assert "of 2 columns" in refusal(encoded(columns=("age", "bp")))
    study = keyed_study()
    north = summary(study, tables(tmp_path)["north"]).payload
    other = replace(study, minimum_samples=11)
    assert "expected moments of the columns of study 'walks'" in refusal(encoded(payload=north, study=other))
    assert "its header names" in refusal(resealed(encoded(payload=north, study=study), study="0f3a" * 16))


def test_the_payload_gets_every_check_of_what_a_stranger_sends():
    impossible = fg.Moments(
        moments().schema, sums=np.full((2, 3), 1e3), counts=np.array([6, 6]), packed=moments().packed.copy()
    )
    assert "refused" in refusal(encoded(payload=impossible))
    assert "nan" in refusal(encoded("receipt", {"x": np.array([np.nan])}))
    with pytest.raises(Mismatch, match="expected a Moments in it, got a dict"):
        fgm.read(encoded("receipt", {"x": 1})).holding(fg.Moments)
    with pytest.raises(Mismatch, match="expected a summary or combined file, got a receipt file"):
        fgm.read(encoded("receipt", {"x": 1})).of_kind("summary", "combined")


def test_every_kind_has_a_signature_of_its_own():
    signatures = {fgm.read(encoded(kind, {"x": 1}, key=KEY)).header.signature for kind in KINDS}
    assert len(signatures) == len(KINDS)


def test_a_file_without_arrays_and_one_with_unicode_names():
    for party in ("Straße 7", "北", "a" * 200, "O'Neil & <Söhne>"):
        file = fgm.read(encoded("certificate", {"said": "ok"}, party=party, key=KEY))
        assert file.header.party == party
        file.verify(KEY.public)


def test_what_cannot_be_read_is_one_line(tmp_path):
    for path in (tmp_path / "none.fgm", tmp_path):
        with pytest.raises(RefusedMessage, match="cannot read it"):
            fgm.read(path)
        assert not is_exchanged(path)


def test_files_of_other_kinds_are_told_apart(tmp_path):
    path = tmp_path / "fit"
    path.write_bytes(moments().to_bytes())
    assert not is_exchanged(path)
    with pytest.raises(RefusedMessage, match="not a file that fedgram exchanges"):
        fgm.read(path)
    path.write_bytes(encoded())
    assert is_exchanged(path)


def test_a_full_or_read_only_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "north.fgm"
    fgm.write(path, encoded())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InvalidData, match="cannot write .*north.fgm: No space left"):
        fgm.write(path, encoded(key=KEY))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["north.fgm"]
    with pytest.raises(InvalidData, match="cannot write"):
        fgm.write("/proc/north.fgm", encoded())


def test_clocks_that_go_backwards_change_nothing(monkeypatch):
    digests = set()
    for time in ("2026-11-17T09:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        monkeypatch.setattr(fgm, "now", lambda time=time: time)
        file = fgm.read(encoded(created=None, key=KEY))
        assert file.header.created == time
        file.verify(KEY.public)
        digests.add(file.digest)
    assert len(digests) == 1
    assert is_time(header.now())


def test_only_the_circumstances_are_not_in_the_digest():
    assert set(CIRCUMSTANCES) == {"digest", "created", "software", "signer", "signature"}
    assert re.fullmatch("[0-9a-f]{64}", fgm.read(encoded()).digest)
