"""Two studies are compared in full: a collision of fingerprints, a name or a key cannot swap them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import FedgramError, Mismatch, RefusedMessage, StoreError
from fedgram.core.hashing import hash_text, readable
from fedgram.engines.flower.app import agreed_study
from fedgram.engines.flower.config import App, NodeConfig
from fedgram.engines.flower.project import write_app
from fedgram.exchange.format import fgm
from fedgram.exchange.format.coordinator import check_agreed
from fedgram.exchange.pages.passport import Passport
from fedgram.exchange.rounds.party_side import model_of
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.study_store import Store
from fedgram.models import LinearModel
from fedgram.studies import Study
from fedgram.studies import study as studies
from fedgram.studies.kinds import Number
from support.exchange import TEXT, key_of, keyed_study, tables
from support.exchange import summary as signed_summary
from support.fgm import body_of, rewritten, sealed
from support.patients import config_of
from support.stores import KEYS, REGIONAL, STUDY, answered, client, keyed, store_of, summary

EVIL = replace(STUDY, columns=dict(STUDY.columns) | {"age": Number(range=(0, 240))})


def zeros(study):
    """Return a model of the study whose scores are all 0."""
    return LinearModel(np.zeros((len(study.sent), 2)), study.classes, None, study.features, study.sent)


@pytest.fixture
def collision(monkeypatch):
    """Let all studies have one fingerprint, as a search for two such studies would find."""
    monkeypatch.setattr(studies, "hash_text", lambda text: "ab" * 32)
    agreed, evil = replace(STUDY), replace(EVIL)  # whose fingerprints were not computed yet
    assert agreed.fingerprint == evil.fingerprint == "ab" * 32
    assert agreed != evil
    return agreed, evil


def test_a_store_takes_no_study_with_an_equal_fingerprint(tmp_path, collision):
    agreed, evil = collision
    store = store_of(tmp_path, "north", study=agreed)
    [south, east] = store.join(summary("south", study=evil), summary("east", study=agreed))
    assert (south.outcome, east.outcome) == ("refused", "joined")
    assert "whose text differs though the fingerprint is the same" in south.why
    with pytest.raises(StoreError, match="whose text differs"):
        Store(tmp_path, study=evil)


def test_no_sum_of_another_study_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "hash_text", lambda text: "ab" * 32)
    evil = replace(REGIONAL, columns=EVIL.columns)
    store = Store(tmp_path / "country", study=replace(REGIONAL))
    [found] = store.join(store_of(tmp_path / "a", "north", study=evil).combine("a"))
    assert "whose text differs" in found.why


def test_no_file_of_another_study_is_what_was_agreed_on(tmp_path, collision):
    agreed, evil = collision
    store = store_of(tmp_path, "north", "south", study=evil)
    asked, published = fgm.read(advance(store, "fedlogit", {}).data), fgm.read(store.publish("afl").data)
    for file in (fgm.read(summary("north", study=evil)), asked, published):
        with pytest.raises(Mismatch, match="whose text differs"):
            check_agreed(file, agreed)
        check_agreed(file, evil)
    with pytest.raises(Mismatch, match="whose text differs"):
        answered("north", asked.data, study=agreed)


def test_commands_compare_whole_studies(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "hash_text", lambda text: "ab" * 32)
    monkeypatch.chdir(tmp_path)
    paths = tables(tmp_path)
    (tmp_path / "agreed.toml").write_text(TEXT)
    evil = Study.parse(TEXT.replace("[0, 120]", "[0, 240]"))
    data = [fgm.read(signed_summary(evil, paths[name], number).data) for number, name in enumerate(paths)]
    fgm.write("north.fgm", data[0].data)
    store = Store("store", study=evil)
    store.join(*(each.data for each in data))
    fgm.write("global.fgm", store.publish("fedgram").data)
    for command in (
        ("inspect", "north.fgm", "--study", "agreed.toml"),
        ("personalize", "global.fgm", "north.csv", "--party", "north", "--study", "agreed.toml"),
        ("summarize", "agreed.toml", "north.csv", "--party", "north", "--round", "global.fgm"),
    ):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, FedgramError), done.output
        if command[0] != "summarize":
            assert "whose text differs" in str(done.exception)


def test_a_model_has_the_study_that_its_file_names(collision):
    """Predictions and evaluations use the study inside; the study beside it must be the same."""
    agreed, evil = collision
    data = fgm.encode("personal", evil.model(zeros(evil)), study=agreed, party="north")
    with pytest.raises(RefusedMessage, match="the study in it is not the one that its header names"):
        fgm.read(data)
    alone = fgm.encode("personal", evil.model(zeros(evil)), study=evil.fingerprint, party="north")
    with pytest.raises(Mismatch, match="whose text differs"):
        check_agreed(fgm.read(alone), agreed)


def test_a_node_compares_whole_studies(tmp_path, collision):
    own, run = TEXT, TEXT.replace("[0, 120]", "[0, 240]")
    (tmp_path / "study.toml").write_text(own)
    node = NodeConfig(study=str(tmp_path / "study.toml"), name="north")
    assert agreed_study(node, App.read({"study": own, "study-fingerprint": "ab" * 32})) == Study.parse(own)
    with pytest.raises(Mismatch, match="whose text differs") as caught:
        agreed_study(node, App.read({"study": run, "study-fingerprint": "ab" * 32}))
    assert "whose text differs" in caught.value.told


def test_every_fingerprint_in_a_file_has_256_bits(tmp_path):
    study = keyed()
    assert (study.fingerprint, study.agreement) == (hash_text(study.rules), hash_text(study.text))
    north, south = (summary(name, study=study, key=KEYS[name]) for name in ("east", "south"))
    assert [each.outcome for each in Store(tmp_path / "keyed", study=study).join(north, south)] == ["joined"] * 2
    store = Store(tmp_path / "keyed")
    asked = advance(store, "fedlogit", {}).data
    published = store.publish("afl").data
    store.remove("south")
    clients = [client("east", study=study), client("west", study=study)]
    fg.AFL().fit(clients, study=study).save(tmp_path / "fit.safetensors")
    (tmp_path / "study.toml").write_text(TEXT)
    write_app(tmp_path / "app", None, {}, study=tmp_path / "study.toml")
    written = {
        "summary": north,
        "round": asked,
        "answer": answered("east", asked, study=study, key=KEYS["east"]),
        "global": published,
        "personal": fgm.encode("personal", study.model(zeros(study)), study=study.fingerprint, party="east"),
        "certificate": store.certificate("south"),
        "combined": store.combine("region"),
        "receipt": next((tmp_path / "keyed" / "receipts").iterdir()).read_bytes(),
        "index": (tmp_path / "keyed" / "index.sqlite").read_bytes(),
        "fit": (tmp_path / "fit.safetensors").read_bytes(),
    }
    for what, data in written.items():
        assert study.fingerprint.encode() in data, what
        assert len(re.findall(study.fingerprint[:16].encode(), data)) == data.count(study.fingerprint.encode()), what
    assert config_of(tmp_path / "app")["study-fingerprint"] == Study.parse(TEXT).fingerprint
    short = re.compile(rb'"study":"[0-9a-f]{1,63}"')
    assert not any(short.search(data) for data in written.values())
    assert len(study.fingerprint) == 64


def test_people_compare_160_bits_in_eight_groups_of_four():
    shown = readable(STUDY.fingerprint)
    assert re.fullmatch("[a-z2-7]{4}(-[a-z2-7]{4}){7}", shown)
    other = STUDY.fingerprint[:39] + ("0" if STUDY.fingerprint[39] != "0" else "1") + STUDY.fingerprint[40:]
    assert readable(other) != shown, "the last of 160 bits counts"
    assert readable("") == ""
    facts = dict(Passport.of(fgm.read(summary("north"))).facts())
    assert facts["study"] == f"walks  fingerprint {shown}"


@pytest.mark.parametrize("length", [1, 16, 32, 63, 65])
def test_a_file_with_a_shorter_fingerprint_is_refused(length):
    data = fgm.encode("certificate", {"x": 1}, study="a" * length, party="north")
    with pytest.raises(RefusedMessage, match="'study': expected 64 hexadecimal digits"):
        fgm.read(data)


# What a message may not have in place of a text
def forged(data, change):
    """Return a file whose payload's tree was changed, with the right hashes."""
    metadata, shapes = fgm.parse(data)
    tree = json.loads(metadata["fedgram"])
    change(tree["payload"]["dict"]["study"])
    text = json.dumps(tree, separators=(",", ":"))
    return sealed(metadata | {"fedgram": text}, shapes, body_of(data))


