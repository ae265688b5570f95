"""Amendments: late parties, new keys and withdrawn mistakes; forged ones are refused."""

import json
import warnings
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import (
    Doubtful,
    FedgramError,
    InvalidData,
    Mismatch,
    RefusedMessage,
    Revealing,
    StoreError,
    UnknownName,
)
from fedgram.core.hashing import hash_text
from fedgram.exchange.format import fgm
from fedgram.exchange.format.amendments import ADD, NOTE, Amendment, Rotation, amended, amendments_in
from fedgram.exchange.format.coordinator import check_agreed
from fedgram.exchange.pages.passport import Passport
from fedgram.exchange.pages.store_status import FORMER, status, status_page
from fedgram.exchange.rounds.party_side import fit_of
from fedgram.exchange.rounds.round_server import advance, waited_for
from fedgram.exchange.store import amending
from fedgram.exchange.store.ledger import Entry
from fedgram.exchange.store.saved_total import problems
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_statement, check_total
from fedgram.secure.signing_keys import PrivateKey
from support import campaign
from support.stores import EARLIER, KEYS, REGIONAL, STUDY, Clock, answered, keyed, store_of, summary

COORDINATOR, NEW, OTHER = PrivateKey.new(), PrivateKey.new(), PrivateKey.new()
AGREED = replace(keyed(("north", "south")), coordinator=COORDINATOR.public.text)

ALL = replace(AGREED, parties=keyed().parties)


def signed(name, *, study=AGREED, key=None, **options):
    return summary(name, study=study, key=key or KEYS[name], **options)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store", study=AGREED, key=COORDINATOR)
    assert outcomes(store, signed("north"), signed("south")) == ["joined"] * 2
    return store


def outcomes(store, *data, **options):
    return [each.outcome for each in store.join(*data, **options)]


def refused(store, data, **options):
    [found] = store.join(data, **options)
    assert found.outcome == "refused"
    return found.why


def whole(store):
    """Return the store as a new process opens it, after all checks."""
    again = Store(store.path)
    assert problems(again) == []
    check_total(again)
    return again


# Late parties
def test_a_late_party_joins_and_no_other_file_changes(store, tmp_path):
    late = signed("east")  # with the study file that all have
    assert "'east' is not listed in study 'walks'" in refused(store, late)
    files = {path.name: path.read_bytes() for path in store.objects.folder.iterdir()}
    amendment = amending.add(store, "east", KEYS["east"].public)
    assert (amendment.number, amendment.genesis) == (1, AGREED.agreement)
    assert outcomes(whole(store), late) == ["joined"]
    assert files.items() <= {path.name: path.read_bytes() for path in store.objects.folder.iterdir()}.items()
    six = replace(AGREED, parties=keyed().parties)
    fresh = Store(tmp_path / "fresh", study=six, key=COORDINATOR)
    assert outcomes(fresh, *(signed(name, study=six) for name in ("east", "north", "south"))) == ["joined"] * 3
    assert fresh.total() == store.total()
    assert fresh.total().digest == store.total().digest
    assert store.terms.study == six
    assert store.terms.genesis == AGREED


def test_only_a_party_that_is_not_listed_is_added(store, tmp_path):
    for add, why in (
        (("north", KEYS["east"].public), "is listed in study 'walks' already: for a new key give --rotate"),
        (("east", KEYS["north"].public), "'north' has the key"),
        ((" east", KEYS["east"].public), "is not a party's name"),
    ):
        with pytest.raises(InvalidData, match=why):
            amending.add(store, *add)
    with pytest.raises(InvalidData, match="any party may join"):
        amending.add(store_of(tmp_path / "open", "north"), "east", KEYS["east"].public)
    assert store.terms.amendments == ()
    whole(store)


def test_an_open_store_sees_what_another_process_amends(store):
    reader = Store(store.path)
    assert reader.terms.study == AGREED
    amending.add(store, "east", KEYS["east"].public)
    assert list(reader.terms.study.parties) == ["north", "south", "east"]
    assert outcomes(reader, signed("east")) == ["joined"]


