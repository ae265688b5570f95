"""A corrected summary: the difference to the earlier file is the sum over the rows that have come or gone."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Skipped, tell
from fedgram.data.own import csvfiles
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import Party, summarize
from fedgram.exchange.rounds.round_messages import answer
from fedgram.exchange.rounds.round_server import advance
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Record, _difference, record_path, recording
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from support import stores
from support.campaign import examples
from support.exchange import TEXT, table

STUDY = Study.parse(TEXT)
LOOSE = replace(STUDY, minimum_group=0)
pytestmark = pytest.mark.filterwarnings("ignore:no record yet")


@pytest.fixture
def send(tmp_path):
    """Return a function that summarizes lines of a table at a party that keeps its record."""

    def sent(lines, study=STUDY, *, records=True, on_bad="refuse"):
        path = tmp_path / "north.csv"
        path.write_text("\n".join(lines) + "\n")
        kept = tmp_path if records else None
        return fgm.read(summarize(study, path, Party("north"), records=kept, on_bad=on_bad))

    return sent


@pytest.fixture(scope="module")
def lines():
    return table(3, 200).splitlines()


def with_age(line, age):
    """Return a patient with another age; the table's columns are in the study's order, but for the ID in front."""
    cells = line.split(",")
    return ",".join([cells[0], str(age), *cells[2:]])


def test_the_difference_of_two_files_is_a_row(send, lines):
    assert lines[0].split(",")[1] == "age"
    old = send(lines, LOOSE, records=False).payload
    new = send(lines[:-1], LOOSE, records=False).payload
    sums = (old.cross - new.cross).sum(axis=1)
    found = dict(zip(LOOSE.sent, sums, strict=True))
    cells = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    column = LOOSE.columns["age"]
    assert f"{column.centre + column.half * found['age']:.0f}" == cells["age"], "digit for digit"
    assert [place for place in range(2) if (old.counts - new.counts)[place]] == [
        STUDY.classes.index(cells["diagnosis"])
    ]
    send(lines)
    with pytest.raises(InvalidData, match="got 1 sample: the difference of the two files would show") as caught:
        send(lines[:-1])
    assert tell(caught.value) == "minimum_group: the difference to an earlier summary would show too few samples"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1], "got 1 sample:"),
        (lambda lines: lines[:-2], "got 2 samples:"),
        (lambda lines: [*lines, lines[7]], "got 1 sample:"),
        (lambda lines: [*lines[:9], with_age(lines[9], 77), *lines[10:]], "got 2 samples:"),
    ],
    ids=["one left out", "two left out", "one twice", "one corrected"],
)
def test_few_changed_rows_are_refused(send, lines, change, words):
    send(lines)
    with pytest.raises(InvalidData, match=words):
        send(change(lines))
    send(lines)  # what was sent already tells nothing new


def test_a_lone_level_among_many_changed_rows_is_refused(send, lines):
    """Twenty ages are corrected, and a person leaves who does not say whether they smoke: X'X has that row alone."""
    assert lines[0].split(",")[4] == "smoker"
    known = [place for place, line in enumerate(lines) if place and ",," not in line]
    lone = next(place for place, line in enumerate(lines) if line.split(",")[4] == "" and ",,," not in line)
    send(lines)
    changed = [with_age(line, 33) if place in known[:20] else line for place, line in enumerate(lines)]
    with pytest.raises(InvalidData, match=r"and among these smoker missing \(1 sample\)"):
        send([line for place, line in enumerate(changed) if place != lone])


def test_many_changed_rows_and_the_same_rows_pass(send, lines, tmp_path):
    first = send(lines)
    record = record_path(tmp_path, STUDY.features, "north")
    before = record.read_bytes()
    assert send([lines[0], *reversed(lines[1:])]).payload.n == first.payload.n
    assert record.read_bytes() == before, "the same rows, in another order"
    send(lines[:101])
    assert len(record.read_bytes()) > len(before)
    with pytest.raises(InvalidData, match="got 1 sample:"):
        send(lines[:-1])  # compared with the first summary, not only with the last
    send(lines)


def test_a_block_of_which_no_row_is_left_is_not_an_error(send, lines, tmp_path, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 256)
    with pytest.warns(Skipped, match="30 bad rows"):
        send([*lines[:50], *[with_age(line, "?") for line in lines[50:80]], *lines[80:]], on_bad="skip")
    with pytest.raises(InvalidData, match="come or gone"):
        send([*lines[:50], *lines[81:]])
    with pytest.raises(InvalidData, match="without them nothing is left"):
        send([lines[0], *[with_age(line, "?") for line in lines[1:]]])


