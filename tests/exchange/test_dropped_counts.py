"""Rows that a party leaves out for a missing value: counted in its file, in its passport and in the table."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram.core.errors import RefusedMessage
from fedgram.exchange.format import fgm
from fedgram.exchange.pages.passport import Passport
from fedgram.exchange.rounds.party_side import Party, summarize
from fedgram.exchange.store.study_store import Store
from fedgram.studies import Study
from fedgram.studies.kinds import Number
from support.regression_tables import NO_LIMITS, Rows

AGE, CRP, COST = Number(range=(0, 120)), Number(range=(0, 60), missing="drop"), Number(range=(0, 100))
STUDY = Study("dropped", "cost", {"plain": AGE, "crp": CRP, "cost": COST}, **(NO_LIMITS | {"minimum_group": 3}))
pytestmark = pytest.mark.filterwarnings("ignore::fedgram.core.errors.Skipped")


def table(gaps, seed):
    rng = np.random.default_rng(seed)
    crp = rng.uniform(5, 55, 60)
    crp[:gaps] = np.nan
    return Rows(plain=rng.uniform(20, 90, 60), crp=crp, cost=rng.uniform(10, 90, 60))


def summary(name, gaps, study=STUDY):
    return summarize(study, table(gaps, gaps), Party(name, None))


def test_counts_travel_with_the_summary_and_show_in_the_table(tmp_path):
    files = {name: summary(name, gaps) for name, gaps in (("north", 7), ("south", 0), ("east", 2), ("west", 3))}
    assert {name: fgm.read(data).dropped for name, data in files.items()} == {
        "north": {"crp": 7},
        "south": {},
        "east": {},  # fewer than minimum_group are not told
        "west": {"crp": 3},
    }
    with Store(tmp_path / "store", study=STUDY) as store:
        store.join(*files.values())
        found = store.coefficients()
    assert {(gap.column, gap.site, gap.cells, gap.treatment) for gap in found.missing} == {
        ("crp", "north", 7, "dropped"),
        ("crp", "west", 3, "dropped"),
    }
    assert any("Rows without crp were left out" in note for note in found.notes)
    assert found.summary["n"] == 240 - 12


def test_the_passport_says_that_they_are_told():
    assert "left out for a missing value: crp 7" in " ".join(Passport.of(fgm.read(summary("north", 7))).reveals)
    assert "left out for a missing value" not in " ".join(Passport.of(fgm.read(summary("north", 0))).reveals)


@pytest.mark.parametrize(
    "dropped", [{"cost": 7}, {"other": 7}, {"crp": -1}, {"crp": 10**15}, {"crp": 1.5}, {"crp": "7"}, {"crp": True}]
)
def test_counts_that_no_party_has_are_refused(dropped):
    moments = fgm.read(summary("north", 0)).payload
    about = {"samples": moments.n, "columns": STUDY.sent}
    data = fgm.encode("summary", moments, study=STUDY, party="north", dropped=dropped, **about)
    with pytest.raises(RefusedMessage, match="dropped: expected counts of rows"):
        fgm.read(data)


def test_only_a_summary_has_counts():
    refusing = replace(STUDY, columns={**STUDY.columns, "crp": replace(CRP, missing="refuse")})
    moments = fgm.read(summary("north", 0, refusing)).payload
    about = {"samples": moments.n, "columns": STUDY.sent, "dropped": {"crp": 7}}
    for kind, study in (("summary", refusing), ("answer", STUDY)):
        data = fgm.encode(kind, moments if study is refusing else {"x": 1}, study=study, party="north", **about)
        with pytest.raises(RefusedMessage, match="dropped: expected counts of rows"):
            fgm.read(data)