def test_a_study_without_keys_takes_unsigned_files_after_an_amendment(tmp_path):
    named = replace(STUDY, parties={"north": "", "south": ""})
    store = store_of(tmp_path, "north", study=named)
    amending.add(store, "east", KEYS["east"].public)
    assert outcomes(store, summary("south", study=named), signed("east", study=named)) == ["joined"] * 2


def test_a_file_with_another_list_of_parties_joins_and_is_told_of(store):
    own = replace(AGREED, parties={"north": KEYS["north"].public.text})
    with pytest.warns(Doubtful, match="the study file of 'north' has the same rules and other .*'south' is not listed"):
        assert outcomes(store, signed("north", study=own, seed=3), replace=True) == ["replaced"]


@pytest.mark.parametrize("other", [OTHER.public.text, ""], ids=["another", "none"])
def test_a_file_for_another_coordinator_is_refused(store, other):
    """Otherwise a coordinator could pass a party's sums on to a store that the party never agreed to."""
    data = signed("north", study=replace(AGREED, coordinator=other), seed=2)
    assert "'north' has agreed to another coordinator" in refused(store, data, replace=True)


# Keys
def test_a_new_key_with_the_consent_of_the_former(store):
    before = signed("north")
    amendment = amending.rotate(store, "north", NEW.public, Rotation.new("north", KEYS["north"], NEW.public))
    assert "countersigned with the key before" in amendment.line
    again = whole(store)
    assert "is signed with the key that 'north' had until" in refused(again, before)
    assert "is signed with the key" in refused(again, signed("north", key=OTHER, seed=2), replace=True)
    assert outcomes(again, signed("north", key=NEW, seed=2), replace=True) == ["replaced"]
    assert "is signed with the key that 'north' had until" in refused(again, before, replace=True)
    whole(again)


def test_a_lost_key_is_replaced_and_all_are_told(store):
    amendment = amending.rotate(store, "north", NEW.public)
    assert "NOT countersigned" in amendment.line
    found = status(store)
    assert [each["key"] for each in found["contributions"]] == [FORMER, "listed in the study"]
    for text in (json.dumps(found), status_page(found, store.log())):
        assert "NOT countersigned" in text
    passport = Passport.of(fgm.read(store.publish("afl").data))
    assert passport.amendments == (f"1: {amendment.line}",)
    assert ("amendment", f"1: {amendment.line}") in passport.facts()


def test_a_rotation_must_be_of_this_party_and_its_present_key(store):
    good = Rotation.new("north", KEYS["north"], NEW.public)
    for rotation in (
        Rotation.new("north", OTHER, NEW.public),
        Rotation.new("south", KEYS["north"], NEW.public),
        Rotation.new("north", KEYS["north"], OTHER.public),
    ):
        with pytest.raises(Mismatch, match="replaces the key"):
            amending.rotate(store, "north", NEW.public, rotation)
    with pytest.raises(UnknownName, match="east"):
        amending.rotate(store, "east", NEW.public)
    with pytest.raises(InvalidData, match="has the key .* already"):
        amending.rotate(store, "north", KEYS["north"].public)
    amending.rotate(store, "north", NEW.public, good)
    amending.rotate(store, "north", OTHER.public, Rotation.new("north", NEW, OTHER.public))
    with pytest.raises(Mismatch, match="replaces the key"):  # a replay
        amending.rotate(store, "north", NEW.public, good)
    whole(store)


def test_a_remembered_key_can_be_replaced_too(tmp_path):
    store = store_of(tmp_path, "north", key=KEYS["north"])
    amending.rotate(store, "north", NEW.public)
    assert whole(store).terms.study == STUDY, "a study that is open to all stays so"
    assert "had until" in refused(store, summary("north", key=KEYS["north"], seed=2), replace=True)
    assert outcomes(store, summary("north", key=NEW, seed=2), replace=True) == ["replaced"]
    assert outcomes(store, summary("south", key=KEYS["south"])) == ["joined"]
    amending.rotate(store, "south", OTHER.public)
    whole(store)


