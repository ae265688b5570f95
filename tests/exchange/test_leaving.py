"""A removed contribution comes back only with a later signature of its own party; samples never count twice."""

import json
from functools import partial

import numpy as np
import pytest

from fedgram.exchange.format import fgm
from fedgram.exchange.store.admission import ROUNDING, equal_to_rounding, marks_of
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import problems
from fedgram.moments.moments import Moments
from support import stores
from support.stores import KEYS, REGIONAL, Clock

client, store_of, summary = (partial(make, study=REGIONAL) for make in (stores.client, stores.store_of, stores.summary))

TIMES = [f"2026-01-0{day}T00:00:00Z" for day in range(1, 8)]
FIRST, SECOND, THIRD, FOURTH, FIFTH = TIMES[:5]


def refused(store, data, **options):
    [found] = store.join(data, **options)
    assert found.outcome == "refused", found
    return found.why


def outcome(store, data, **options):
    [found] = store.join(data, **options)
    return found.outcome, found.why


def signed(time, seed=0):
    return summary("north", seed, key=KEYS["north"], created=time)


@pytest.fixture
def clock():
    return Clock(FIRST)


@pytest.fixture
def store(tmp_path, clock):
    """Return a store after north's removal on the third day; its file is of the first day."""
    store = Store(tmp_path, study=REGIONAL, clock=clock)
    store.join(signed(FIRST), summary("south", created=FIRST))
    clock.time = THIRD
    store.remove("north")
    return store


def test_only_a_signature_after_the_removal_is_fresh(store, clock):
    clock.time = FIFTH
    for time in (FIRST, SECOND, THIRD):  # before its removal, though one is later than the joined file
        assert f"signed at {time}, not after {THIRD}" in refused(store, signed(time))
    assert outcome(store, signed(FOURTH)) == ("joined", "")
    clock.time = TIMES[5]
    assert outcome(store, signed(FIFTH, seed=5), replace=True) == ("replaced", "")
    assert "must summarize and sign anew" in refused(store, signed(FIFTH), replace=True)  # replaced: left, too
    assert problems(store) == []


def test_a_clock_that_goes_back_makes_no_old_signature_fresh(tmp_path, clock):
    clock.time = FOURTH
    store = Store(tmp_path, study=REGIONAL, clock=clock)
    store.join(signed(FIRST), summary("south", created=FIRST))
    clock.time = FIRST
    store.publish("afl")  # the ledger's last time is earlier now
    store.remove("north")
    for time in (SECOND, FOURTH):
        assert f"not after {FOURTH}" in refused(store, signed(time))
    clock.time = TIMES[5]
    assert outcome(store, signed(FIFTH)) == ("joined", "")


def test_a_signature_from_the_future_does_not_outlive_its_removal(tmp_path, clock):
    store = Store(tmp_path, study=REGIONAL, clock=clock)
    ahead = signed(SECOND)
    store.join(ahead, summary("south", created=FIRST))
    store.remove("north")
    clock.time = "2026-01-01T12:00:00Z"
    assert f"not after {SECOND}" in refused(store, ahead)
    assert "set the clock that is wrong" in refused(store, signed("2026-01-02T06:00:00Z"))


def test_a_time_far_ahead_is_refused_before_it_locks_its_party_out(tmp_path, clock):
    store = Store(tmp_path, clock=clock)
    assert f"'north' was signed at {THIRD}, and it is {FIRST} here: set the clock" in refused(store, signed(THIRD))
    assert store.is_new  # a refused file settles nothing
    assert outcome(store, signed(SECOND)) == ("joined", "")
    wrong = Store(tmp_path / "region", study=REGIONAL, clock=Clock(FIFTH))
    wrong.join(summary("south", created=FIFTH))
    wrong._clock = clock  # only the leaf is ahead
    assert f"'south' was signed at {FIFTH}" in refused(store, wrong.combine("region"))