def column_names(study, name):
    for column in study["fields"]["columns"]["list"][:1]:
        if "plain" in column:
            column["list"] = column.pop("plain")
        column["list"][0] = name


BAD_NAMES = {
    "a study": lambda study: column_names(study, json.loads(json.dumps(study))),
    "a number": lambda study: column_names(study, 3),
    "a truth": lambda study: column_names(study, True),
    "nothing": lambda study: column_names(study, None),
    "a list": lambda study: column_names(study, {"plain": ["a"]}),
    "a name": lambda study: study["fields"].update(name=3),
    "an outcome": lambda study: study["fields"].update(outcome={"plain": [1, 2]}),
    "a method": lambda study: study["fields"].update(method="evil.py"),
    "a module": lambda study: study["fields"].update(method="this:x"),
    "a party": lambda study: study["fields"].update(parties={"list": [{"plain": [3, ""]}]}),
    "a party twice": lambda study: study["fields"].update(
        parties={"list": [{"plain": ["a", ""]}, {"plain": ["a", ""]}]}
    ),
    "a column twice": lambda study: study["fields"]["columns"]["list"].append(study["fields"]["columns"]["list"][0]),
    "a backbone": lambda study: study["fields"]["columns"]["list"].append(
        {"list": ["scan", "image", {"dict": {"backbone": "lite0"}}]}
    ),
}


