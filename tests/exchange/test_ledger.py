"""A ledger names entries that were changed, taken away or moved."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import Mismatch, StoreError
from fedgram.core.hashing import hash_text
from fedgram.exchange.store.ledger import JOIN, OPEN, Entry, check_head, members, problems

TIME = "2026-03-01T12:00:0{}Z"


def chain(length):
    entries = [Entry.after(None, OPEN, time=TIME.format(0), study="0f3a")]
    for number in range(length - 1):
        entries.append(Entry.after(entries[-1], JOIN, time=TIME.format(number % 10), party=f"party-{number} é"))
    return entries


def test_a_whole_chain_has_no_problems():
    assert problems(chain(6)) == []
    assert problems([]) == ["the ledger is empty"]


@given(st.integers(0, 5), st.integers(0, 10**6))
def test_a_changed_text_is_named(place, where):
    entries = chain(6)
    text = entries[place].text
    at = where % len(text)
    changed = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
    entries[place] = replace(entries[place], text=changed)
    assert problems(entries) == [f"entry {place + 1} was changed: its text does not fit its hash"]


def test_a_text_changed_with_its_hash_is_named_by_the_next_entry():
    entries = chain(4)
    text = entries[1].text.replace("party-0", "party-9")
    entries[1] = Entry(2, text, hash_text(text))
    assert problems(entries) == ["entry 3 does not follow on entry 2: one of the two was written anew"]


@pytest.mark.parametrize("gone", [0, 2, 4])
def test_a_missing_entry_is_named(gone):
    entries = chain(6)
    del entries[gone]
    assert problems(entries) == [f"entry {gone + 1} is missing"]


def test_a_number_that_is_far_too_large_is_one_line():
    entries = chain(4)
    entries[3] = replace(entries[3], number=2**62)
    assert problems(entries) == [
        f"entries 4 to {2**62 - 1} are missing",
        f"entry {2**62} is out of order: it was written as entry 4",
    ]


def test_exchanged_entries_are_named():
    entries = chain(5)
    entries[2], entries[3] = replace(entries[3], number=3), replace(entries[2], number=4)
    found = problems(entries)
    assert found[:2] == [
        "entry 3 is out of order: it was written as entry 4",
        "entry 4 is out of order: it was written as entry 3",
    ]


def test_a_rewritten_chain_lacks_the_head_that_was_given_out():
    entries = chain(5)
    assert check_head(entries, entries[2].hash).number == 3
    assert check_head(entries, f" {entries[2].hash[:40].upper()}\n").number == 3
    rewritten = [entries[0]]
    for number in range(4):
        rewritten.append(Entry.after(rewritten[-1], JOIN, time=TIME.format(5), party=f"other-{number}"))
    assert problems(rewritten) == []
    with pytest.raises(Mismatch, match="rewritten or taken away"):
        check_head(rewritten, entries[2].hash)
    with pytest.raises(Mismatch, match="rewritten or taken away"):
        check_head(entries[:2], entries[4].hash)
    for odd in ("", "abc", "z" * 64):
        with pytest.raises(Mismatch, match="not a ledger's head"):
            check_head(entries, odd)


def test_a_clock_that_goes_back_is_noted_and_no_problem():
    first = Entry.after(None, OPEN, time="2026-03-01T12:00:30Z")
    second = Entry.after(first, JOIN, time="2026-03-01T12:00:10Z")
    assert second.says["note"] == "the clock went back by 20 s"
    assert problems([first, second]) == []


def test_entries_that_lack_something_are_named():
    with pytest.raises(StoreError, match="entry 2 of the ledger has no 'digest': restore"):
        members(chain(3), up_to=3)
    for text, why in (("{}", "has no 'time'"), ('{"time":"noon"}', "has 'noon' as"), ('{"time":5}', "has 5 as")):
        with pytest.raises(StoreError, match=f"entry 4 of the ledger {why}"):
            Entry.after(Entry(4, text, hash_text(text)), JOIN, time=TIME.format(0))
