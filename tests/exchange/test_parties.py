"""A party's files: its summary, its answers to rounds, and its own model are those of one process."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import (
    Doubtful,
    InvalidData,
    InvalidParameter,
    Mismatch,
    RefusedMessage,
    Revealing,
    UnknownName,
)
from fedgram.exchange import files
from fedgram.exchange.models import model_of
from fedgram.exchange.rounds import Answer, Round, check_answer
from fedgram.exchange.summaries import Party, fit_of, personalize, reply, summarize
from fedgram.heads.head import Head
from fedgram.heads.logistic import Logistic, Said
from fedgram.moments.moments import Moments
from fedgram.protocol.recipe import basis_of
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from support.exchange import PARTIES, TEXT, key_of, keyed_study, summary, table, tables


@pytest.fixture(scope="module")
def study():
    return keyed_study()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def summaries(study, paths):
    return [summary(study, paths[name], number) for number, name in enumerate(PARTIES)]


def in_process(study, paths, method):
    clients = [read_client(study, name, path) for name, path in paths.items()]
    return method.fit(clients, study=study, classes=study.classes)


def published(study, paths, method):
    """Return what a coordinator publishes: the fit without the total."""
    fit = in_process(study, paths, method)
    told = fg.Fit(
        fit.model,
        fit.method,
        fit.settings,
        0,
        fit.contributors,
        message=fit.published,
        recipe=study,
        basis=fit.basis,
        shape=fit.shape,
    )
    data = files.encode("global", told, study=study.fingerprint, party="coordinator", key=key_of(9))
    return fit, files.read(data)


def test_a_summary_is_what_the_party_sends_in_one_process(study, paths, summaries):
    fit = in_process(study, paths, fg.FedGram())
    total = summaries[0].payload + summaries[1].payload + summaries[2].payload
    assert np.allclose(total.gram, fit.total.gram, rtol=1e-12)
    assert total.counts.tolist() == fit.total.counts.tolist()
    for file, name, number in zip(summaries, PARTIES, range(3), strict=True):
        file.verify(key_of(number).public)
        assert file.header.party == name
        assert file.study == study


def test_summarizing_twice_gives_one_contribution(study, paths, summaries):
    assert summary(study, paths["north"]).digest == summaries[0].digest


def test_thresholds_are_kept_and_small_uploads_warned_of(study, tmp_path):
    path = tmp_path / "few.csv"
    path.write_text(table(5, 9))
    with pytest.raises(InvalidData, match="at least 10 training samples"):
        summarize(study, path, Party("north"))
    rows = table(6, 40, ill=0.0).splitlines()
    path.write_text("\n".join([*rows[:-1], rows[-1].replace(",well", ",ill")]) + "\n")
    with pytest.raises(InvalidData, match="at least 3 training samples of each class"):
        summarize(study, path, Party("north"))
    few = Study.parse(TEXT.replace("minimum_samples = 10", "minimum_samples = 5"))
    path.write_text(table(8, 7))
    rows = [line.rsplit(",", 1)[0] + ",ill" if number else line for number, line in enumerate(path.read_text().split())]
    path.write_text("\n".join(rows) + "\n")
    with pytest.warns(Revealing, match="single rows can be recovered"):
        summarize(few, path, Party("north"))


def test_whose_key_it_is(study, tmp_path):
    for number, name in enumerate(("north", "other")):
        key_of(number).save(tmp_path / f"{name}.key")
    assert Party.of(study, tmp_path / "north.key").name == "north"
    assert Party.of(study, tmp_path / "other.key").name == "south"  # by the study's list, not by the file's name
    assert Party.of(study, None, "east") == Party("east")
    with pytest.raises(InvalidParameter, match="is not the key that study 'walks' lists for 'north'"):
        Party.of(study, tmp_path / "other.key", "north")
    with pytest.raises(UnknownName, match="did you mean 'north'"):
        Party.of(study, None, "nort")
    with pytest.raises(InvalidParameter, match="whose table is it"):
        Party.of(study, None)
    key_of(5).save(tmp_path / "west.key")
    with pytest.raises(UnknownName, match="west"):
        Party.of(study, tmp_path / "west.key")
    assert Party.of(study, tmp_path / "west.key", newcomers=True).name == "west"
    written = replace(study, parties={"north": key_of(0).public.text.upper().replace("-", " "), "south": ""})
    assert Party.of(written, tmp_path / "north.key").name == "north"
    assert Party.of(written, tmp_path / "other.key", "south").name == "south"
    with pytest.raises(InvalidData, match="study 'walks', party 'north': 'abc' is not a public key"):
        Party.of(replace(study, parties={"north": "abc"}), tmp_path / "north.key")


def request(study, ascent, basis, number):
    asked = Round(
        number, "fedlogit", fg.FedLogit().settings(), basis, {"model": ascent.ahead, "leverage": ascent.leverage}
    )
    return files.read(files.encode("round", asked, study=study, party="coordinator", key=key_of(9)))


@pytest.mark.filterwarnings("ignore:no record yet")
def test_fedlogit_by_files_is_fedlogit_in_one_process(study, paths, summaries, tmp_path):
    method = fg.FedLogit(rounds=5)
    fit = in_process(study, paths, method)
    total = summaries[0].payload + summaries[1].payload + summaries[2].payload
    basis = basis_of(study, total)
    ascent = Logistic(basis.moments(total), "auto")
    for number in range(1, 6):
        asked = request(study, ascent, basis, number)
        said = []
        for party, name in enumerate(PARTIES):
            answered = files.read(reply(study, paths[name], Party(name, key_of(party)), asked, records=tmp_path))
            answered.verify(key_of(party).public)
            said.append(check_answer(study, asked, answered, summaries[party].payload).reply)
        ascent.climb(Said(**{name: sum(one[name] for one in said) for name in said[0]}))
    by_files = basis.back(ascent.model, study.sent)
    assert np.allclose(by_files.weights, fit.model.weights, rtol=1e-9, atol=1e-12)
    assert np.allclose(by_files.intercept, fit.model.intercept, rtol=1e-9, atol=1e-12)
    assert isinstance(Head.of_model(ascent.model, basis.moments(total), ascent.pull), Head)


@pytest.fixture(scope="module")
def asked(study, summaries):
    total = summaries[0].payload + summaries[1].payload + summaries[2].payload
    basis = basis_of(study, total)
    return request(study, Logistic(basis.moments(total), "auto"), basis, 2)


@pytest.mark.filterwarnings("ignore:no record yet")
def test_an_answer_to_something_else_is_refused(study, paths, summaries, asked, tmp_path):
    party = Party("north", key_of(0))
    answered = files.read(reply(study, paths["north"], party, asked, records=tmp_path))
    assert answered.payload.request == asked.digest
    joined = summaries[0].payload
    assert check_answer(study, asked, answered, joined).number == 2
    with pytest.raises(Mismatch, match="is of 60 samples, and 'north' has joined with 120"):
        check_answer(study, asked, answered, joined + summaries[1].payload)

    def changed(**options):
        given = {"number": 2, "request": asked.digest, "reply": answered.payload.reply} | options
        said = files.encode("answer", Answer(**given), study=study.fingerprint, party="north", samples=60)
        return files.read(said)

    for wrong in ({"number": 1}, {"number": 3}, {"request": "0" * 64}):
        with pytest.raises(Mismatch, match="answer the newest round's file"):
            check_answer(study, asked, changed(**wrong), joined)
    for wrong in ({"gradient": np.zeros((2, 2))}, {"undecided": 61.0}, {"bend": -1.0}, {"more": 1}):
        with pytest.raises(RefusedMessage, match="refused"):
            check_answer(study, asked, changed(reply=answered.payload.reply | wrong), joined)
    other = Study.parse(TEXT)
    with pytest.raises(Mismatch, match="is of study"):
        check_answer(other, asked, answered, joined)
    with pytest.raises(Mismatch, match="give the study file that the coordinator has"):
        reply(other, paths["north"], party, asked, records=tmp_path)
    with pytest.raises(Mismatch, match="is a summary file, and a round file is wanted"):
        reply(study, paths["north"], party, summaries[0], records=tmp_path)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "fedavg"}, "has no step that is answered by files"),
        ({"method": "os"}, "has no step that is answered by files"),
        ({"settings": {"rounds": -1}}, "rounds"),
        ({"settings": {"path": "x"}}, "path"),
        ({"number": 0}, "a round's number"),
        ({"number": True}, "a round's number"),
        ({"basis": "x"}, "must be a Basis"),
    ],
)
def test_a_coordinator_cannot_ask_for_anything_else(study, asked, wrong, words):
    given = {name: getattr(asked.payload, name) for name in ("number", "method", "settings", "basis", "payload")}
    data = files.encode("round", Round(**given | wrong), study=study, party="coordinator")
    with pytest.raises(RefusedMessage, match=words):
        files.read(data)


@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedHiP(), fg.AFL(), fg.FedLogit(rounds=3)])
def test_own_models_are_those_of_one_process(study, paths, method):
    fit, file = published(study, paths, method)
    made = files.read(personalize(file, paths["north"], Party("north", key_of(0))))
    made.verify(key_of(0).public)
    client = read_client(study, "north", paths["north"])
    expected = fit.personalize(client)
    assert np.array_equal(made.payload.model.scores(client.x), expected.scores(client.x))
    assert made.payload.study == study
    assert (made.header.kind, made.header.samples) == ("personal", 60)


def test_members_and_newcomers_get_different_models(study, paths, tmp_path):
    fit, file = published(study, paths, fg.FedGram())
    member, newcomer = (
        files.read(personalize(file, paths["north"], Party("north"), member=member)).payload for member in (True, False)
    )
    by_name = files.read(personalize(file, paths["north"], Party("north"))).payload
    assert np.array_equal(by_name.model.weights, member.model.weights)
    assert not np.array_equal(newcomer.model.weights, member.model.weights)
    late = tmp_path / "west.csv"
    late.write_text(table(11))
    west = files.read(personalize(file, late, Party("west"))).payload
    client = read_client(study, "west", late)
    assert np.array_equal(west.model.scores(client.x), fit.personalize(client).scores(client.x))


@pytest.mark.parametrize(("method", "kind"), [("fedavg", Mismatch), ("nothing", UnknownName)])
def test_a_published_file_does_not_choose_what_is_set_up(study, paths, method, kind):
    _, file = published(study, paths, fg.FedGram())
    hostile = replace(file.payload, method=method, settings={"network": "os:system"})
    data = files.encode("global", hostile, study=study.fingerprint, party="coordinator", key=key_of(9))
    with pytest.raises(kind, match=method):
        personalize(files.read(data), paths["north"], Party("north"))


def test_models_of_exchanged_files(study, paths, summaries, tmp_path):
    fit, file = published(study, paths, fg.FedGram())
    path = tmp_path / "global.fgm"
    files.write(path, files.encode("global", file.payload, study=study.fingerprint, party="coordinator", key=key_of(9)))
    rows = tmp_path / "new.csv"
    rows.write_text(table(12, 20))
    assert np.array_equal(model_of(path).predict(rows), fit.predictor().predict(rows))
    with pytest.raises(InvalidParameter, match="holds one model"):
        model_of(path, "north")
    mine = tmp_path / "mine.fgm"
    files.write(mine, personalize(file, paths["north"], Party("north", key_of(0))))
    assert model_of(mine).study == study
    files.write(mine, personalize(file, paths["north"], Party("north")))
    with pytest.warns(Doubtful, match="mine.fgm is not signed"):
        model_of(mine)
    one = Moments.of([[1.0]], ["a"], classes=["a", "b"])
    files.write(path, files.encode("summary", one, study="", party="a", samples=1, key=key_of(0)))
    with pytest.raises(Mismatch, match="a summary file, and a global or personal file is wanted"):
        model_of(path)
    with pytest.raises(RefusedMessage, match="the study in it is not the one that its header names"):
        files.read(files.encode("global", file.payload, study="0f3a" * 16, party="coordinator"))
    without = replace(file.payload, recipe=None)
    with pytest.raises(Mismatch, match="holds a fit without a study"):
        fit_of(files.read(files.encode("global", without, study="0f3a" * 16, party="coordinator")))
