"""Bytes of every kind of message as version 0.1.0 wrote them: they keep loading, and are written the same again.

`stored/` holds them. A message that gets a new field keeps its old files; a new file shows it with the field.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.evaluation import Evaluation, RightLabels
from fedgram.features.projection import RandomFeatures
from fedgram.heads.head import Head
from fedgram.heads.system import System
from fedgram.layerwise import Network
from fedgram.methods.analytic.apfl import TwoStreams
from fedgram.moments import packing
from fedgram.moments.decayed import DecayedMoments
from fedgram.moments.moments import Schema
from fedgram.moments.weighted import WeightedMoments
from fedgram.nets import TrainedNet
from fedgram.protocol.fit import Traffic
from fedgram.protocol.pool import Contributions
from fedgram.protocol.transport import SPANS
from fedgram.studies import Study
from fedgram.studies.kinds import Category, Ignore, Number

PETS, COLUMNS = ("cat", "dog"), ("age", "bmi", "bp")
STUDY = Study(
    "pets",
    "kind",
    {"age": Number(range=(0, 20)), "colour": Category(("black", "red", "white")), "name": Ignore()},
    PETS,
)
GRAM = packing.pack([[2.0, 0.0], [1.0, 3.0]])
STORED = Path(__file__).parent / "stored"


def ramp(*shape: int) -> np.ndarray:
    """Return an array of small multiples of 1/8, which are exact on every machine."""
    return (np.arange(np.prod(shape)) % 17 / 8 - 1).reshape(shape)


def moments() -> fg.Moments:
    """Return the moments of whole numbers, whose sums are exact on every machine."""
    x = np.array([[1.0, 2, 0], [0, 1, 1], [3, 1, 2], [1, 0, 5], [2, 2, 2], [4, 0, 1]])
    return fg.Moments.of(x, [0, 1, 0, 1, 1, 0], classes=PETS, features="table", columns=COLUMNS)


def of_one_sample() -> fg.Moments:
    sample = ramp(1, 8)
    kind = Schema((0, 1, 2), 8, "resnet", False)
    return fg.Moments(kind, sums=sample.copy(), counts=np.array([0, 1, 0]), factor=sample)


def contributions() -> Contributions:
    return Contributions(np.array([1.0, -2, 3]), {}).plus("ward-1", moments()).plus("ward-2", moments() + moments())


def fit() -> fg.Fit:
    right = {"ward-1": RightLabels(1, 2)}
    counts = Evaluation(right, tested={"ward-1": 2, "ward-2": 0}, failed={"ward-2": "no samples"})
    return fg.Fit(
        fg.LinearModel(ramp(3, 2), PETS, ramp(2), "table", COLUMNS),
        "afl",
        {"gamma": 1.0, "names": ["a", None]},
        7,
        ("ward-1", "ward-2"),
        absent={"ward-3": "late"},
        lost={"ward-2": "silent"},
        personal={"ward-1": fg.LinearModel(ramp(3, 2), PETS)},
        traffic=Traffic({"ward-1": {"up": 10, "down": 20}}),
        evaluation=counts,
        rounds=[counts],
        seconds=1.5,
        cpu_seconds={"server": 0.25},
        total=moments() + moments() + moments(),
        contributions=contributions(),
        shape=(3,),
        engine="flower",
        carried={"up": 100},
        notes={"weights": ramp(2, 2), "why": "because"},
    )


MADE = {
    "linear-model": lambda: fg.LinearModel(ramp(4, 3), (0, 1, 2)),
    "linear-model-columns": lambda: fg.LinearModel(ramp(3, 2), PETS, ramp(2), "table", COLUMNS),
    "linear-model-temperature": lambda: fg.LinearModel(ramp(3, 2), PETS, ramp(2), "table", COLUMNS, 0.25),
    "head": lambda: Head(ramp(4, 3), ramp(3), 2 + ramp(4), 3 + ramp(3), (0, 1, 2)),
    "head-columns": lambda: Head(ramp(3, 2), ramp(2), 2 + ramp(3), 3 + ramp(2), PETS, "table", COLUMNS),
    "head-temperature": lambda: Head(ramp(4, 3), ramp(3), 2 + ramp(4), 3 + ramp(3), (0, 1, 2), temperature=1.5),
    "system": lambda: System(lower=2 + ramp(6), weights=ramp(3, 2), classes=(0, 1)),
    "system-intercept": lambda: System(
        lower=2 + ramp(6),
        weights=ramp(3, 2),
        classes=PETS,
        features="table",
        columns=COLUMNS,
        mean=ramp(3),
        frequencies=ramp(2),
        n=12,
    ),
    "system-temperature": lambda: System(lower=2 + ramp(6), weights=ramp(3, 2), classes=(0, 1), temperature=0.125),
    "two-streams": lambda: TwoStreams(primary=RandomFeatures(3, 4, seed=1), weights=ramp(4, 2), classes=(0, 1)),
    "two-streams-own": lambda: TwoStreams(
        primary=RandomFeatures(3, 4, "gelu", 1, 0.5),
        weights=ramp(4, 2),
        classes=PETS,
        features="table",
        refine=RandomFeatures(3, 5, seed=2),
        own=ramp(5, 2),
        lam=0.25,
        system=ramp(10),
        columns=COLUMNS,
    ),
    "two-streams-temperature": lambda: TwoStreams(
        primary=RandomFeatures(3, 4, seed=1), weights=ramp(4, 2), classes=(0, 1), temperature=0.125
    ),
    "study-model": lambda: STUDY.model(
        fg.LinearModel(ramp(3, 2), PETS, ramp(2), STUDY.features, STUDY.sent, temperature=0.5)
    ),
    "trained-net": lambda: TrainedNet("linear", (2,), (0, 1, 2), ramp(9).astype(np.float32)),
    "trained-net-columns": lambda: TrainedNet(
        "linear", (3,), PETS, ramp(11).astype(np.float32), features="table", memory=True, columns=COLUMNS
    ),
    "layerwise-network": lambda: Network("dnn", (4,), (0, 1, 2), 5),
    "layerwise-network-columns": lambda: Network("dense:4", (3,), PETS, 5, (ramp(3, 2), ramp(4, 2)), "table", COLUMNS),
    "moments": moments,
    "moments-factor": of_one_sample,
    "weighted-moments": lambda: WeightedMoments(3, 1.5, ramp(2), ramp(1), GRAM, ramp(2, 1), 1 + ramp(1), 1 + ramp(2)),
    "decayed-moments": lambda: DecayedMoments(
        3, 1.5, ramp(2), 1 + ramp(2), GRAM, ramp(2, 2), 1 + ramp(2), 1 + ramp(2), PETS, "table", COLUMNS[:2]
    ),
    "contributions": contributions,
    "fit": fit,
    "fit-timing": lambda: replace(fit(), timing={"ward-1": dict.fromkeys((*SPANS, "asked"), 0.25)}),
}


@pytest.mark.parametrize("name", MADE)
def test_messages_are_written_as_before(name):
    assert wire.encode(MADE[name]()) == (STORED / f"{name}.safetensors").read_bytes()


@pytest.mark.parametrize("name", [path.stem for path in sorted(STORED.glob("*.safetensors"))])
def test_files_of_earlier_versions_keep_loading(name):
    read = wire.decode((STORED / f"{name}.safetensors").read_bytes(), sender="an earlier version")
    same = MADE[name.partition("~")[0]]()  # behind ~ is a number, of files that lack fields which were added later
    assert type(read) is type(same)
    assert wire.encode(read) == wire.encode(same)