def test_a_store_without_a_study_is_amended_too(tmp_path):
    def plain(name, key, seed=0):
        rng = np.random.default_rng([seed, *name.encode()])
        moments = fg.Moments.of(rng.normal(size=(30, 2)), rng.integers(0, 2, 30), classes=2)
        return fgm.encode("summary", moments, study="", party=name, samples=30, key=key)

    store = Store(tmp_path)
    names = ("north", "south", "east")
    assert outcomes(store, *(plain(name, KEYS[name]) for name in names)) == ["joined"] * 3
    amending.rotate(store, "north", NEW.public)
    amending.withdraw(store, "south")
    again = whole(store)
    assert "had until" in refused(again, plain("north", KEYS["north"], 1), replace=True)
    assert outcomes(again, plain("north", NEW, 1), replace=True) == ["replaced"]
    assert outcomes(again, plain("west", KEYS["west"])) == ["joined"]
    passport = Passport.of(fgm.read(again.publish("afl").data))
    assert len(passport.amendments) == 2
    assert "Amendments" in status_page(status(again), again.log())


def test_a_rotation_file_is_checked(tmp_path):
    good, path = Rotation.new("north", KEYS["north"], NEW.public), tmp_path / "north.rotation"
    path.write_text(good.text)
    assert Rotation.read(path) == good
    for text in (
        "",
        "a = 1",
        good.text + "more = 'x'\n",
        replace(good, key=OTHER.public.text).text,
        replace(good, party="south").text,
        replace(good, signature="zz").text,
        replace(good, signature="").text,
    ):
        path.write_text(text)
        with pytest.raises(InvalidData, match="north.rotation"):
            Rotation.read(path)
    with pytest.raises(InvalidData, match="cannot read the rotation"):
        Rotation.read(tmp_path / "none")


def test_a_new_key_ends_the_answer_that_the_former_signed(store):
    amending.add(store, "east", KEYS["east"].public)
    store.join(signed("east"))
    asked = advance(store, "fedlogit", {"rounds": 1}).data
    reply = partial(answered, request=asked, study=AGREED)
    assert outcomes(store, *(reply(name, key=KEYS[name]) for name in ("north", "south", "east"))) == ["answered"] * 3
    amending.rotate(store, "north", NEW.public)
    assert waited_for(store) == ["north"]
    assert "had until" in refused(store, reply("north", key=KEYS["north"]))
    assert outcomes(store, reply("north", key=NEW)) == ["answered"]
    published = advance(store, "fedlogit", {"rounds": 1})
    assert len(amendments_in(fgm.read(published.data))) == 2
    whole(store)


# Mistakes
def wrong_file():
    """Let south join with the table of east."""
    table = summary("east", study=ALL)
    moments = fgm.read(table).payload
    about = {"samples": moments.n, "columns": ALL.sent, "key": KEYS["south"], "created": EARLIER}
    return fgm.encode("summary", moments, study=ALL, party="south", **about)


@pytest.fixture
def swapped(tmp_path):
    """Return a store in which south has joined with east's table, and that file."""
    store = Store(tmp_path / "store", study=ALL, key=COORDINATOR, clock=Clock())
    wrong = wrong_file()
    found = store.join(signed("north", study=ALL, created=EARLIER), wrong)
    assert [each.outcome for each in found] == ["joined"] * 2, found
    return store, wrong


@pytest.mark.parametrize("first", ["still in", "removed", "replaced"])
def test_a_mistake_frees_the_samples_for_the_right_party(swapped, first, tmp_path):
    store, wrong = swapped
    right, own = (signed(name, study=ALL, created=EARLIER) for name in ("east", "south"))
    digest = fgm.read(wrong).digest
    assert "withdraw it with fedgram amend --mistake" in refused(store, right)
    if first == "removed":
        store.remove("south")
    if first == "replaced":
        assert outcomes(store, own, replace=True) == ["replaced"]
    if first != "still in":
        assert f"fedgram amend STORE --mistake {digest[:40]}" in refused(store, right)
    if first == "replaced":
        with pytest.raises(InvalidData, match="several contributions"):
            amending.withdraw(store, "south")
    amendment = amending.withdraw(store, digest[:12] if first == "replaced" else "south")
    assert (amendment.party, amendment.contribution) == ("south", digest)
    assert "withdrawn as a mistake" in amendment.line
    again = whole(store)
    assert outcomes(again, right, own) == ["joined", "already in" if first == "replaced" else "joined"]
    again = whole(again)
    assert again.total() == Store(tmp_path / "store").total()
    names = ("north", "east", "south")
    fresh = Store(tmp_path / "fresh", study=ALL, key=COORDINATOR)
    fresh.join(*(signed(name, study=ALL) for name in names))
    assert again.total().digest == fresh.total().digest
    assert "refused" in refused(again, wrong, replace=True), "the wrong file itself never returns"
    with pytest.raises(UnknownName):
        amending.withdraw(again, digest)


