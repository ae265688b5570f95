"""The ledger's rule against linear algebra, and the ledger's file against kills."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.secure.witness_ledger import StoredLedger, WitnessLedger, allowed, smallest_class
from support.campaign import examples, size
from support.singled_out import singled_out


def members(row):
    return frozenset((str(party), "training", "1") for party in np.flatnonzero(row))


def judged(families, least):
    return np.array([allowed([members(row) for row in family], least) for family in families])


def subsets(parties):
    return (np.arange(1, 2**parties)[:, None] >> np.arange(parties)) & 1


@pytest.mark.parametrize("least", [2, 3])
def test_all_families_of_sets_over_four_parties(least):
    chosen = (np.arange(2**15)[:, None] >> np.arange(15)) & 1
    families = chosen[:, :, None] * subsets(4)[None]
    fine = judged(families, least)
    assert fine.any()
    assert not (fine & singled_out(families, least)).any()


@pytest.mark.parametrize("least", [2, 3])
def test_all_of_up_to_three_sets_over_six_parties(least):
    rows = np.concatenate([np.zeros((1, 6), dtype=np.int64), subsets(6)])
    families = rows[np.array(list(combinations(range(64), 3)))]
    fine = judged(families, least)
    assert fine.sum() > 10
    assert not (fine & singled_out(families, least)).any()


def test_random_families_over_seven_parties():
    rng = np.random.default_rng(0)
    unions = []  # of groups, so that some are allowed
    for _ in range(size(2000)):
        groups = rng.integers(0, rng.integers(1, 5), size=7)
        unions.append((rng.random((4, 5))[:, groups] < 0.5).astype(np.int64))
    families = np.concatenate([rng.integers(0, 2, size=(size(2000), 4, 7)), unions])
    for least in (2, 3):
        fine = judged(families, least)
        assert fine.sum() > 5
        assert not (fine & singled_out(families, least)).any()


def test_the_algebra_finds_what_is_singled_out():
    """The check that the rule is compared with is not empty: {all} and {all but one} show a party, halves do not."""
    everyone = np.ones(6)
    assert singled_out([[everyone, [1, 1, 1, 1, 1, 0]], [everyone, [1, 1, 1, 0, 0, 0]]], 3).tolist() == [True, False]
    # None of the pairs shows a party, all three sets together do.
    three = [[1] * 7, [1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0]]
    assert singled_out([three], 3).tolist() == [True]
    for pair in combinations(three, 2):
        assert allowed([members(row) for row in pair], 3)
    assert not allowed([members(row) for row in three], 3)


@given(st.lists(st.frozensets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=5), st.integers(2, 4))
@examples(100)
def test_a_ledger_never_holds_sets_that_the_rule_forbids(sets, least):
    ledger = WitnessLedger(least)
    for parties in sets:
        chosen = frozenset((party, "training", "1") for party in parties)
        before = ledger.sets
        try:
            ledger.admit(chosen)
        except RefusedMessage:
            assert ledger.sets == before
            assert not allowed([*before, chosen], least)
        else:
            ledger.admit(chosen)  # again
            assert ledger.sets == (before if chosen in before else [*before, chosen])
    held = ledger.sets
    assert not held or smallest_class(held) >= least


def some(*names, version="1", rows="training"):
    return frozenset((name, rows, version) for name in names)


def test_all_then_all_but_one_is_refused_whatever_the_round():
    ledger = WitnessLedger(3)
    ledger.admit(some(*"abcdef"))
    with pytest.raises(RefusedMessage, match="at least 3 in each group that sums tell apart, got 1"):
        ledger.admit(some(*"abcde"))
    with pytest.raises(RefusedMessage, match="got 2"):
        ledger.admit(some(*"abcd"))
    ledger.admit(some(*"abc"))
    with pytest.raises(RefusedMessage, match="got 1"):
        ledger.admit(some("a", "d", "x", "y", "z"))


def test_a_party_comes_with_one_version_of_its_data():
    ledger = WitnessLedger(3)
    ledger.admit(some(*"abc"))
    with pytest.raises(
        RefusedMessage, match="version of the training rows of 'a': expected the one in earlier answers"
    ):
        ledger.admit(some(*"abc", version="2"))
    ledger.admit(some(*"abcd", version="2", rows="test"))
    with pytest.raises(RefusedMessage, match="expected each once"):
        ledger.admit(some(*"xyz") | some("x", version="2"))


def test_two_chains_that_differ_are_not_both_followed():
    first, second, other = some(*"abc"), some(*"defg"), some(*"hij")
    ledger = WitnessLedger(3)
    ledger.follow([first, second])
    ledger.follow([first])  # an earlier part may be asked for again
    with pytest.raises(RefusedMessage, match="expected one that continues the 2 sets"):
        ledger.follow([first, other])
    with pytest.raises(RefusedMessage, match="expected one that continues"):
        ledger.follow([first, second, second])
    ledger.follow([first, second, other])
    assert ledger.sets == [first, second, other]
    with pytest.raises(RefusedMessage, match="at least 3"):
        ledger.follow([first, second, other, some("k"), some(*"lmn")])
    assert ledger.sets == [first, second, other]


def test_a_file_keeps_the_sets_for_the_next_process(tmp_path):
    path = tmp_path / "w.db"
    ledger = StoredLedger.begin(path, "study", 3)
    ledger.admit(some(*"abcdef"))
    ledger = StoredLedger(path, "study")
    with pytest.raises(RefusedMessage, match="at least 3"):
        ledger.admit(some(*"abcde"))


def test_a_missing_ledger_is_not_begun_by_itself(tmp_path):
    path = tmp_path / "w.db"
    with pytest.raises(InvalidData, match="got none; a witness without its whole ledger needs new keys"):
        StoredLedger(path, "study")
    StoredLedger.begin(path, "study", 3)
    with pytest.raises(InvalidData, match="expected a new file"):
        StoredLedger.begin(path, "study", 3)
    with pytest.raises(InvalidData, match="expected the ledger of study other"):
        StoredLedger(path, "other")


@pytest.mark.parametrize("damage", [b"", b"text", None, "missing"])
def test_a_damaged_ledger_is_refused(tmp_path, damage):
    path = tmp_path / "w.db"
    ledger = StoredLedger.begin(path, "study", 3)
    ledger.admit(some(*"abc"))
    ledger.admit(some(*"def"))
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        with closing(sqlite3.connect(path)) as found, found:
            found.execute(
                "DELETE FROM answered WHERE number = 1"
                if damage == "missing"
                else "UPDATE answered SET members = '[1]' WHERE number = 1"
            )
    with pytest.raises(InvalidData, match="got one that cannot be used"):
        StoredLedger(path, "study").admit(some(*"ghi"))


WORKER = """
import sys
from pathlib import Path
from fedgram.secure.witness_ledger import StoredLedger
ledger = StoredLedger(Path(sys.argv[1]), "study")
for number in range(int(sys.argv[2]), 10**6):
    ledger.admit(frozenset((f"{number}{letter}", "training", "1") for letter in "abc"))
    print(number, flush=True)
"""


@pytest.mark.campaign
def test_a_killed_witness_has_kept_all_that_it_has_answered(tmp_path):
    path, last = tmp_path / "w.db", 0
    StoredLedger.begin(path, "study", 3)
    for kill in range(size(4)):
        process = subprocess.Popen([sys.executable, "-c", WORKER, path, str(last)], stdout=subprocess.PIPE, text=True)
        for _ in range(3 + kill % 3):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        told = int(rest[-1]) if rest else told
        ledger = StoredLedger(path, "study")
        assert len(ledger.sets) in (told + 1, told + 2)
        last = len(ledger.sets)
