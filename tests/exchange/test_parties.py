"""A party's files: its summary, its answers to rounds, and its own model are those of one process."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import (
    Doubtful,
    FedgramError,
    InvalidData,
    InvalidParameter,
    Mismatch,
    RefusedMessage,
    Revealing,
    UnknownName,
    tell,
)
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import Party, fit_of, model_of, personalize, reply, summarize
from fedgram.exchange.rounds.round_messages import Answer, Round, check_answer
from fedgram.heads.head import Head
from fedgram.heads.logistic import Logistic, Said
from fedgram.moments.moments import Moments
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
    """Return a coordinator's publication: the fit without the total."""
    fit = in_process(study, paths, method)
    told = fg.Fit(
        fit.model,
        fit.method,
        fit.settings,
        0,
        fit.contributors,
        message=fit.published,
        study=study,
        basis=fit.basis,
        shape=fit.shape,
    )
    data = fgm.encode("global", told, study=study.fingerprint, party="coordinator", key=key_of(9))
    return fit, fgm.read(data)


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
    with pytest.raises(InvalidData, match="at least 10 training samples, and your table has 9") as found:
        summarize(study, path, Party("north", key_of(0)))
    assert tell(found.value).endswith("at least 10 training samples, and this one has fewer")
    rows = table(6, 40, ill=0.0).splitlines()
    path.write_text("\n".join([*rows[:-1], rows[-1].replace(",well", ",ill")]) + "\n")
    with pytest.raises(
        InvalidData, match="at least 3 training samples of each class .* your table has 1 of class 'ill'"
    ):
        summarize(study, path, Party("north", key_of(0)))
    few = Study.parse(
        TEXT.replace("minimum_samples = 10", "minimum_samples = 5\nminimum_group = 0\nmaximum_columns_per_row = 0")
    )
    path.write_text(table(8, 7))
    rows = [line.rsplit(",", 1)[0] + ",ill" if number else line for number, line in enumerate(path.read_text().split())]
    path.write_text("\n".join(rows) + "\n")
    with pytest.warns(Revealing, match="single rows can be recovered"):
        summarize(few, path, Party("north"))


def test_unsigned_files_are_not_written_where_the_study_lists_keys(study, paths, tmp_path):
    """Before a table is read: the coordinator would refuse such a file."""
    some = replace(study, parties={**study.parties, "east": ""})
    for each, name in ((study, "north"), (some, "east")):
        with pytest.raises(InvalidParameter, match=f"the private key of '{name}', .* lists keys, got none; sign with"):
            summarize(each, tmp_path / "none.csv", Party(name))
        with pytest.raises(InvalidParameter, match="sign with --key"):
            reply(each, tmp_path / "none.csv", Party(name), None, records=tmp_path)
    assert fgm.read(summarize(Study.parse(TEXT), paths["north"], Party("north"))).signer is None


def test_whose_key_it_is(study, tmp_path):
    for number, name in enumerate(("north", "other")):
        key_of(number).save(tmp_path / f"{name}.key")
    assert Party.of(study, tmp_path / "north.key").name == "north"
    assert Party.of(study, tmp_path / "other.key").name == "south"  # by the study's list, not by the file's name
    assert Party.of(study, None, "east") == Party("east")
    with pytest.raises(InvalidParameter, match="is not the key that study 'walks' lists for 'north', it is .* 'south'"):
        Party.of(study, tmp_path / "other.key", "north")
    key_of(6).save(tmp_path / "newer.key")
    with pytest.warns(Doubtful, match="is not the key that study 'walks' lists for 'north'.*amend STORE --rotate"):
        assert Party.of(study, tmp_path / "newer.key", "north").name == "north"
    with pytest.warns(Doubtful, match="did you mean 'north'"):
        Party.of(study, None, "nort")
    with pytest.raises(InvalidParameter, match="expected a name or a key, got neither"):
        Party.of(study, None)
    key_of(5).save(tmp_path / "west.key")
    with pytest.warns(Doubtful, match="party 'west' is not listed.*only after .* amend STORE --add west.pub"):
        assert Party.of(study, tmp_path / "west.key").name == "west"
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
    return fgm.read(fgm.encode("round", asked, study=study, party="coordinator", key=key_of(9)))


