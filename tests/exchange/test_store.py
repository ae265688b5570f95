"""A store accepts each contribution once, from its permitted senders, and forgets it to the bit."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import Doubtful, FolderInUse, InvalidData, StoreError
from fedgram.core.filesystem import only_writer
from fedgram.exchange.format import fgm
from fedgram.exchange.store import objects
from fedgram.exchange.store.combined import Combined, sum_of
from fedgram.exchange.store.index import Leaf
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems
from fedgram.moments.moments import Moments
from fedgram.protocol.clientside import ClientSide
from fedgram.studies.study import Study
from support.campaign import examples
from support.stores import EARLIER, KEYS, LATER, REGIONAL, STUDY, client, keyed, store_of, summary

NAMES = ("north", "south", "east", "west")


def outcomes(joined):
    return [each.outcome for each in joined]


def refused(store, *sources, **options):
    [found] = store.join(*sources, **options)
    assert found.outcome == "refused"
    return found.why


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES), max_size=3), st.booleans())
@examples(15)
def test_what_is_left_is_as_if_the_others_had_never_joined(tmp_path_factory, order, leaving, replaced):
    store, plain = (Store(tmp_path_factory.mktemp("store"), study=STUDY) for _ in range(2))
    if replaced:
        store.join(
            summary(
                order[0],
                seed=7,
            )
        )
    store.join(*(summary(name) for name in order), replace=True)
    for name in sorted(leaving):
        store.remove(name)
    plain.join(*(summary(name) for name in NAMES if name not in leaving))
    assert store.total() == plain.total()
    assert store.total().digest == plain.total().digest
    assert Store(store.path).total() == plain.total()
    check_total(store)
    assert problems(store) == []
    model, wanted = (fgm.read(each.publish("afl").data).payload.model for each in (store, plain))
    assert model.weights.tobytes() == wanted.weights.tobytes()


def test_joining_twice_changes_nothing(tmp_path):
    store = store_of(tmp_path, "north")
    before = store.log()
    again = summary("north", key=KEYS["north"], created=LATER)  # the same content, signed
    assert outcomes(store.join(summary("north"), again)) == ["already in", "already in"]
    assert store.log() == before
    assert store.total().n == 40


def test_another_file_of_a_party_needs_replace(tmp_path):
    store = store_of(tmp_path, "north", "south")
    other = summary("north", seed=1, n=50)
    assert "--replace" in refused(store, other)
    assert outcomes(store.join(other, replace=True)) == ["replaced"]
    assert store.total() == store_of(tmp_path / "other", "south", study=STUDY).total() + _sum(other)
    assert len(list(store.objects.folder.iterdir())) == 2


def _sum(data):
    return sum_of(fgm.read(data))


def test_names_are_bound_to_the_studys_keys(tmp_path):
    study = keyed()
    store = Store(tmp_path, study=study)
    assert outcomes(store.join(summary("north", study=study, key=KEYS["north"]))) == ["joined"]
    assert "is signed with the key" in refused(store, summary("south", study=study, key=KEYS["north"]))
    assert "is not signed" in refused(store, summary("south", study=study))
    said = refused(store, summary("west", study=study, key=KEYS["west"]))
    assert "party 'west' is not listed in study 'walks'" in said
    assert "fedgram amend STORE --add west.pub" in said


def test_a_study_without_keys_remembers_the_first(tmp_path):
    store = Store(tmp_path, study=STUDY)
    store.join(summary("north", key=KEYS["north"]), summary("south"))
    stranger, unsigned = summary("north", seed=2, key=KEYS["east"]), summary("north", seed=2)
    assert "is signed with the key" in refused(store, stranger, replace=True)
    assert "is not signed" in refused(store, unsigned, replace=True)
    assert outcomes(store.join(summary("south", seed=2, key=KEYS["south"]), replace=True)) == ["replaced"]
    assert "is not signed" in refused(store, summary("south", seed=3), replace=True)


def test_foreign_files_are_refused_by_name_and_the_others_go_on(tmp_path):
    other = replace(STUDY, minimum_samples=6)
    names = {name: tmp_path / f"{name}.fgm" for name in ("good", "other-study", "damaged", "few", "receipt")}
    names["good"].write_bytes(summary("north"))
    names["other-study"].write_bytes(summary("south", study=other, key=KEYS["south"]))
    names["damaged"].write_bytes(summary("east")[:-8])
    names["few"].write_bytes(summary("west", n=4))
    store = store_of(tmp_path / "store", "east")
    names["receipt"].write_bytes(next((tmp_path / "store" / "receipts").iterdir()).read_bytes())
    found = store.join(*names.values(), tmp_path / "absent.fgm")
    assert outcomes(found) == ["joined"] + ["refused"] * 5
    for each, why in zip(
        found[1:], ("is of study", "not whole", "at least 5", "got a receipt file", "No such"), strict=True
    ):
        assert why in each.why
        assert each.name in each.why


def test_moments_that_cannot_be_are_refused(tmp_path):
    good = fgm.read(summary("north")).payload
    sums = good.cross.T * 3.0
    bad = Moments(good.schema, sums=sums, counts=good.counts.copy(), packed=good.packed.copy())
    data = fgm.encode("summary", bad, study=STUDY, party="north", samples=bad.n, columns=STUDY.sent)
    assert "positive semidefinite" in refused(store_of(tmp_path, "south"), data)


def test_tiny_units_are_warned_of(tmp_path):
    moments = Moments.of([[1e-6, 1.0], [2e-6, 2.0], [0.0, 1.0]], [0, 1, 1], classes=2, columns=["tiny", "fine"])
    data = fgm.encode("summary", moments, study="", party="north", samples=3, columns=("tiny", "fine"))
    with pytest.warns(Doubtful, match="tiny is in such small units"):
        Store(tmp_path).join(data)


def test_combined_summaries_are_sums_to_the_bit_and_do_not_overlap(tmp_path):
    regions = {"a": ("north", "south"), "b": ("east",), "c": ("west",)}
    files_of = {}
    for region, names in regions.items():
        files_of[region] = store_of(tmp_path / region, *names, study=REGIONAL).combine(region)
    upper = Store(tmp_path / "upper", study=REGIONAL)
    upper.join(files_of["a"], files_of["b"])
    country = Store(tmp_path / "country", study=REGIONAL)
    assert outcomes(country.join(upper.combine("upper"), files_of["c"])) == ["joined", "joined"]
    assert country.total() == store_of(tmp_path / "flat", *NAMES, study=REGIONAL).total()
    assert "as part of 'upper'" in refused(country, files_of["a"])
    assert "as part of 'upper'" in refused(country, summary("south", study=REGIONAL))
    assert "would be counted twice" in refused(country, summary("south", seed=3, study=REGIONAL))
    assert fgm.read(country.publish("afl").data).payload.contributors == ("north", "south", "east", "west")
    with pytest.raises(InvalidData, match="is in as part of 'upper': remove it there"):
        country.remove("south")
    again = Store(tmp_path / "again", study=REGIONAL)  # the same leaves, and one more
    again.join(upper.combine("upper"))
    upper.join(files_of["c"])
    assert outcomes(again.join(upper.combine("upper"), replace=True)) == ["replaced"]
    assert problems(again) == []
    again.remove("upper")
    assert problems(again) == []
    assert "must summarize and sign anew" in refused(again, summary("south", created=EARLIER, study=REGIONAL))
    country.remove("upper")
    assert country.total() == store_of(tmp_path / "west", "west", study=REGIONAL).total()
    check_total(country)


def test_combined_files_that_contradict_themselves_are_refused(tmp_path):
    region = fgm.read(store_of(tmp_path / "a", "north", "south", study=REGIONAL).combine("a")).payload
    first, second = region.leaves
    store = Store(tmp_path / "store", study=REGIONAL)
    for leaves, why in (
        ([first], "expected the 80 samples of the sum"),
        ([first, replace(second, party="north")], "twice"),
        ([first, replace(second, samples=-40)], "expected samples"),
        ([first, replace(second, created="1969-12-31T23:59:59Z")], "expected samples, and a time"),
        ([first, replace(second, party="\x1b[2J")], "not a party's name"),
        ([first, replace(second, party="south\neast")], "expected one line for each of 2 summaries"),
        ([first, second, *(replace(second, samples=1) for _ in range(80))], "expected at most 80, got 82"),
    ):
        data = fgm.encode("combined", Combined(region.total, leaves), study=REGIONAL, party="a", samples=80)
        assert why in refused(store, data)
    few = fgm.encode("combined", region, study=REGIONAL, party="a", samples=79, columns=REGIONAL.sent)
    assert "expected the 79 samples of its header" in refused(store, few)


def invented_by_north(study, kind):
    """Return a sum that north has signed in the names of south and east."""
    total = sum_of(fgm.read(summary("south", study=study, n=80)))
    leaves = [Leaf(digit * 64, name, digit * 64, 40, EARLIER) for name, digit in (("south", "a"), ("east", "b"))]
    details = {"party": "north", "samples": 80, "columns": study.sent, "key": KEYS["north"]}
    return fgm.encode(kind, Combined(total, leaves), study=study, **details)


def test_only_a_region_speaks_for_others(tmp_path):
    study = keyed()
    store = Store(tmp_path / "store", study=study)
    assert "does not list 'north' among its regions" in refused(store, invented_by_north(study, "combined"))
    assert "it is not the summary that its header says" in refused(store, invented_by_north(study, "summary"))
    agreed = replace(study, regions=("north",))
    assert agreed.agreement != study.agreement
    assert Study.from_fields(agreed.to_fields()) == agreed
    assert outcomes(Store(tmp_path / "agreed", study=agreed).join(invented_by_north(agreed, "combined"))) == ["joined"]
    with pytest.raises(InvalidData, match="'nobody', which is not among the parties"):
        replace(study, regions=("nobody",))


@pytest.mark.parametrize("study", [STUDY, STUDY.fingerprint], ids=["with its study", "without"])
def test_the_studys_rules_hold_at_the_door(tmp_path, study):
    party = client("north")
    party = replace(party, x=party.x * 1e7)
    moments = ClientSide(party, classes=STUDY.classes, columns=STUDY.sent).moments()
    data = fgm.encode("summary", moments, study=study, party="north", samples=40, columns=STUDY.sent)
    assert fgm.read(data).payload == moments  # inspection shows its content
    assert "is from -1 to 1 in units of its range" in refused(Store(tmp_path, study=STUDY), data)


def test_two_coordinators_one_is_told_or_waits(tmp_path):
    store = store_of(tmp_path, "north")
    with only_writer(tmp_path, who="coordinator"), pytest.raises(FolderInUse, match="another coordinator is writing"):
        Store(tmp_path).join(summary("south"))
    told = []

    def waiting(busy):
        told.append(busy)
        lock.__exit__(None, None, None)

    lock = only_writer(tmp_path, who="coordinator")
    lock.__enter__()
    Store(tmp_path, wait=waiting).join(summary("south"))
    assert "another coordinator" in told[0]
    assert store.total().n == 80


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_full_disk_leaves_what_was_accepted(tmp_path, monkeypatch):
    store = store_of(tmp_path, "north")
    written = objects.write_whole

    def full(file, data):
        written(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(objects, "write_whole", full)
    with pytest.raises(StoreError, match=r"cannot write .*No space left.*what has been accepted is kept"):
        store.join(summary("south"))
    monkeypatch.undo()
    fresh = Store(tmp_path)
    assert [each.party for each in fresh.contributions()] == ["north"]
    assert outcomes(fresh.join(summary("south"))) == ["joined"]
    check_total(fresh)


def test_a_full_database_leaves_what_was_accepted(tmp_path):
    store = store_of(tmp_path, "north")
    store.index._rows("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match="full"):
        store.join(*(summary("south", seed=seed) for seed in range(20)), replace=True)
    fresh = Store(tmp_path)
    assert problems(fresh) == []
    check_total(fresh)


def test_names_may_be_anything_that_can_be_read(tmp_path):
    names = ["../../etc/passwd", "Straße 7; DROP TABLE ledger", "région/Ω", "a" * 200, "<script>", "日本"]
    store = store_of(tmp_path / "store", *names)
    assert sorted(each.party for each in store.contributions()) == sorted(names)
    receipts = list((tmp_path / "store" / "receipts").iterdir())
    assert len(receipts) == len(names)
    assert {fgm.read(path).payload["party"] for path in receipts} == set(names)
    store.remove(names[0])
    assert {path.name for path in tmp_path.iterdir()} == {"store", "store.head"}


def test_a_store_is_of_one_study(tmp_path):
    store_of(tmp_path, "north")
    with pytest.raises(StoreError, match="another folder for another study"):
        Store(tmp_path, study=replace(STUDY, minimum_samples=6))
    with pytest.raises(StoreError, match="'north' is listed; .*parties and keys change with fedgram amend"):
        Store(tmp_path, study=keyed())
    with pytest.raises(StoreError, match="not a store"):
        Store(tmp_path / "absent").log()
    new = Store(tmp_path / "first")
    assert outcomes(new.join(b"junk", summary("north"))) == ["refused", "joined"]
    assert new.terms.study == STUDY


def test_what_others_publish_does_not_join(tmp_path):
    store = store_of(tmp_path, "north")
    assert "expected a summary or combined or answer file, got a global file" in refused(
        store, store.publish("afl").data
    )
