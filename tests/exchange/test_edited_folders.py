"""Foreign files in a store's folder, or remains of a kill, are detected and never counted."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from fedgram.core import wire
from fedgram.core.errors import FolderInUse, Mismatch, RefusedMessage, StoreError
from fedgram.core.hashing import hash_bytes
from fedgram.exchange.format import fgm
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.saved_total import TOTAL, load_total, save_total
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems, verify
from fedgram.secure.signing_keys import PrivateKey
from support.stores import STUDY, answered, store_of, summary

NAMES = ("north", "south", "east")
TWO = {"rounds": 2}


class Killed(BaseException):
    """Ends a change with an exception that must not be caught."""


def killed(*_):
    raise Killed


def edit(folder, command, *values):
    with closing(sqlite3.connect(folder / "index.sqlite")) as database, database:
        assert database.execute(command, values).rowcount


def test_a_killed_removal_is_finished_by_the_next_change(tmp_path):
    store = store_of(tmp_path, *NAMES)
    path = store.objects.path(store.contribution("south").digest)
    store.objects.sweep = killed  # after the total was saved
    with pytest.raises(Killed):
        store.remove("south")
    store.index.close()
    with Store(tmp_path) as again:
        with pytest.raises(Mismatch, match="is still there: .*fedgram publish or join deletes it"):
            verify(again, fgm.read(again.certificate("south")))
        again.publish("afl")
        assert not path.exists()
        assert verify(again, fgm.read(again.certificate("south")))[-1].endswith("not among the store's files")
        check_total(again)


def test_a_total_that_a_kill_has_left_goes_with_who_leaves(tmp_path):
    store = store_of(tmp_path, *NAMES)
    before = (tmp_path / TOTAL).read_bytes()
    half_written, of_others = (tmp_path / f".{TOTAL}.{ending}" for ending in ("0123456789abcdef" * 2, "mine"))
    for path in (half_written, of_others):
        path.write_bytes(before)
    store.remove("south")  # whose moments are the difference of the totals
    assert not half_written.exists()
    assert of_others.exists()


def test_a_row_that_was_deleted_does_not_cost_its_file(tmp_path):
    store = store_of(tmp_path, *NAMES)
    path = store.objects.path(store.contribution("south").digest)
    edit(tmp_path, "DELETE FROM contributions WHERE party = 'south'")
    with pytest.raises(StoreError, match="is missing, which the ledger has as joined; restore the store from a copy"):
        store.publish("afl")
    assert path.exists()
    assert any("is missing, which the ledger has as joined" in text for text in problems(store))


@pytest.mark.parametrize("change", ["remove", "join", "restart", "killed"])
def test_answers_go_with_their_round(tmp_path, change):
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "fedlogit", TWO).data
    assert [each.outcome for each in store.join(*(answered(name, asked) for name in NAMES[:2]))] == ["answered"] * 2
    assert len(list(store.answers.folder.iterdir())) == 2
    if change == "remove":
        store.remove("south")
    elif change == "join":
        store.join(summary("west"))
    elif change == "restart":
        advance(store, "fedlogit", TWO, restart=True)
    else:
        sweep, store.answers.sweep = store.answers.sweep, killed
        with pytest.raises(Killed):
            store.remove("south")
        store.answers.sweep = sweep
        store.publish("afl")
    assert list(store.answers.folder.iterdir()) == []


def forged_answer(request, factor):
    """Return south's answer with other numbers, and its digest."""
    said = fgm.read(answered("south", request)).payload
    said.reply["gradient"] = said.reply["gradient"] * factor
    data = fgm.encode("answer", said, study=STUDY.fingerprint, party="south", samples=40, columns=STUDY.sent)
    return data, fgm.read(data, checked=True).digest


@pytest.fixture
def round_answered(tmp_path):
    """Return a store with all answers to its first round, and the round's file."""
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "fedlogit", TWO).data
    store.join(*(answered(name, asked) for name in NAMES))
    assert problems(store) == []
    return store, asked


def test_an_answer_that_the_ledger_does_not_have_is_not_counted(round_answered):
    store, asked = round_answered
    data, digest = forged_answer(asked, 0.5)  # within its bounds
    store.answers.add(digest, data)
    edit(store.path, "UPDATE answers SET digest = ? WHERE party = 'south'", digest)
    wanted = f"the answer {digest[:16]} of 'south' is in the index, and the ledger does not say so"
    assert problems(store) == [wanted]
    with pytest.raises(StoreError, match=f"{wanted}.*--restart"):
        advance(store, "fedlogit", TWO)
    assert advance(store, "fedlogit", TWO, restart=True).number == 1
    assert problems(store) == []


