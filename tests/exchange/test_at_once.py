"""Reports of a store while another process changes it, and of a party that came back through a region."""

import threading

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidData
from fedgram.exchange.format import fgm
from fedgram.exchange.format.header import party_name
from fedgram.exchange.pages.store_status import status
from fedgram.exchange.store import saved_total
from fedgram.exchange.store.saved_total import problems
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, verify
from support import campaign
from support.command import run
from support.stores import EARLIER, KEYS, LATER, REGIONAL, Clock, store_of, summary


def change(path, rounds, failed):
    """Join, replace and remove in another process."""
    try:
        with Store(path) as store:
            for seed in range(rounds):
                for name in ("south", "east", "west"):
                    store.join(summary(name, seed, study=REGIONAL), replace=True)
                store.remove("west")
    except BaseException as error:
        failed.append(error)
        raise


@pytest.mark.parametrize("reading", [problems, check_total, Store.total, status, saved_total.check_whole])
def test_a_change_by_another_process_is_no_contradiction(tmp_path, reading):
    store, failed = store_of(tmp_path, "north", study=REGIONAL), []
    writer = threading.Thread(target=change, args=(tmp_path, campaign.size(3), failed))
    writer.start()
    while writer.is_alive():
        try:
            found = reading(store)
        except fg.core.errors.FolderInUse:
            continue
        wrong = found["ledger"]["problems"] if reading is status else found if reading is problems else []
        assert wrong == []
    writer.join()
    assert failed == []


def test_a_change_between_ledger_and_files_is_no_contradiction(tmp_path, monkeypatch):
    store, other = store_of(tmp_path, "north", "south", study=REGIONAL), Store(tmp_path)
    heads, outcomes = saved_total._heads_at_hand, []

    def changed_meanwhile(looked_at):
        if looked_at is store:
            outcomes.append(other.join(summary("east", study=REGIONAL))[0].outcome)
            other.remove("north")
        return heads(looked_at)

    monkeypatch.setattr(saved_total, "_heads_at_hand", changed_meanwhile)
    assert problems(store) == []
    assert outcomes == ["joined"]


@pytest.fixture
def back(tmp_path):
    """Return a store whose party was removed, and came back as part of a region; and the certificate of the removal."""
    clock = Clock()
    store = store_of(tmp_path / "store", "south", study=REGIONAL, clock=clock, created=EARLIER)
    sent = {"study": REGIONAL, "key": KEYS["north"]}
    store.join(summary("north", **sent, created="2025-12-31T00:00:00Z"))
    store.remove("north")
    certificate = store.certificate("north")
    clock.time = LATER
    region = Store(tmp_path / "region", study=REGIONAL, clock=clock)
    region.join(summary("north", **sent, created=LATER))
    [joined] = store.join(region.combine("region"))
    assert joined.outcome == "joined", joined
    return store, certificate


def test_who_is_back_in_a_region_is_not_removed(back, tmp_path, monkeypatch):
    store, _ = back
    assert store.removed() == {}
    assert status(store)["removed"] == []
    with pytest.raises(InvalidData, match="is in as part of 'region': remove it there"):
        store.remove("north")
    monkeypatch.chdir(tmp_path)
    done = run("remove", store.path, "north")
    assert done.returncode == 2
    assert "'north' is in as part of 'region'" in done.stderr
    assert not (tmp_path / "north-removed.fgm").exists()


def test_a_certificate_says_who_is_back_in_a_region(back):
    store, certificate = back
    said = verify(store, fgm.read(certificate))[-1]
    assert said.startswith("the removed contribution is back as part of 'region' since 2026-01-02")


def test_who_has_no_samples_does_not_join(tmp_path):
    moments = fg.Moments.of(np.zeros((0, 1)), np.array([], dtype=str), classes=["ill", "well"])
    nothing = fgm.encode("summary", moments, study="", party="north", samples=0)
    [refused] = Store(tmp_path).join(nothing)
    assert refused.outcome == "refused"
    assert "expected samples, got none" in refused.why


@pytest.mark.parametrize("unseen", ["\u034f", "\u115f", "\u3164", "\ufe0f", "\uffa0", "\U000e0100"])
def test_names_that_look_the_same_are_refused(unseen):
    with pytest.raises(InvalidData, match="others that do not show"):
        party_name(f"north{unseen}")
