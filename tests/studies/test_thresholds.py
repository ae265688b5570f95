"""A party below a study's thresholds sends nothing, and a party with few samples is warned of its disclosure."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import FedgramError, InvalidData, Revealing
from fedgram.studies import Study
from fedgram.studies.kinds import Number

STUDY = Study(
    "small",
    "diagnosis",
    {name: Number(range=(-9, 9)) for name in "abcd"},
    ("ill", "well"),
    minimum_samples=10,
    minimum_cell=3,
    maximum_columns_per_row=1.0,
)


def parties(study=STUDY, **sizes):
    """Return parties with so many ill and well patients each."""
    rng = np.random.default_rng(0)
    return [
        fg.Client(
            name,
            rng.uniform(-1, 1, size=(ill + well, 4)),  # numbers are sent in units of their range
            ["ill"] * ill + ["well"] * well,
            features=study.features,
            columns=study.sent,
        )
        for name, (ill, well) in sizes.items()
    ]


@pytest.mark.parametrize("method", [fg.AFL(), fg.FedGram(), fg.FedAvg(rounds=1)], ids=lambda method: method.name)
def test_parties_below_the_thresholds_send_nothing_and_the_others_go_on(method):
    clients = parties(north=(20, 20), south=(9, 30), tiny=(4, 4), rare=(40, 2), one=(12, 0))
    fit = method.fit(clients, study=STUDY, classes=STUDY.classes, require=3)
    assert set(fit.contributors) == {"north", "south", "one"}, "a class that a party lacks altogether passes"
    assert set(fit.absent) == {"tiny", "rare"}
    assert "at least 10 training samples" in fit.absent["tiny"]
    assert "at least 3 training samples of each class" in fit.absent["rare"]
    told = f"{fit.absent['tiny']} {fit.absent['rare']}".split()
    assert not {"8", "4", "2", "40", "42", "'ill'", "'well'"}.intersection(told), "a refusal gives no figures away"
    assert fit.traffic.by_client["tiny"].get("up", 0) == 0


def test_without_a_quorum_the_run_ends_and_names_the_party():
    with pytest.raises(FedgramError, match="client 'tiny': study 'small' asks every party for at least 10"):
        fg.AFL().fit(parties(north=(20, 20), tiny=(4, 4)), study=STUDY, classes=STUDY.classes)


def test_exactly_the_threshold_is_enough():
    fit = fg.AFL().fit(parties(north=(3, 7), south=(20, 20)), study=STUDY, classes=STUDY.classes)
    assert fit.absent == {}


def test_a_late_party_keeps_to_the_thresholds():
    north, late = parties(north=(20, 20), late=(4, 4))
    fit = fg.AFL().fit([north], study=STUDY, classes=STUDY.classes)
    with pytest.raises(InvalidData, match="at least 10 training samples"):
        fit.summarize(late)


def test_a_method_that_uses_few_samples_of_a_reply_is_refused():
    method = fg.FedAvg(rounds=1, local_steps=1, batch=4)
    with pytest.raises(FedgramError, match="at least 10 training samples"):
        method.fit(parties(north=(20, 20)), study=STUDY, classes=STUDY.classes)


def test_a_party_with_few_samples_hears_what_it_would_reveal():
    study = replace(STUDY, minimum_samples=3, minimum_cell=1)
    clients = parties(study, north=(20, 20), east=(2, 2))
    with pytest.warns(Revealing, match="'east' sends sums of 4 samples in 4 columns") as heard:
        fg.AFL().fit(clients, study=study, classes=study.classes)
    assert not any("north" in str(warning.message) for warning in heard)


def test_parties_that_set_no_thresholds_hear_nothing():
    study = replace(STUDY, minimum_samples=0, minimum_cell=0, maximum_columns_per_row=0.0)
    fit = fg.AFL().fit(parties(study, north=(20, 20), east=(1, 1)), study=study, classes=study.classes)
    assert fit.absent == {}