def test_the_record_is_private_and_quotes_no_cell(send, lines, tmp_path):
    file = send(lines)
    [path] = tmp_path.glob("*.answers")
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600
    rows = len(lines) - 1
    assert path.stat().st_size < 24 * rows + 2000
    assert path.read_bytes()[-16:] not in file.data
    other = tmp_path / "elsewhere"
    other.mkdir()
    csv = tmp_path / "north.csv"
    with pytest.warns(Doubtful, match="no record yet of what 'north' has sent"):
        summarize(STUDY, csv, Party("north"), records=other)
    [again] = other.glob("*.answers")
    assert again.read_bytes()[-24 * rows :] != path.read_bytes()[-24 * rows :], "each record has a key of its own"


def test_an_answer_to_a_round_keeps_the_rule_too(tmp_path):
    """A table that no summary could be made of is not used to answer a round either."""
    study = replace(stores.STUDY, minimum_group=3)
    store = stores.store_of(tmp_path / "store", "north", "south", study=study)
    asked = advance(store, "fedlogit", {"rounds": 2})
    request, party = fgm.read(asked.data), stores.client("north", study=study)
    assert answer(study, request, party).number == 1
    x = party.x.copy()
    x[:, study.sent.index("sex=M")] = np.arange(len(x)) == 3
    with pytest.raises(InvalidData, match=r"minimum_group: .*sex=M \(1 sample\)"):
        answer(study, request, replace(party, x=x))


def test_an_answer_is_compared_with_the_summary(send, lines, tmp_path):
    send(lines)
    path = tmp_path / "north.csv"
    path.write_text("\n".join(lines[:-1]) + "\n")
    party = read_client(STUDY, "north", path)
    side = ClientSide(party, classes=STUDY.classes, columns=STUDY.sent)
    record_file = record_path(tmp_path, STUDY.features, "north")
    with recording(record_file, STUDY.features, "north") as record:
        assert record.changed(record.digests(side)) == 1, "the same digests, whether read in blocks or held"


def test_a_study_without_the_rule_keeps_no_record(send, lines, tmp_path):
    send(lines, LOOSE)
    assert not list(tmp_path.glob("*.answers"))


def test_a_refused_table_is_not_recorded(send, lines, tmp_path):
    alone = [lines[0], *(line for line in lines[1:] if line.split(",")[4]), "P,50,4000,F,,ill"]
    with pytest.raises(InvalidData, match="smoker missing"):
        send(alone)
    send(alone[:-1])
    with pytest.raises(FedgramError, match="got 1 sample"):
        send(alone[:-2])


def test_blocks_do_not_change_the_record(send, lines, monkeypatch):
    send(lines)
    monkeypatch.setattr(csvfiles, "BYTES", 512)
    send(lines)
    with pytest.raises(InvalidData, match="got 1 sample:"):
        send(lines[:-1])


def test_the_command_line_refuses_it(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TEXT)
    runner = CliRunner()
    for rows, code in ((lines, 0), (lines, 0), (lines[:-1], 2)):
        (tmp_path / "north.csv").write_text("\n".join(rows) + "\n")
        done = runner.invoke(app, ["summarize", "study.toml", "north.csv", "--party", "north", "--force"])
        assert (0 if done.exception is None else 2) == code, done.output
    assert fgm.read("north.fgm").header.samples == 200


def test_a_file_that_is_not_written_is_not_recorded(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TEXT)
    (tmp_path / "north.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "notes.txt").write_text("do not lose this\n")
    command = ["summarize", "study.toml", "north.csv", "--party", "north"]
    refused = CliRunner().invoke(app, [*command, "--out", "notes.txt"])
    assert "--force" in str(refused.exception)
    assert not list(tmp_path.glob("*.answers"))
    assert (tmp_path / "notes.txt").read_text() == "do not lose this\n"
    assert CliRunner().invoke(app, command).exception is None
    assert list(tmp_path.glob("*.answers"))


@examples(60)
@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_the_difference_counts_rows_as_often_as_they_occur(old, new):
    def rows(values):
        return np.array(values, dtype="<u8").reshape(-1, 1).view(np.uint8).reshape(-1, 8)

    found, more = _difference(rows(old), rows(new))
    got = dict(zip(found.copy().view("<u8").ravel().tolist(), more.tolist(), strict=True))
    assert got == {k: new.count(k) - old.count(k) for k in range(6) if new.count(k) != old.count(k)}


@pytest.mark.parametrize("place", range(4))
def test_digests_tell_rows_apart_that_differ_in_one_cell(place):
    record, rng = Record("study", "north"), np.random.default_rng(0)
    x = np.tile(rng.choice([0.0, 1.0], 4), (3000, 1))
    x[:, place] = np.arange(3000) - 1500.0  # whole numbers, most of whose bits are zero
    for values in (x, x * 0.1, np.asfortranarray(x)):
        digests = record.digests_of(values, np.zeros(3000))
        assert len(np.unique(digests, axis=0)) == 3000
    assert (record.digests_of(x, np.ones(3000)) != record.digests_of(x, np.zeros(3000))).any(axis=1).all()