def test_an_older_sum_of_a_region_does_not_take_the_place_of_a_newer_one(tmp_path, clock):
    region = Store(tmp_path / "region", study=REGIONAL, clock=clock)
    region.join(*(summary(name, created=FIRST) for name in ("north", "south")))
    first = region.combine("region")
    region.join(summary("east", created=FIRST))
    second = region.combine("region")
    store = Store(tmp_path / "store", study=REGIONAL, clock=clock)
    assert outcome(store, first) == ("joined", "")
    clock.time = SECOND
    assert outcome(store, second, replace=True) == ("replaced", "")
    clock.time = THIRD
    assert f"signed at {FIRST}, not after {SECOND}: to come back, 'region' must combine" in refused(
        store, first, replace=True
    )
    region.remove("east")
    assert outcome(store, region.combine("region"), replace=True) == ("replaced", "")
    assert problems(store) == []


def test_who_left_may_come_back_as_part_of_a_region(store, clock, tmp_path):
    clock.time = FIFTH
    region = Store(tmp_path / "region", study=REGIONAL, clock=clock)
    region.join(signed(FOURTH))
    assert outcome(store, region.combine("region")) == ("joined", "")
    assert problems(store) == []


def test_nobody_else_brings_back_what_has_left(store, clock):
    clock.time = FIFTH
    copy = summary("west", party=client("north"), key=KEYS["west"], created=FOURTH)
    assert "'west' brings the samples of a contribution of 'north' that was taken out" in refused(store, copy)
    assert "only 'north' may bring them back" in refused(store, nearly("west", created=FOURTH))


def test_the_same_samples_under_another_name_are_refused(tmp_path):
    store = store_of(tmp_path, "north")
    assert "would be counted twice" in refused(store, summary("south", party=client("north")))
    assert "differ from its sums by rounding only" in refused(store, nearly("south"))
    region = store_of(tmp_path / "region", "north").combine("region")
    assert "would be counted twice" in refused(store, region)


def nearly(name, change=np.nextafter, **options):
    """Return the summary of north's samples under another name, each number moved to the next one."""
    moments = moved(fgm.read(summary("north")).payload, change)
    about = {"samples": moments.n, "columns": REGIONAL.sent, **options}
    return fgm.encode("summary", moments, study=REGIONAL, party=name, **about)


def moved(moments, change):
    sums, packed = change(moments.cross.T, np.inf), change(moments.packed, np.inf)
    indicators = np.rint(moments.cross.T) == moments.cross.T  # whole numbers stay, the study's rules ask for them
    sums = np.where(indicators, moments.cross.T, sums)
    return Moments(moments.schema, sums=sums, counts=moments.counts.copy(), packed=packed)


def test_other_samples_join_though_they_are_alike(tmp_path):
    store = store_of(tmp_path, "north")
    assert outcome(store, nearly("south", lambda x, _: x * (1 + 1e-6))) == ("joined", "")


def test_marks_are_shared_by_what_is_equal_to_rounding():
    rng = np.random.default_rng(0)
    for trial in range(200):
        moments = Moments.of(rng.normal(size=(20, 3)), rng.integers(0, 2, 20), classes=2)
        factor = 1 + rng.uniform(-ROUNDING, ROUNDING) / 2
        near, far = (
            Moments(moments.schema, sums=moments.cross.T * by, counts=moments.counts.copy(), packed=moments.packed * by)
            for by in (factor, 1 + 10 * ROUNDING)
        )
        secret = bytes([trial])
        assert set(marks_of(moments, secret)) & set(marks_of(near, secret))
        assert not set(marks_of(moments, secret)) & set(marks_of(far, secret))
        assert not set(marks_of(moments, secret)) & set(marks_of(moments, b"another store's"))
        assert equal_to_rounding(moments, near)
        assert not equal_to_rounding(moments, far)


def test_stores_keep_no_sums_of_who_has_left(store, tmp_path):
    moments = fgm.read(signed(FIRST)).payload
    store.index.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for number in (*moments.packed[moments.packed > 1], *moments.cross[moments.cross > 1]):
        if number != round(number):
            assert number.tobytes() not in kept
            assert repr(float(number)).encode() not in kept


def test_stores_keep_no_class_counts_of_who_has_left(tmp_path):
    store = Store(tmp_path, study=REGIONAL)
    store.join(summary("north", n=137), summary("south"))
    counts = json.dumps(store.contribution("north").counts).encode()
    assert counts in _all_bytes(store)
    store.remove("north")
    assert counts not in _all_bytes(store), "SQLite leaves deleted rows in its file, unless it is told not to"


def _all_bytes(store):
    store.index.checkpoint()
    return b"".join(path.read_bytes() for path in store.path.rglob("*") if path.is_file())