def test_an_answer_is_checked_again_when_its_round_closes(round_answered):
    store, asked = round_answered
    data, digest = forged_answer(asked, 1e6)
    store.answers.add(digest, data)
    with store.index.changing():  # by a user who can write to the ledger, too
        store.index.answer("south", digest)
        store.append("answer", party="south", digest=digest, round=1)
    with pytest.raises(RefusedMessage, match="'south' refused"):
        advance(store, "fedlogit", TWO)


def test_the_sum_of_a_closed_round_is_that_of_the_ledger(round_answered):
    store, _ = round_answered
    assert advance(store, "fedlogit", TWO).number == 2
    assert problems(store) == []
    said = store.index.rounds()[0].said
    assert store.log()[-2].detail("said") == hash_bytes([said])
    changed = wire.decode(said)
    changed["gradient"] = changed["gradient"] - 5
    edit(store.path, "UPDATE rounds SET said = ? WHERE number = 1", wire.encode(changed))
    wanted = "round 1: the index has another sum of its answers than the ledger"
    assert problems(store) == [wanted]
    with pytest.raises(StoreError, match=wanted):
        advance(store, "fedlogit", TWO)


def test_a_round_that_was_never_asked_is_named(round_answered):
    store, _ = round_answered
    edit(store.path, "UPDATE rounds SET digest = ?", "e" * 64)
    assert "round 1 of the index, eeeeeeeeeeeeeeee, is not one that the ledger says was asked" in problems(store)


def test_a_combined_file_holds_the_sum_of_what_it_lists(tmp_path):
    store = store_of(tmp_path, "north", "south")
    leaves, said = store.index.leaves, []

    def during(*contribution):
        if not contribution and not said:
            with Store(tmp_path) as other:
                said.append("")
                with pytest.raises(FolderInUse, match="wait until it is done"):
                    other.join(summary("south", 5), replace=True)
        return leaves(*contribution)

    store.index.leaves = during
    combined = fgm.read(store.combine("region"))
    assert said == [""]
    assert combined.payload.total == store.total()


def test_another_study_than_the_ledger_began_with_is_named(tmp_path):
    store_of(tmp_path, "north")
    other = replace(STUDY, minimum_samples=40)
    edit(tmp_path, "UPDATE settings SET value = ? WHERE name = 'study'", wire.encode(other))
    assert problems(Store(tmp_path)) == [
        f"the index has {name} {getattr(other, of)}, and the ledger began with {getattr(STUDY, of)}"
        for name, of in (("study", "fingerprint"), ("genesis", "agreement"))
    ]


def test_another_list_of_parties_than_the_ledger_began_with_is_named(tmp_path):
    store_of(tmp_path, "north")
    other = replace(STUDY, parties={"north": ""})
    edit(tmp_path, "UPDATE settings SET value = ? WHERE name = 'study'", wire.encode(other))
    wanted = f"the index has genesis {other.agreement}, and the ledger began with {STUDY.agreement}"
    assert problems(Store(tmp_path)) == [wanted]


CHANGES = {
    "join": lambda store: store.join(summary("west")),
    "remove": lambda store: store.remove("south"),
    "combine": lambda store: store.combine("region"),
    "publish": lambda store: store.publish("afl"),
    "certificate": lambda store: store.certificate("east"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_key_than_the_ledger_began_with_is_refused(tmp_path, change):
    store = store_of(tmp_path, *NAMES)
    store.remove("east")
    before = store.log()
    (tmp_path / "coordinator.key").unlink()
    other = PrivateKey.new()
    other.save(tmp_path / "coordinator.key")
    again = Store(tmp_path)
    with pytest.raises(StoreError, match=f"has the key {other.public}, and its ledger began with {store.public_key}"):
        CHANGES[change](again)
    assert again.log() == before


@pytest.mark.parametrize("signed", ["as before", "by somebody", "by nobody"])
def test_a_total_that_the_store_did_not_sign_is_not_published(tmp_path, signed):
    store = store_of(tmp_path, *NAMES)
    wanted, saved = store.total(), load_total(tmp_path / TOTAL, store.public_key)
    doubled = replace(saved, total=Sum(wanted.schema, wanted.counts, wanted.numbers + wanted.numbers))
    if signed == "as before":
        kept = wire.decode((tmp_path / TOTAL).read_bytes())
        (tmp_path / TOTAL).write_bytes(wire.encode(kept | {"total": doubled.total}))
    else:
        save_total(tmp_path / TOTAL, doubled, PrivateKey.new() if signed == "by somebody" else None)
    again = Store(tmp_path)
    named = ["total.bin is not as the store signed it: it is not used, the next change adds all files up anew"]
    assert problems(again) == ([] if signed == "by nobody" else named)
    assert again.publish("afl").entry.detail("total") == wanted.digest
    assert load_total(tmp_path / TOTAL, store.public_key).total == wanted
    assert problems(again) == []
