"""A change reads only new entries; after a crash or a foreign edit everything is checked."""

from collections import Counter

import pytest

from fedgram.core.hashing import hash_text
from fedgram.exchange.store import saved_total
from fedgram.exchange.store.index import Index
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems
from support.stores import STUDY, summary

JOINS = 40


@pytest.fixture
def work(monkeypatch):
    """Count the rows that are read and the texts that are hashed."""
    done = Counter()
    rows = Index._rows

    def read(index, query, *values):
        found = rows(index, query, *values)
        done["rows"] += len(found)
        return found

    def hashed(text):
        done["hashes"] += 1
        return hash_text(text)

    monkeypatch.setattr(Index, "_rows", read)
    monkeypatch.setattr(saved_total, "hash_text", hashed)
    monkeypatch.setattr("fedgram.exchange.store.ledger.hash_text", hashed)
    return done


def test_the_fortieth_join_takes_no_more_work_than_the_fourth(tmp_path, work):
    took = []
    for number in range(JOINS):
        work.clear()
        with Store(tmp_path, study=STUDY) as store:  # as if each were a command of its own
            [found] = store.join(summary(f"party-{number}", n=6))
            assert found.outcome == "joined"
        took.append(dict(work))
    assert took[JOINS - 1] == took[3]
    store = Store(tmp_path)
    assert problems(store) == []
    check_total(store)


def test_publishing_leaves_the_checkpoint_good(tmp_path, work):
    store = Store(tmp_path, study=STUDY)
    store.join(*(summary(f"party-{number}") for number in range(JOINS)))
    store.publish("afl")
    work.clear()
    store.join(summary("late"))
    assert work["hashes"] <= 3
    assert work["rows"] <= 16  # of 42 entries and 41 contributions


def test_after_a_crash_all_is_checked(tmp_path, work):
    store = Store(tmp_path, study=STUDY)
    store.join(*(summary(f"party-{number}") for number in range(JOINS)))
    older = {name: (tmp_path / name).read_bytes() for name in (saved_total.TOTAL, saved_total.CHECKED)}
    store.join(summary("late"))
    for name, content in older.items():  # as they were before the last change
        (tmp_path / name).write_bytes(content)
    work.clear()
    assert Store(tmp_path).total().n == 40 * (JOINS + 1)
    assert work["hashes"] > JOINS


@pytest.mark.parametrize("content", [b"", b"{", b"5", b'{"number": 1}'])
def test_a_damaged_checkpoint_is_not_believed(tmp_path, work, content):
    store = Store(tmp_path, study=STUDY)
    store.join(*(summary(f"party-{number}") for number in range(5)))
    (tmp_path / saved_total.CHECKED).write_bytes(content)
    work.clear()
    assert Store(tmp_path).total().n == 200
    assert work["hashes"] > 5