@pytest.mark.filterwarnings("ignore:no record yet")
def test_fedlogit_by_files_is_fedlogit_in_one_process(study, paths, summaries, tmp_path):
    method = fg.FedLogit(rounds=5)
    fit = in_process(study, paths, method)
    total = summaries[0].payload + summaries[1].payload + summaries[2].payload
    basis = study.basis_of(total)
    ascent = Logistic(basis.moments(total), "auto")
    for number in range(1, 6):
        asked = request(study, ascent, basis, number)
        said = []
        for party, name in enumerate(PARTIES):
            answered = fgm.read(reply(study, paths[name], Party(name, key_of(party)), asked, records=tmp_path))
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
    basis = study.basis_of(total)
    return request(study, Logistic(basis.moments(total), "auto"), basis, 2)


@pytest.mark.filterwarnings("ignore:no record yet")
def test_an_answer_to_something_else_is_refused(study, paths, summaries, asked, tmp_path):
    party = Party("north", key_of(0))
    answered = fgm.read(reply(study, paths["north"], party, asked, records=tmp_path))
    assert answered.payload.request == asked.digest
    joined = summaries[0].payload
    assert check_answer(study, asked, answered, joined).number == 2
    with pytest.raises(Mismatch, match="expected the 120 samples that 'north' has joined with, got 60"):
        check_answer(study, asked, answered, joined + summaries[1].payload)

    def changed(**options):
        given = {"number": 2, "request": asked.digest, "reply": answered.payload.reply} | options
        said = fgm.encode("answer", Answer(**given), study=study.fingerprint, party="north", samples=60)
        return fgm.read(said)

    for wrong in ({"number": 1}, {"number": 3}, {"request": "0" * 64}):
        with pytest.raises(Mismatch, match="answer the newest round's file"):
            check_answer(study, asked, changed(**wrong), joined)
    for wrong in ({"gradient": np.zeros((2, 2))}, {"undecided": 61.0}, {"bend": -1.0}, {"more": 1}):
        with pytest.raises(RefusedMessage, match="refused"):
            check_answer(study, asked, changed(reply=answered.payload.reply | wrong), joined)
    other = Study.parse(TEXT.replace("minimum_samples = 10", "minimum_samples = 9"))
    with pytest.raises(Mismatch, match="refused: it is of study"):
        check_answer(other, asked, answered, joined)
    with pytest.raises(Mismatch, match="give the study file that the coordinator has"):
        reply(other, paths["north"], party, asked, records=tmp_path)
    with pytest.raises(Mismatch, match="expected a round file, got a summary file"):
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
        ({"basis": "x"}, "expected a Basis"),
    ],
)
def test_a_coordinator_cannot_ask_for_anything_else(study, asked, wrong, words):
    given = {name: getattr(asked.payload, name) for name in ("number", "method", "settings", "basis", "payload")}
    data = fgm.encode("round", Round(**given | wrong), study=study, party="coordinator")
    with pytest.raises(RefusedMessage, match=words):
        fgm.read(data)


@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedHiP(), fg.AFL(), fg.FedLogit(rounds=3)])
def test_own_models_are_those_of_one_process(study, paths, method):
    fit, file = published(study, paths, method)
    keep = "own" if method.personal else "better"  # AFL has a global model alone
    made = fgm.read(personalize(file, paths["north"], Party("north", key_of(0)), keep=keep).data)
    made.verify(key_of(0).public)
    client = read_client(study, "north", paths["north"])
    expected = fit.personalize(client)
    assert np.array_equal(made.payload.model.scores(client.x), expected.scores(client.x))
    assert made.payload.study == study
    assert (made.header.kind, made.header.samples) == ("personal", 60)


def test_members_and_newcomers_get_different_models(study, paths, tmp_path):
    fit, file = published(study, paths, fg.FedGram())
    member, newcomer = (
        fgm.read(personalize(file, paths["north"], Party("north"), member=member, keep="own").data).payload
        for member in (True, False)
    )
    by_name = fgm.read(personalize(file, paths["north"], Party("north"), keep="own").data).payload
    assert np.array_equal(by_name.model.weights, member.model.weights)
    assert not np.array_equal(newcomer.model.weights, member.model.weights)
    late = tmp_path / "west.csv"
    late.write_text(table(11))
    west = fgm.read(personalize(file, late, Party("west"), keep="own").data).payload
    client = read_client(study, "west", late)
    assert np.array_equal(west.model.scores(client.x), fit.personalize(client).scores(client.x))


@pytest.mark.parametrize(("method", "kind"), [("fedavg", Mismatch), ("nothing", UnknownName)])
def test_a_published_file_does_not_choose_what_is_set_up(study, paths, method, kind):
    _, file = published(study, paths, fg.FedGram())
    hostile = replace(file.payload, method=method, settings={"network": "os:system"})
    data = fgm.encode("global", hostile, study=study.fingerprint, party="coordinator", key=key_of(9))
    with pytest.raises(kind, match=method):
        personalize(fgm.read(data), paths["north"], Party("north"))


