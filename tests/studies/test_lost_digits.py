"""Numbers of a study that still lose digits: without a range, or with one far wider than the column."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import LostPrecision
from fedgram.studies import Study
from fedgram.studies.drafting import draft
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from studies.test_basis import Table


def fitted(method, pressure, range_):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 2))
    y = np.where(x.sum(axis=1) > 0, "yes", "no")
    cells = {"pressure": pressure + x[:, 0], "other": x[:, 1], "y": y}
    columns = {"pressure": Number(range=range_), "other": Number(range=(-9, 9))}
    study = Study("air", "y", columns, ("no", "yes"), minimum_samples=0, minimum_cell=0)
    clients = [read_client(study, f"p{k}", Table({n: v[k::2] for n, v in cells.items()})) for k in range(2)]
    return (method.fit(clients, study=study, classes=study.classes).predictor().predict(Table(cells)) == y).mean()


@pytest.mark.parametrize(
    "method", [fg.AFL(), fg.FedGram(), fg.FedLogit(rounds=3), fg.FedAvg(rounds=1, epochs=1)], ids=lambda m: m.name
)
@pytest.mark.parametrize(
    ("pressure", "range_", "words"),
    [
        (1e6, None, r"column 'pressure' .*1e\+06 standard deviations.*give it a range about 1e\+06 in the study"),
        (1e9, None, r"column 'pressure' .*not known; give it a range about 1e\+09"),
        (9e8, (0, 1e9), r"column 'pressure' .*not known; give it a narrower range about 9e\+08"),
    ],
)
@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")  # for a column that then counts as constant
def test_a_column_without_a_narrow_range_is_named(method, pressure, range_, words):
    with pytest.warns(LostPrecision, match=words):
        fitted(method, pressure, range_)


@pytest.mark.parametrize("pressure", [1e6, 1e9])
def test_with_a_range_nothing_is_lost(pressure):
    assert fitted(fg.FedGram(), pressure, (pressure - 9, pressure + 9)) > 0.9


def test_every_number_of_a_draft_has_a_range():
    rng = np.random.default_rng(0)
    for values in (1e12 + rng.normal(size=40), np.full(40, 7.25), rng.normal(size=40) * 1e300):
        table = Table({"a": values, "b": rng.normal(size=40), "y": np.arange(40) % 2})
        study = Study.parse(draft(table, "y", columns=["a", "b"]).text)
        low, high = study.columns["a"].range
        assert np.isfinite([low, high]).all()
        assert low <= values.min() <= values.max() <= high
