"""A study that names its coordinator's key: rounds, models and stores of other keys are refused."""

from dataclasses import replace

import pytest

import fedgram as fg
from fedgram.core.errors import InvalidData, Mismatch, RefusedMessage, StoreError
from fedgram.core.hashing import readable
from fedgram.exchange.format import fgm
from fedgram.exchange.format.coordinator import check_agreed, check_coordinator, coordinator_key, signer_line
from fedgram.exchange.pages.passport import Passport
from fedgram.exchange.rounds.party_side import Party, model_of, personalize
from fedgram.exchange.rounds.round_messages import answer
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.study_store import Store
from fedgram.secure.signing_keys import PrivateKey
from fedgram.studies.drafting import with_coordinator
from fedgram.studies.study import Study
from support.exchange import TEXT
from support.stores import KEYS, STUDY, client, summary

NAMES = ("north", "south", "east")
KEY, OTHER = PrivateKey.new(), PrivateKey.new()
NAMED = replace(STUDY, coordinator=KEY.public.text)


def store_with(path, study=NAMED, key=KEY):
    store = Store(path, study=study, key=key)
    store.join(*(summary(name, study=study) for name in NAMES))
    return store


def signed_again(data, key):
    """Return the same file, signed by another key or unsigned."""
    file = fgm.read(data)
    study = file.study or file.header.study
    return fgm.read(fgm.encode(file.header.kind, file.payload, study=study, party=file.header.party, key=key))


def test_a_coordinator_belongs_to_the_agreement_and_not_to_the_rules():
    plain = Study.parse(TEXT)
    assert plain.coordinator == ""
    assert "coordinator" not in plain.to_fields()
    named = Study.parse(with_coordinator(TEXT, KEY.public.text))
    assert named.coordinator == KEY.public.text
    assert named.agreement != plain.agreement
    assert (named.fingerprint, named.rules, named.features) == (plain.fingerprint, plain.rules, plain.features)
    assert Study.from_fields(named.to_fields()) == named
    assert replace(named, coordinator="") == plain
    with pytest.raises(InvalidData, match=r"\[study\] coordinator: expected text, got 3"):
        Study.parse(TEXT.replace('name = "walks"', 'name = "walks"\ncoordinator = 3'))
    with pytest.raises(InvalidData, match="study 'walks', coordinator: 'abc' is not a public key"):
        coordinator_key(replace(STUDY, coordinator="abc"))


def test_the_key_enters_the_study_file():
    text = with_coordinator(TEXT + "# a comment\n", KEY.public.text)
    assert text.endswith("# a comment\n")
    assert with_coordinator(text, KEY.public.text) == text
    with pytest.raises(InvalidData, match="names another coordinator already"):
        with_coordinator(text, OTHER.public.text)
    inline = "study = { name = 'a', outcome = 'y', classes = ['a', 'b'] }\n[columns.x]\nkind = 'number'\n"
    with pytest.raises(InvalidData, match="put this into"):
        with_coordinator(inline, KEY.public.text)


@pytest.mark.parametrize("method", ["fedlogit", "apfl"])
def test_rounds_of_somebody_else_are_not_answered(tmp_path, method):
    asked = advance(store_with(tmp_path), method, {"dim_primary": 8} if method == "apfl" else {}).data
    assert answer(NAMED, fgm.read(asked), client("north", study=NAMED)).number == 1
    for key, words in ((OTHER, "someone else wrote it"), (None, "is not signed, and study 'walks' names")):
        forged = signed_again(asked, key)
        with pytest.raises(RefusedMessage, match=words):
            answer(NAMED, forged, client("north", study=NAMED))
        with pytest.raises(RefusedMessage, match=words):
            Passport.of(forged)


def test_models_of_somebody_else_are_not_taken(tmp_path):
    data = store_with(tmp_path / "store").publish("afl").data
    assert "names this key as its coordinator's" in Passport.of(fgm.read(data)).signed
    fgm.write(tmp_path / "global.fgm", data)
    assert model_of(tmp_path / "global.fgm").study == NAMED
    forged = signed_again(data, OTHER)
    fgm.write(tmp_path / "forged.fgm", forged.data)
    for take in (
        lambda: personalize(forged, client("north"), Party("north")),
        lambda: Passport.of(forged),
        lambda: model_of(tmp_path / "forged.fgm"),
    ):
        with pytest.raises(RefusedMessage, match=f"signed with the key {OTHER.public}.*names {KEY.public} as its"):
            take()