def test_a_mistake_is_known_by_name_or_digest_alone(swapped):
    store, wrong = swapped
    for which in ("east", "", fgm.read(wrong).digest[:7], "0" * 64):
        with pytest.raises(UnknownName):
            amending.withdraw(store, which)
    certificate = amending.withdraw(store, fgm.read(wrong).digest) and store.certificate("south")
    assert check_statement(store, fgm.read(certificate)).says["what"] == "remove"


def test_a_sum_of_a_region_is_removed_and_not_withdrawn(tmp_path):
    region = store_of(tmp_path / "a", "north", "south", study=REGIONAL)
    store = Store(tmp_path / "store", study=REGIONAL)
    assert outcomes(store, region.combine("a")) == ["joined"]
    with pytest.raises(InvalidData, match="take it out with fedgram remove"):
        amending.withdraw(store, "a")
    amending.add(region, "late", NEW.public)
    assert outcomes(region, summary("late", study=REGIONAL, key=NEW)) == ["joined"]
    assert "party 'late' is not listed" in refused(store, region.combine("a"), replace=True)
    amending.add(store, "late", NEW.public)
    assert outcomes(store, region.combine("a"), replace=True) == ["replaced"]
    assert store.total() == region.total()
    whole(store)


# What parties see
def test_receipts_and_publications_carry_the_amendments(store):
    before = store.publish("afl").data
    receipt = next(iter(store.join(signed("north")))).receipt
    amending.add(store, "east", KEYS["east"].public)
    amending.rotate(store, "north", NEW.public)
    [joined] = store.join(signed("east"))
    told = fgm.read(joined.receipt)
    assert [text[:10] for text in told.payload["amendments"]] == ["1: 'east' ", "2: 'north'"]
    check_statement(store, told)
    assert "amendments" not in fgm.read(receipt).payload
    published = store.publish("afl")
    assert published.version == 2
    file = fgm.read(published.data)
    assert file.study == store.terms.study
    entry = store.log()[-2]  # before the publication's own
    assert ("ledger", f"entry {entry.number}, head {entry.hash}") in Passport.of(file).facts()
    assert [each.number for each in amendments_in(file)] == [1, 2]
    assert [text.split(":")[0] for text in check_agreed(file, AGREED)] == ["amendment 1", "amendment 2"]
    middle = replace(AGREED, parties={**AGREED.parties, "east": KEYS["east"].public.text})
    assert [text.split(":")[0] for text in check_agreed(file, middle)] == ["amendment 2"]
    assert check_agreed(file, store.terms.study) == []
    own = replace(AGREED, parties={"north": KEYS["north"].public.text})
    assert "not an amendment of your study file: 'south' is listed" in check_agreed(file, own)
    check_statement(store, file)
    assert check_agreed(fgm.read(before), AGREED) == []
    for data in (before, published.data):
        fit_of(fgm.read(data))


def test_a_key_that_was_replaced_and_came_back_is_told(store):
    """In between, the coordinator could have signed in the party's name with a key of its own."""
    amending.rotate(store, "north", NEW.public)
    forged = signed("north", study=store.terms.study, key=NEW, seed=1)
    assert outcomes(store, forged, replace=True) == ["replaced"]
    amending.rotate(store, "north", KEYS["north"].public)
    file = fgm.read(store.publish("afl").data)
    assert file.study == AGREED
    told = check_agreed(file, AGREED)
    assert [text.split(":")[0] for text in told] == ["amendment 1", "amendment 2"]
    assert all("NOT countersigned" in text for text in told)


def changed_publication(store, change, key=COORDINATOR):
    """Return the publication with other notes, signed by a key."""
    file = fgm.read(store.publish("afl").data)
    fit = file.payload
    told = [dict(each) for each in fit.notes[NOTE]]
    changed = change(fit, told)
    notes = {**fit.notes, NOTE: told}
    fit = replace(changed or fit, notes=notes)
    return fgm.read(fgm.encode("global", fit, study=file.header.study, party="coordinator", key=key))


