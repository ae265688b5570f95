"""One hostile file does not affect the others: their place in the total, or the machine's memory."""

import json
import os
import stat
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core import container
from fedgram.exchange.format import fgm
from fedgram.exchange.store.combined import MOST_LEAVES, Combined
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems
from support.fgm import sealed
from support.stores import STUDY, store_of, summary


def break_at(monkeypatch, place):
    """Raise an error of fedgram's own while a given file is checked or joined."""
    module, name = place
    real = getattr(module, name)

    def broken(*arguments, **options):
        if any("south" in repr(getattr(each, "header", getattr(each, "party", ""))) for each in arguments):
            raise TypeError("Object of type Study is not JSON serializable")
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, broken)


def places():
    from fedgram.exchange.store import admission, index, study_store

    return [(fgm, "_taken_apart"), (admission, "check_alone"), (study_store, "marks_of"), (index.Index, "bind")]


@pytest.mark.parametrize("place", places(), ids=lambda place: place[1])
@pytest.mark.parametrize("new", [True, False])
def test_an_error_of_our_own_refuses_one_file(tmp_path, monkeypatch, place, new):
    if not new:
        store_of(tmp_path, "east").index.close()
    calls = []
    if place[1] in ("marks_of", "bind"):  # which do not see the file itself
        real = getattr(*place)

        def broken(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                raise TypeError("Object of type Study is not JSON serializable")
            return real(*arguments)

        monkeypatch.setattr(*place, broken)
    else:
        break_at(monkeypatch, place)
    bad, good = summary("south"), summary("north")
    store = Store(tmp_path, study=STUDY if new else None)
    found = store.join(bad, good)
    assert [each.outcome for each in found] == ["refused", "joined"]
    assert "TypeError (Object of type Study is not JSON serializable)" in found[0].why
    assert "an error in fedgram: please report it" in found[0].why
    monkeypatch.undo()
    assert problems(store) == []  # the refused file has left no half of a change
    check_total(store)
    assert sorted(each.party for each in store.contributions()) == sorted(["north"] if new else ["east", "north"])


def test_ctrl_c_is_no_refusal(tmp_path, monkeypatch):
    from fedgram.exchange.store import study_store

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(study_store, "marks_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, study=STUDY).join(summary("north"))


def test_the_exit_code_says_that_one_was_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.fgm").write_bytes(summary("north"))
    (tmp_path / "bad.fgm").write_bytes(column_named_by_a_study())
    done = CliRunner().invoke(app, ["join", "store", "bad.fgm", "good.fgm"])
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)
    assert "'bad.fgm' refused" in " ".join(done.output.split())
    assert [each.party for each in Store("store").contributions()] == ["north"]


def column_named_by_a_study():
    """Return a summary in whose study a column has the study itself as its name."""
    data = summary("south")
    metadata, shapes = fgm.parse(data)
    tree = json.loads(metadata["fedgram"])
    study = tree["payload"]["dict"]["study"]
    text = json.dumps(study)
    assert '"age"' in text
    tree["payload"]["dict"]["study"] = json.loads(text.replace('"age"', json.dumps(study), 1))
    metadata["fedgram"] = json.dumps(tree, separators=(",", ":"))
    return sealed(metadata, shapes, data[8 + int.from_bytes(data[:8], "little") :])


def combined_of(total, count, monkeypatch):
    """Return a combined file that lists this number of summaries, with any arrays."""
    fields = Combined(total, []).to_fields() | {
        "digests": np.zeros((count, 32), dtype=np.uint8),
        "contents": np.zeros((count, 32), dtype=np.uint8),
        "samples": np.ones(count, dtype=np.int64),
        "created": np.zeros(count, dtype=np.int64),
        "parties": np.frombuffer(b"a\n" * count, dtype=np.uint8),
    }
    monkeypatch.setattr(Combined, "to_fields", lambda _: fields)
    data = fgm.encode("combined", Combined(total, []), study=STUDY, party="a", samples=total.n)
    monkeypatch.undo()
    return data


def test_a_combined_file_takes_a_small_multiple_of_its_size(tmp_path, monkeypatch):
    store = store_of(tmp_path, "north", "south")
    data = combined_of(store.total(), 100_000, monkeypatch)
    tracemalloc.start()
    [found] = store.join(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "expected at most 80, got 100,000" in found.why
    assert peak < 2 * len(data)


@pytest.mark.parametrize("kind", ["summary", "combined", "answer"])
def test_a_file_larger_than_the_study_can_need_is_not_read(tmp_path, kind):
    store = store_of(tmp_path / "store", "north")
    data = store.combine("region") if kind == "combined" else summary("south")
    if kind == "answer":
        data = fgm.encode("answer", fgm.read(data).payload, study=STUDY.fingerprint, party="south")
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    path = tmp_path / "large.fgm"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(1 << 30)
    tracemalloc.start()
    [found] = store.join(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"bytes of a {kind} in this study, got 1,073,741,824" in found.why
    assert peak < container.MOST_HEADER
    assert MOST_LEAVES == 1 << 17  # the bound of a combined file: about 130 MB beside the sums


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_store_is_for_its_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = store_of(tmp_path / "deep" / "store", "north", "south")
        store.remove("south")
        store.publish("afl")
        modes = {
            path: (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
            for path in [store.path, *store.path.rglob("*")]
            if path.name not in (".lock", ".holder")
        }
        assert {path.name for path in modes} >= {"index.sqlite", "index.sqlite-wal", "total.bin", "receipts"}
        assert all(mode == (0o700 if folder else 0o600) for folder, mode in modes.values()), modes
    finally:
        os.umask(before)
