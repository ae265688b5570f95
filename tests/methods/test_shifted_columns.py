"""Under a study, a column's unit and zero point change no prediction beyond rounding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram import checks
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from studies.test_basis import Table
from support.campaign import examples

EPS = np.finfo(np.float64).eps
# A shift of R standard deviations rounds data to R · ε of one, and a closed form amplifies it at most by that factor.
# A network computes in float32, whose own rounding every step of training makes larger.
CLOSED, TRAINED = 1e4, 2e-3
COLUMNS, PARTIES, ROWS = ("a", "b", "c"), 3, 40


def problem(column=0, shift=0.0, scale=1.0):
    """Return the parties' tables and their study; one column is shifted by standard deviations, then scaled."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(PARTIES * ROWS, len(COLUMNS)))
    y = np.where(x @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=len(x)) > 0, "yes", "no")
    columns = {name: Number(range=(-6.0, 6.0)) for name in COLUMNS}
    name = COLUMNS[column]
    x[:, column] = (x[:, column] + shift) * scale
    columns[name] = replace(columns[name], range=((shift - 6.0) * scale, (shift + 6.0) * scale))
    whole = dict(zip(COLUMNS, x.T, strict=True)) | {"y": y}
    study = Study("shifted", "y", columns, ("no", "yes"), minimum_samples=0, minimum_cell=0)
    tables = [Table({name: cells[k::PARTIES] for name, cells in whole.items()}) for k in range(PARTIES)]
    return study, tables


def probabilities(method, study, tables):
    """Return the predictions of the global model and of the first party's own for all rows."""
    clients = [read_client(study, f"p{k}", table) for k, table in enumerate(tables)]
    fit = method.fit(clients, study=study, classes=study.classes)
    models = ([] if fit.model is None else [fit.predictor()]) + ([fit.predictor("p0")] if fit.personal else [])
    return np.stack([model.predict_proba(table) for model in models for table in tables])


OF_CLASSES = [name for name, method in fg.registry.items() if method.suits != "counts"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in OF_CLASSES])
@examples(2)
@given(st.integers(0, 2), st.floats(0, 8), st.sampled_from([-1.0, 1.0]), st.floats(-8, 8))
def test_shifting_and_scaling_a_column_changes_no_prediction(name, column, log_shift, sign, log_scale):
    method, shift = checks.example(name), sign * 10**log_shift
    if name not in _KNOWN:
        _KNOWN[name] = probabilities(method, *problem())
    found = probabilities(method, *problem(column, shift, 10**log_scale))
    bound = method.rounding + CLOSED * abs(shift) * EPS if method.rounding <= 1e-9 else TRAINED
    np.testing.assert_allclose(found, _KNOWN[name], atol=bound, rtol=0)


_KNOWN: dict[str, np.ndarray] = {}
