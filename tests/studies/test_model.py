"""A model with its study predicts from tables as parties have them."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import BadSamples, InvalidData, InvalidParameter, Mismatch, RefusedMessage, UnknownName
from fedgram.protocol.fit import load, load_model
from fedgram.studies import Study
from fedgram.studies import model as module
from fedgram.studies.encoding import open_for, read_client
from studies.test_basis import STUDY, Table, table

METHODS = [
    fg.FedGram(),
    fg.AFL(),
    fg.APFL(dim_primary=8, dim_refine=8),
    fg.FedAvg(rounds=1, network="mlp:4"),
    fg.FedACnnL(network="dnn"),
]


def parts(seed=0):
    rng = np.random.default_rng(seed)
    tables = [table(n, rng) for n in (40, 60)]
    for part in tables:
        part["y"] = np.where(part["plain"] + rng.normal(size=len(part)) > 0, "yes", "no")
    return tables


@pytest.fixture(scope="module")
def fit():
    clients = [read_client(STUDY, f"party-{k}", part) for k, part in enumerate(parts())]
    return fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes)


def shuffled(part, *, without=()):
    return Table({name: part[name] for name in sorted(part, reverse=True) if name not in without})


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_model_predicts_from_tables(method):
    tables = parts()
    clients = [read_client(STUDY, f"party-{k}", part) for k, part in enumerate(tables)]
    fit = method.fit(clients, study=STUDY, classes=STUDY.classes)
    models = {None: fit.model} | dict(fit.personal)
    for name, model in models.items():
        whole = fit.predictor(name)
        assert isinstance(whole, fg.Model)
        assert np.array_equal(whole.scores(shuffled(tables[0])), model.scores(clients[0].x))
        assert np.array_equal(whole.predict(tables[0]), model.predict(clients[0].x))
        probabilities = whole.predict_proba(tables[0])
        assert np.array_equal(probabilities, model.predict_proba(clients[0].x))
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_tables_of_arrow_and_files(fit, tmp_path):
    part = parts(1)[0]
    model = fit.predictor()
    want = model.predict_proba(part)
    columns = {name: pa.array(list(values)) for name, values in part.items() if name != "y"}
    arrow = pa.table(columns)
    np.testing.assert_allclose(model.predict_proba(arrow), want)

    class Stream:  # as polars offers itself
        def __arrow_c_stream__(self, requested_schema=None):
            return arrow.__arrow_c_stream__(requested_schema)

    np.testing.assert_allclose(model.predict_proba(Stream()), want)
    pa.parquet = pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(arrow, tmp_path / "new.parquet")
    np.testing.assert_allclose(model.predict_proba(tmp_path / "new.parquet"), want)


def test_what_does_not_fit_the_study_is_refused(fit):
    model, part = fit.predictor(), parts(2)[0]
    with pytest.raises(Mismatch, match="lacks column 'ward'"):
        model.predict(shuffled(part, without=("ward",)))
    with pytest.raises(Mismatch, match="unknown column 'wart'"):
        model.predict(Table(part | {"wart": part["ward"]}))
    strange = Table(part | {"ward": np.where(np.arange(len(part)) == 3, "z", part["ward"])})
    with pytest.raises(InvalidData, match="row 4: column 'ward' must be one of"):
        model.predict(strange)
    with pytest.raises(InvalidData, match="named columns"):
        model.predict(np.zeros((2, 5)))


def test_the_outcome_may_be_missing_or_strange(fit):
    model, part = fit.predictor(), parts(3)[0]
    want = model.predict(part)
    without = pa.table({name: pa.array(list(values)) for name, values in part.items() if name != "y"})
    assert np.array_equal(model.predict(without), want)
    odd = Table(part | {"y": np.array(["maybe"] * len(part))})
    assert np.array_equal(model.predict(odd), want)


@pytest.mark.parametrize("rows", [7, 1 << 14])
def test_blocks_keep_every_row_in_its_place(fit, monkeypatch, rows):
    monkeypatch.setattr(module, "ROWS", rows)
    part = parts(4)[1]
    part["plain"] = np.where(np.arange(len(part)) % 5 == 0, np.nan, part["plain"])  # which the study refuses
    whole = replace_missing(part)
    found = list(fit.predictor().read(part))
    assert [bool(reason) for block in found for reason in block.reasons] == (np.arange(len(part)) % 5 == 0).tolist()
    good = np.array([not reason for block in found for reason in block.reasons])
    want = fit.predictor().predict_proba(whole)
    np.testing.assert_allclose(np.concatenate([block.probabilities for block in found])[good], want[good])
    assert np.concatenate([block.known for block in found]).tolist() == part["y"].tolist()


def replace_missing(part):
    return Table(part | {"plain": np.nan_to_num(part["plain"])})


def test_it_is_saved_with_its_study(fit, tmp_path):
    part = parts(5)[0]
    want = fit.predictor("party-1").predict_proba(part)
    (tmp_path / "own.fedgram").write_bytes(wire.encode(STUDY.model(fit.personal["party-1"])))
    fit.save(tmp_path / "fit.fedgram")
    for again in (load_model(tmp_path / "own.fedgram"), load_model(tmp_path / "fit.fedgram", "party-1")):
        assert again.study == STUDY
        assert np.array_equal(again.predict_proba(part), want)
    assert load(tmp_path / "fit.fedgram").predictor().columns == ("year", "cells", "ward", "ill", "plain")


def test_another_process_can_read_it(fit, tmp_path):
    """Only fedgram itself was imported there."""
    fit.save(tmp_path / "fit.fedgram")
    code = f"import fedgram; print(fedgram.load({str(tmp_path / 'fit.fedgram')!r}).predictor().study.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "mixed"


def test_a_model_of_something_else_is_refused(fit):
    other = Study("another", STUDY.outcome, STUDY.columns, STUDY.classes)
    with pytest.raises(Mismatch, match=r"made from study 'mixed' .*, not from study 'another' "):
        other.model(fit.model)
    with pytest.raises(Mismatch, match="made from data of no study, not from study 'mixed'"):
        STUDY.model(fg.LinearModel(np.eye(2), STUDY.classes))
    with pytest.raises(Mismatch, match="other columns"):
        STUDY.model(replace(fit.model, columns=tuple(reversed(STUDY.sent))))
    with pytest.raises(RefusedMessage, match="field .model. must be a model, got 3"):
        module.StudyModel.from_fields({"study": STUDY, "model": 3})


def test_a_fingerprint_survives_the_wire():
    """Whole numbers in a range are floats when they come back."""
    assert wire.decode(wire.encode(STUDY)).fingerprint == STUDY.fingerprint


def test_whose_model_must_be_there(fit, tmp_path):
    with pytest.raises(UnknownName, match="'party-2': did you mean"):
        fit.predictor("party-2")
    alone = fg.Local().fit([read_client(STUDY, "party-0", parts()[0])], study=STUDY, classes=STUDY.classes)
    with pytest.raises(InvalidParameter, match="no global model: name a client"):
        alone.predictor()
    alone.save(tmp_path / "alone")
    with pytest.raises(Mismatch, match=r"a fit without a global model \(it has those of party-0\)"):
        load_model(tmp_path / "alone")
    assert load_model(tmp_path / "alone", "party-0").study == STUDY
    (tmp_path / "own").write_bytes(wire.encode(fit.model))
    with pytest.raises(InvalidParameter, match="not a fit with models of several clients"):
        load_model(tmp_path / "own", "party-0")


def test_a_number_is_no_key(fit):
    with pytest.raises(Mismatch, match="'plain' is a number that the study uses"):
        next(fit.predictor().read(parts()[0], key="plain"))
    assert open_for(STUDY, parts()[0], labelled=False).labelled is False


def test_a_bad_row_is_refused_with_a_remedy_that_exists(fit):
    part = parts()[0]
    part["plain"][3] = np.inf
    with pytest.raises(BadSamples, match="predict with `read`") as found:
        fit.predictor().predict(part)
    assert "on_bad" not in str(found.value)
    assert "on-bad" not in str(found.value)
    (read,) = fit.predictor().read(part)
    assert [bool(reason) for reason in read.reasons] == [row == 3 for row in range(len(part["plain"]))]
    assert (
        np.delete(read.found, 3) == fit.predictor().predict(Table({k: np.delete(v, 3) for k, v in part.items()}))
    ).all()