@pytest.mark.parametrize("change", BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_in_a_message_are_texts_and_a_bad_file_keeps_no_other_out(tmp_path, monkeypatch, change):
    bad = forged(summary("north"), change)
    with pytest.raises(RefusedMessage):
        fgm.read(bad)
    monkeypatch.chdir(tmp_path)
    fgm.write("bad.fgm", bad)
    done = CliRunner().invoke(app, ["inspect", "bad.fgm"])
    assert isinstance(done.exception, RefusedMessage)
    found = Store(tmp_path / "store", study=STUDY).join(bad, summary("south"))
    assert [each.outcome for each in found] == ["refused", "joined"]


def test_a_sum_in_a_study_without_regions_cannot_claim_names(tmp_path):
    """Otherwise an unsigned file would keep out the parties that it names."""
    inside = fgm.read(store_of(tmp_path / "b", "north", "south").combine("region"))
    store = Store(tmp_path / "store", study=STUDY)
    [claimed] = store.join(inside.data)
    assert "does not list 'region' among its regions" in claimed.why
    assert [each.outcome for each in store.join(summary("north"), summary("south"))] == ["joined"] * 2
    with pytest.raises(FedgramError, match="regions names 'region', which is not among the parties"):
        replace(STUDY, regions=("region",))


def test_a_model_of_other_classes_than_its_studys_is_refused_on_reading(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = keyed_study()
    paths = tables(tmp_path)
    good = study.model(zeros(study))
    for classes in (("ill", "os:system"), ("well", "ill")):
        other = replace(good.model, classes=classes)
        with pytest.raises(Mismatch, match="this model has the classes .* and study 'walks' has 'ill', 'well'"):
            study.model(other)
        forged_model = study.model(good.model)
        object.__setattr__(forged_model, "model", other)
        fgm.write(
            "mine.fgm", fgm.encode("personal", forged_model, study=study.fingerprint, party="north", key=key_of(0))
        )
        for command in (("predict", "mine.fgm", str(paths["north"])), ("evaluate", "mine.fgm", str(paths["north"]))):
            done = CliRunner().invoke(app, command)
            assert isinstance(done.exception, RefusedMessage), done.output
            assert "this model has the classes" in str(done.exception)
    with pytest.raises(RefusedMessage):
        model_of("mine.fgm")


# JSON that two readers understand differently
def test_a_name_twice_in_a_payload_is_refused():
    data = summary("north", key=KEYS["north"])
    metadata, shapes = fgm.parse(data)
    text = metadata["fedgram"]
    for place in ('"payload":', '"schema":', '"message":', '"fields":'):
        start = text.index(place)
        twice = f"{text[:start]}{place}null,{text[start:]}"
        with pytest.raises(RefusedMessage, match="stands twice in an object"):
            fgm.read(sealed(metadata | {"fedgram": twice}, shapes, body_of(data)))
    outer = data.replace(b'"party":"north"', b'"party":"south","party":"north"')
    length = int.from_bytes(data[:8], "little") + len(outer) - len(data)
    with pytest.raises(RefusedMessage, match="stands twice in an object"):
        fgm.read(length.to_bytes(8, "little") + outer[8:])
    with pytest.raises(RefusedMessage):
        fgm.read(rewritten(data, lambda entries: entries["__metadata__"].update(columns='["a","a"]')))