def resign(told, signer, **fields):
    """Sign the last amendment anew, with other fields."""
    made = replace(Amendment.of_fields(told[-1]), **fields)
    told[-1] = replace(made, signature=signer.sign("amendment", made.signed).hex()).plain()


FORGERIES = {
    "a key": lambda fit, told: told[-1].update(key=OTHER.public.text),
    "a name": lambda fit, told: told[-1].update(party="west"),
    "signed by another": lambda fit, told: resign(told, OTHER, party="west"),
    "one less": lambda fit, told: told.pop(0) and None,
    "the last left out": lambda fit, told: told.pop() and None,
    "twice": lambda fit, told: told.append(told[-1]),
    "another order": lambda fit, told: told.reverse(),
    "another study": lambda fit, told: replace(fit, study=replace(fit.study, parties={})),
    "no list": lambda fit, told: told.append("x"),
    "a field more": lambda fit, told: told[-1].update(more=1),
    "false consent": lambda fit, told: resign(told, COORDINATOR, countersignature="00" * 64),
    "no hash": lambda fit, told: resign(told, COORDINATOR, genesis="x"),
    "no key": lambda fit, told: resign(told, COORDINATOR, key=""),
    "half a key": lambda fit, told: resign(told, COORDINATOR, key="abcd"),
    "no such change": lambda fit, told: resign(told, COORDINATOR, what="drop"),
    "no time": lambda fit, told: resign(told, COORDINATOR, time="now"),
    "another genesis": lambda fit, told: resign(told, COORDINATOR, genesis="0" * 64),
    "another key than it says": lambda fit, told: resign(told, COORDINATOR, key=OTHER.public.text),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_forged_amendments_in_a_publication_are_refused(store, forge):
    amending.add(store, "east", KEYS["east"].public)
    amending.rotate(store, "north", NEW.public)
    with pytest.raises(RefusedMessage):
        check_agreed(changed_publication(store, forge), AGREED)


def test_a_publication_of_another_key_is_refused_with_all_its_amendments(store):
    amending.add(store, "east", KEYS["east"].public)

    def again(fit, told):
        resign(told, OTHER)
        return replace(fit, study=replace(fit.study, coordinator=OTHER.public.text))

    with pytest.raises(RefusedMessage, match="someone else wrote it"):
        check_agreed(changed_publication(store, again, OTHER), AGREED)


@pytest.mark.parametrize("field", Amendment.__dataclass_fields__)
def test_every_field_of_an_amendment_is_signed(store, field):
    made = amending.rotate(store, "north", NEW.public, Rotation.new("north", KEYS["north"], NEW.public))
    value = getattr(made, field)
    changed = replace(made, **{field: value + 1 if isinstance(value, int) else value[:-1] if value else "00" * 64})
    with pytest.raises(FedgramError):
        amended(AGREED, [changed], COORDINATOR.public)
    assert amended(AGREED, [made], COORDINATOR.public) == store.terms.study
    with pytest.raises(FedgramError):
        amended(replace(AGREED, parties={}), [made], COORDINATOR.public)


AMENDED = st.tuples(st.sampled_from(("add", "rotate", "lost", "mistake", "join")), st.integers(0, 3))


@campaign.examples(25)
@given(st.lists(AMENDED, max_size=8))
def test_any_sequence_leads_from_every_state_to_the_published_study(tmp_path_factory, changes):
    """After any amendments of the coordinator the store is whole, and a party with any earlier study can follow."""
    store = Store(tmp_path_factory.mktemp("any") / "store", study=AGREED, key=COORDINATOR)
    keys = {name: KEYS[name] for name in ("north", "south")}
    assert outcomes(store, *(signed(name) for name in keys)) == ["joined"] * 2
    states = [AGREED]
    for number, (what, which) in enumerate(changes):
        name, new = ("north", "south", "east", "west")[which], PrivateKey.new()
        try:
            match what:
                case "add":
                    amending.add(store, name, new.public)
                    keys[name] = new
                case "rotate" | "lost":
                    consent = Rotation.new(name, keys.get(name, new), new.public) if what == "rotate" else None
                    amending.rotate(store, name, new.public, consent)
                    keys[name] = new
                case "mistake":
                    amending.withdraw(store, name)
                case "join":
                    store.join(signed(name, key=keys.get(name, new), seed=number), replace=True)
        except FedgramError:
            continue
        states.append(store.terms.study)
    again = whole(store)
    assert again.terms.study == replace(AGREED, parties={name: key.public.text for name, key in keys.items()})
    if not any(each.samples for each in again.contributions()):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Revealing)
        file = fgm.read(again.publish("afl").data)
    for state in states:
        seen = [text for text in check_agreed(file, state) if text.startswith("amendment")]
        assert bool(seen) or state == file.study