def test_the_signer_is_shown(tmp_path):
    data = store_with(tmp_path / "named").publish("afl").data
    assert signer_line(fgm.read(data), NAMED).endswith(f"coordinator of study 'walks' {readable(NAMED.fingerprint)}")
    plain = store_with(tmp_path / "plain", STUDY, OTHER).publish("afl").data
    shown = signer_line(fgm.read(plain), STUDY)
    assert str(OTHER.public) in shown
    assert "names no coordinator" in shown
    assert "names no coordinator's key" in Passport.of(fgm.read(plain)).signed
    assert "is not signed" in signer_line(signed_again(plain, None), STUDY)


def test_a_file_of_another_study_is_not_what_was_agreed_on(tmp_path):
    """A forger can put another coordinator into a model; only the party's own study file detects that."""
    forged = fgm.read(store_with(tmp_path, replace(NAMED, coordinator=OTHER.public.text), OTHER).publish("afl").data)
    check_coordinator(forged, forged.payload.study)
    with pytest.raises(RefusedMessage, match=f"signed with the key {OTHER.public}.* names {KEY.public} as its"):
        check_agreed(forged, NAMED)
    other = replace(NAMED, minimum_samples=6)
    found = fgm.read(store_with(tmp_path / "other", other).publish("afl").data)
    with pytest.raises(
        Mismatch,
        match=(
            r"is of study 'walks' [-a-z2-7]{39} \(minimum_samples 6 there, 5 here\), "
            "and study 'walks' [-a-z2-7]{39} is expected: ask its sender"
        ),
    ):
        check_agreed(found, NAMED)


def test_a_store_has_the_coordinators_key(tmp_path):
    with pytest.raises(StoreError, match=f"study 'walks' names its coordinator's key, {KEY.public}: .* --key"):
        Store(tmp_path / "none", study=NAMED).join(summary("north", study=NAMED))
    with pytest.raises(StoreError, match=f"has the key {OTHER.public}, and study"):
        Store(tmp_path / "other", study=NAMED, key=OTHER).join(summary("north", study=NAMED))
    assert not (tmp_path / "none" / "coordinator.key").exists()
    KEY.save(tmp_path / "mine.key")
    store = store_with(tmp_path / "store", key=tmp_path / "mine.key")
    assert store.public_key == store.key.public.text == KEY.public.text
    again = Store(tmp_path / "store")
    assert again.join(summary("west", study=NAMED))[0].outcome == "joined"
    with pytest.raises(StoreError, match="keeps it: leave --key out"):
        Store(tmp_path / "store", key=OTHER).join(summary("west", study=NAMED))
    (tmp_path / "store" / "coordinator.key").unlink()
    OTHER.save(tmp_path / "store" / "coordinator.key")
    with pytest.raises(StoreError, match=f"has the key {OTHER.public}"):
        Store(tmp_path / "store").join(summary("west", study=NAMED))


def test_a_store_of_an_unnamed_coordinator_changes_without_its_key(tmp_path):
    store_with(tmp_path, STUDY, None)
    (tmp_path / "coordinator.key").unlink()
    assert Store(tmp_path).remove("north").detail("party") == "north"


def test_regions_have_keys_of_their_own(tmp_path):
    parties = {name: KEYS[name].public.text for name in NAMES}
    study = replace(NAMED, parties=parties, regions=("south",))
    store = Store(tmp_path, study=study, key=KEYS["south"])
    [joined] = store.join(summary("north", study=study, key=KEYS["north"]))
    check_agreed(fgm.read(joined.receipt), study)
    with pytest.raises(RefusedMessage, match="someone else wrote it"):
        check_agreed(signed_again(joined.receipt.read_bytes(), OTHER), study)
    with pytest.raises(RefusedMessage, match="someone else wrote it"):  # a region does not publish for others
        check_agreed(fgm.read(store.publish("afl").data), study)
    assert isinstance(fg.Store(tmp_path).total().n, int)
    with pytest.raises(StoreError, match="names"):
        Store(tmp_path / "north", study=study, key=KEYS["north"]).join(summary("north", study=study, key=KEYS["north"]))
