"""Parties left out in turn, from the moments of a run: equal to refitting, and left out where it would cost much."""

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.engines.inprocess import InProcess, Room
from fedgram.moments.targets import NumericTargets, joint_moments
from fedgram.protocol import session, sites
from fedgram.protocol.sites import MOST_SITES, validate_sites
from fedgram.studies import Study
from fedgram.studies.encoding import as_client
from fedgram.studies.kinds import Number

pytestmark = pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
COSTS = Study(
    "costs",
    ("cost", "stay"),
    {
        "age": Number(range=(0, 120), missing="mean"),
        "cost": Number(range=(0, 4000), unit="EUR"),
        "stay": Number(range=(0, 30)),
    },
    minimum_samples=0,
    minimum_cell=0,
)


def parties(count=4, n=30, d=3, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for k in range(count):
        x = rng.normal(size=(n, d))
        y = (x[:, 0] + rng.normal(size=n) > 0).astype(int)
        found.append(fg.Client(f"party-{k}", x, 1 - y if k == 0 else y))
    return found


@pytest.mark.parametrize("method", [fg.AFL(), fg.FedHiP(), fg.FedGram(), fg.FedLogit(rounds=2)], ids=lambda m: m.name)
def test_a_run_says_how_well_the_others_predict_each_party(method):
    clients = parties()
    fit = method.fit(clients, classes=2)
    want = validate_sites({one.name: fg.Moments.of(one.x, one.y, classes=2) for one in clients})
    told = fit.report()["validation"]
    assert told["names"] == list(want)
    assert told["samples"] == [30] * 4
    for which in ("left_out", "pooled", "own"):
        for measure in ("mse", "r2", "brier"):
            expected = [getattr(getattr(site, which), measure) for site in want.values()]
            assert told["errors"][""][which][measure] == pytest.approx(expected, rel=1e-10)
    assert np.argmax(told["errors"][""]["left_out"]["brier"]) == 0, "who has its labels the other way round is seen"


def test_numeric_outcomes_are_in_their_own_units():
    rng = np.random.default_rng(1)
    clients, tables = [], {}
    for k in range(3):
        age = rng.uniform(20, 90, 40)
        cost = 30 * age + rng.normal(0, 100, 40)
        stay = age / 10 + rng.normal(0, 1, 40)
        sent = [(age - 60) / 60, np.zeros(40), (cost - 2000) / 2000, (stay - 15) / 15]
        clients.append(as_client(COSTS, f"party-{k}", np.column_stack(sent), np.zeros(40, dtype=np.int64)))
        tables[f"party-{k}"] = np.column_stack([age, cost, stay])
    told = fg.AFL().fit(clients, study=COSTS).report()["validation"]["errors"]
    assert told.keys() == {"cost", "stay"}
    ages = np.concatenate(list(tables.values()))[:, 0]
    for place, name in enumerate(("cost", "stay"), start=1):
        assert "brier" not in told[name]["left_out"]
        # With one column the ridge is the same for any scales of the outcomes, if both are validated together.
        scaled = {
            party: joint_moments((table[:, :1] - ages.mean()) / ages.std(), table[:, 1:] / [2000.0, 15.0])
            for party, table in tables.items()
        }
        want = validate_sites(scaled, targets=NumericTargets.named("cost", "stay"))
        unit = (2000.0, 15.0)[place - 1]
        mse = [float(site.left_out.squared_errors[place - 1]) / site.left_out.n * unit**2 for site in want.values()]
        assert told[name]["left_out"]["mse"] == pytest.approx(mse, rel=1e-6)


def test_more_parties_than_that_are_left_out_and_it_is_said():
    fit = fg.AFL().fit(parties(MOST_SITES + 1, n=3), classes=2)
    assert fit.report()["validation"] == {"left_out": f"there are more than {MOST_SITES} parties"}
    assert not fit.sites.moments, "nothing is kept for nothing"
    few = fg.AFL().fit(parties(MOST_SITES, n=3), classes=2)
    assert len(few.report()["validation"]["names"]) == MOST_SITES


def test_many_columns_are_left_out_and_it_is_said(monkeypatch):
    monkeypatch.setattr(sites, "MOST_WORK", 2 * 3**3)
    told = fg.AFL().fit(parties(), classes=2).report()["validation"]
    assert told == {"left_out": "3 columns are too many to leave out each of 3 or more parties in turn"}


def test_one_party_has_no_others():
    told = fg.AFL().fit(parties(1), classes=2).report()["validation"]
    assert told == {"left_out": "fewer than two parties have samples"}


def test_methods_without_moments_say_nothing():
    fit = checks.fit(fg.Local(), checks.some_clients())
    assert fit.sites is None
    assert "validation" not in fit.report()


def test_what_was_kept_is_neither_saved_nor_carried_over(tmp_path):
    clients = parties()
    fit = fg.AFL().fit(clients, classes=2)
    fit.save(tmp_path / "fit.fedgram")
    assert fg.load(tmp_path / "fit.fedgram").sites is None
    left = fit.remove(fit.summarize(clients[0]), name="party-0")
    assert left.sites is None


class Backwards:
    """An engine whose replies arrive in the reverse order."""

    def run(self, method, clients, *, classes=None, seed=0, require="all", progress=None):
        room = BackwardsRoom(method, clients, InProcess())
        return session.run(method, room, classes=classes, seed=seed, require=require, progress=progress)


class BackwardsRoom(Room):
    def exchange(self, step, requests):
        yield from reversed(list(super().exchange(step, requests)))


def test_parties_are_in_the_engines_order_however_replies_arrive():
    there = fg.AFL().fit(parties(), classes=2, engine=Backwards()).report()["validation"]
    here = fg.AFL().fit(parties(), classes=2).report()["validation"]
    assert there["names"] == here["names"]
    assert there["errors"][""]["own"]["mse"] == pytest.approx(here["errors"][""]["own"]["mse"], rel=1e-12)