def test_models_of_exchanged_files(study, paths, summaries, tmp_path):
    fit, file = published(study, paths, fg.FedGram())
    path = tmp_path / "global.fgm"
    fgm.write(path, fgm.encode("global", file.payload, study=study.fingerprint, party="coordinator", key=key_of(9)))
    rows = tmp_path / "new.csv"
    rows.write_text(table(12, 20))
    assert np.array_equal(model_of(path).predict(rows), fit.predictor().predict(rows))
    with pytest.raises(InvalidParameter, match="holds one model"):
        model_of(path, "north")
    mine = tmp_path / "mine.fgm"
    fgm.write(mine, personalize(file, paths["north"], Party("north", key_of(0))).data)
    assert model_of(mine).study == study
    fgm.write(mine, personalize(file, paths["north"], Party("north")).data)
    with pytest.warns(Doubtful, match="mine.fgm is not signed"):
        model_of(mine)
    one = Moments.of([[1.0]], ["a"], classes=["a", "b"])
    fgm.write(path, fgm.encode("summary", one, study="", party="a", samples=1, key=key_of(0)))
    with pytest.raises(Mismatch, match="expected a global or personal file, got a summary file"):
        model_of(path)
    with pytest.raises(RefusedMessage, match="the study in it is not the one that its header names"):
        fgm.read(fgm.encode("global", file.payload, study="0f3a" * 16, party="coordinator"))
    without = replace(file.payload, study=None)
    with pytest.raises(Mismatch, match="expected a fit with its study"):
        fit_of(fgm.read(fgm.encode("global", without, study="0f3a" * 16, party="coordinator")))


def test_load_reads_exchanged_files(study, paths, tmp_path):
    fit, file = published(study, paths, fg.FedGram())
    path, mine = tmp_path / "global.fgm", tmp_path / "mine.fgm"
    fgm.write(path, file.data)
    fgm.write(mine, personalize(file, paths["north"], Party("north", key_of(0)), keep="own").data)
    rows = tmp_path / "new.csv"
    rows.write_text(table(12, 20))
    found = fg.load(path)
    assert isinstance(found, fg.Fit)
    assert found.contributors == fit.contributors
    assert np.array_equal(found.predictor().predict(rows), fit.predictor().predict(rows))
    own = fg.load(mine)
    assert (own.kept, own.study) == ("own", study)
    assert np.array_equal(own.predict(rows), model_of(mine).predict(rows))
    client = read_client(study, "north", paths["north"])
    assert np.array_equal(own.model.scores(client.x), found.personalize(client).scores(client.x))
    fgm.write(path, fgm.encode("global", file.payload, study=study.fingerprint, party="coordinator"))
    with pytest.warns(Doubtful, match="global.fgm is not signed"):
        fg.load(path)
    forged = bytearray(file.data)
    forged[-1] ^= 1
    path.write_bytes(bytes(forged))
    with pytest.raises(RefusedMessage, match="damaged or changed"):
        fg.load(path)
    fgm.write(path, summary(study, paths["north"]).data)
    with pytest.raises(Mismatch, match="expected a global or personal file, got a summary file"):
        fg.load(path)


def test_load_names_what_is_not_a_model(tmp_path):
    with pytest.raises(FileNotFoundError) as found:
        fg.load(tmp_path / "missing")
    assert isinstance(found.value, FedgramError)
    assert isinstance(found.value, InvalidData)
    files = {
        "table.csv": (table(1).encode(), "a text, such as a table"),
        "leer.csv": ("größe,ärzte\n".encode("cp1252") * 9, "not a fedgram message"),
        "wide.csv": ("größe,ärzte\n".encode() * 999, "a text, such as a table"),
        "empty": (b"", "an empty file"),
        "book.xlsx": (b"PK\x03\x04" + bytes(99), "an Excel file"),
        "table.parquet": (b"PAR1" + bytes(99), "a Parquet table"),
        "model.pkl": (b"\x80\x04\x95" + bytes(99), "a pickle"),
        "noise": (bytes(range(200, 256)) * 9, "not a fedgram message"),
    }
    for name, (content, what) in files.items():
        (tmp_path / name).write_bytes(content)
        for read in (fg.load, model_of):
            with pytest.raises(FedgramError, match=what):
                read(tmp_path / name)
