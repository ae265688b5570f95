"""Commands of parties and coordinator: APFL's round, and a study that names its coordinator."""

import json

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidParameter, Mismatch, RefusedMessage, StoreError
from fedgram.core.hashing import readable
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import model_of
from fedgram.secure.signing_keys import PrivateKey
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from support.command import fedgram, invoked, run, told
from support.exchange import PARTIES, key_of, table

SUMMARIES = [f"{name}.fgm" for name in PARTIES]


def summarize_all(*more):
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key", *more)


@pytest.mark.filterwarnings("ignore:party '.*' answers with sums over each class")
def test_apfl_from_the_summary_to_predictions(folder):
    summarize_all()
    fedgram("join", "store", *SUMMARIES)
    options = ("publish", "store", "--method", "apfl", "--set", "dim_primary=48", "--set", "dim_refine=32")
    assert told(*options)["file"] == "round-1.fgm"
    assert "apfl, round 1" in told("inspect", "round-1.fgm")["reveals"]
    summarize_all("--round", "round-1.fgm")
    assert "48 features made of the columns over 60 samples" in told("inspect", "north-round-1.fgm")["reveals"]
    fedgram("join", "store", *(f"{name}-round-1.fgm" for name in PARTIES))
    assert told(*options)["method"] == "apfl"
    (folder / "new.csv").write_text(table(20, 40))
    study = Study.read("study.toml")
    parties = [read_client(study, name, f"{name}.csv") for name in PARTIES]
    fit = fg.APFL(dim_primary=48, dim_refine=32).fit(parties, study=study, classes=study.classes)
    x = read_client(study, "north", "new.csv").x
    for name in PARTIES:
        told(
            "personalize",
            "global.fgm",
            f"{name}.csv",
            "--key",
            f"{name}.key",
            "--out",
            f"mine-{name}.fgm",
            "--keep",
            "own",
        )
        scores = model_of(f"mine-{name}.fgm").scores("new.csv")
        np.testing.assert_allclose(scores, fit.personal[name].scores(x), rtol=1e-9, atol=1e-9)
        assert told("predict", f"mine-{name}.fgm", "new.csv")["labels"] == fit.personal[name].predict(x).tolist()
    (folder / "west.csv").write_text(table(21))
    key_of(8).save("west.key")
    said = told("personalize", "global.fgm", "west.csv", "--key", "west.key", "--out", "west-own.fgm")
    assert (said["method"], said["member"]) == ("apfl", False)
    assert told("predict", "global.fgm", "new.csv")["labels"] == fit.model.predict(x).tolist()
    for file in ("global.fgm", "mine-north.fgm", "west-own.fgm"):
        assert told("evaluate", file, "new.csv")["accuracy"] > 0.6
    # A process that has read nothing of APFL yet finds its messages.
    assert json.loads(run("evaluate", "mine-north.fgm", "new.csv", "--json").stdout)["samples"] == 40


def test_the_signer_is_shown_where_no_coordinator_is_named(folder):
    summarize_all()
    fedgram("join", "store", *SUMMARIES)
    fedgram("publish", "store", "--method", "fedlogit", "--set", "rounds=1")
    fedgram("publish", "store")
    key, north = fgm.read("global.fgm").signer, ("north.csv", "--key", "north.key")
    for options in (
        ("summarize", "study.toml", *north, "--round", "round-1.fgm"),
        ("personalize", "global.fgm", *north),
    ):
        shown = invoked(*options).stderr.splitlines()
        assert f"is signed by {key}; study 'walks'" in shown[-1]
        assert len(shown) == 1, "the record of what was sent has begun with the summary"


def test_a_named_coordinator_is_the_only_one(folder):
    for name in ("coordinator", "other"):
        fedgram("keys", "new", name)
    with pytest.raises(InvalidParameter, match="whose keys"):
        fedgram("study", "keys", "study.toml")
    before = Study.read("study.toml")
    found = told("study", "keys", "study.toml", "--coordinator", "coordinator.pub")
    study = Study.read("study.toml")
    assert found["agreement"] == study.agreement != before.agreement
    assert found["fingerprint"] == study.fingerprint == before.fingerprint
    assert study.coordinator in fedgram("study", "show", "study.toml")
    summarize_all()
    for options in ((), ("--key", "other.key")):
        with pytest.raises(StoreError, match="needs its private key, --key|in a new folder, with --key"):
            fedgram("join", "store", *SUMMARIES, *options)
    fedgram("join", "store", *SUMMARIES, "--key", "coordinator.key")
    fedgram("publish", "store", "--method", "fedlogit", "--set", "rounds=1")
    answering = ("summarize", "study.toml", "north.csv", "--key", "north.key", "--round", "round-1.fgm")
    told_so = f"round-1.fgm is signed by the coordinator of study 'walks' {readable(study.fingerprint)}"
    assert invoked(*answering).stderr.strip().splitlines() == [told_so]
    fedgram("publish", "store")
    assert "coordinator's" in told("inspect", "global.fgm", "--study", "study.toml")["signed"]
    told("personalize", "global.fgm", "north.csv", "--key", "north.key", "--study", "study.toml")
    for name in ("round-1", "global"):
        file, forger = fgm.read(f"{name}.fgm"), PrivateKey.load("other.key")
        inside = file.study or study.fingerprint
        data = fgm.encode(file.header.kind, file.payload, study=inside, party="coordinator", key=forger)
        fgm.write(f"{name}.fgm", data)
    for options in (
        ("inspect", "round-1.fgm"),
        ("inspect", "global.fgm"),
        answering,
        ("personalize", "global.fgm", "north.csv", "--key", "north.key"),
        ("evaluate", "global.fgm", "north.csv"),
    ):
        with pytest.raises(RefusedMessage, match="someone else wrote it"):
            fedgram(*options)
    text = (folder / "study.toml").read_text()
    (folder / "unnamed.toml").write_text(text.replace("coordinator =", "# coordinator ="))
    signed = told("inspect", "round-1.fgm", "--study", "unnamed.toml")["signed"]
    assert signed == "fits; the study names no coordinator's key to compare it with"
    (folder / "plain.toml").write_text(text.replace("[0, 120]", "[0, 121]"))
    for command in (("inspect", "north.fgm"), ("inspect", "round-1.fgm")):
        with pytest.raises(Mismatch, match="is expected: ask its sender for a file of the study"):
            fedgram(*command, "--study", "plain.toml")