# What edits of a store do
def rewritten(store, change):
    """Change the last amendment in the ledger, and compute all hashes anew."""
    index = store.index
    index._do("DROP TRIGGER ledger_keeps_texts")
    previous = ""
    for entry in store.log():
        said = dict(entry.says) | {"previous": previous}
        if said["what"] == "amend":
            said["amendment"] = change(dict(said["amendment"]))
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        previous = hash_text(text)
        index._do("UPDATE ledger SET text = ?, hash = ? WHERE number = ?", text, previous, entry.number)
    index.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"key": OTHER.public.text},
        lambda told: told | {"party": "west"},
        lambda told: told | {"number": 2},
        lambda told: {name: value for name, value in told.items() if name != "signature"},
        lambda told: replace(
            Amendment.of_fields(told), signature=OTHER.sign("amendment", Amendment.of_fields(told).signed).hex()
        ).plain(),
    ],
    ids=["key", "party", "number", "no signature", "another signer"],
)
def test_an_edited_ledger_admits_no_party(store, change):
    amending.add(store, "east", KEYS["east"].public)
    rewritten(store, change)
    again = Store(store.path)
    assert any("amendment" in text for text in problems(again))
    with pytest.raises(StoreError, match="amendment"):
        again.join(signed("east"))
    found = status(again)
    assert found["ledger"]["problems"]
    assert found["amendments"] == []


def test_an_entry_that_another_key_signed_is_refused(store):
    amendment = Amendment(
        number=1, what=ADD, party="east", key=OTHER.public.text, time=EARLIER, genesis=AGREED.agreement
    ).signed_by(OTHER, AGREED)
    entry = Entry.after(
        store.index.last(), "amend", time=EARLIER, party="east", change=ADD, amendment=amendment.plain()
    )
    with store.index.changing():
        store.index.append(entry)
    assert any("is not signed with the coordinator's key" in text for text in problems(store))
    with pytest.raises(StoreError, match="not signed with the coordinator's key"):
        Store(store.path).join(signed("east", key=OTHER))


def test_an_amendment_needs_the_stores_key(store):
    (store.path / "coordinator.key").unlink()
    with pytest.raises(FedgramError):
        amending.add(Store(store.path), "east", KEYS["east"].public)
    with closing(Store(store.path).index) as index:
        assert index.amendments() == []


# Kills
STEPS = {
    "add": lambda store: amending.add(store, "east", KEYS["east"].public),
    "rotate": lambda store: amending.rotate(store, "north", NEW.public),
    "mistake": lambda store: amending.withdraw(store, "south"),
}


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_an_amendment_is_made_as_a_whole_or_not_at_all(tmp_path, monkeypatch, step):
    """Ended before every write to the index, the store is as before or as after."""
    for number in range(40):
        store = Store(tmp_path / f"{number}", study=AGREED, key=COORDINATOR)
        store.join(signed("north"), signed("south"))
        before, writes = (len(store.log()), store.total()), iter(range(number))
        do = store.index._do

        def killed(command, *values, do=do, writes=writes):
            if next(writes, None) is None:
                raise Killed
            do(command, *values)

        monkeypatch.setattr(store.index, "_do", killed)
        try:
            step(store)
            ended = True
        except Killed:
            ended = False
        monkeypatch.undo()
        again = whole(store)
        if not ended:
            assert (len(again.log()), again.total()) == before
            assert again.terms.study == AGREED
        else:
            assert len(again.terms.amendments) == 1
            break
        step(again)
        assert len(whole(again).terms.amendments) == 1
    else:
        raise AssertionError("more writes than expected")
