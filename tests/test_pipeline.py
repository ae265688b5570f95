"""Models of numeric outcomes as messages, and the columns that they are made of."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram.core import wire
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import FedgramError, Mismatch
from fedgram.heads.system import System
from fedgram.models import LinearModel
from fedgram.moments.basis import Basis
from fedgram.moments.targets import NumericTargets, joint_moments
from fedgram.pipeline import Pipeline

BOTH = NumericTargets(("cost", "stay"), np.array([500.0, 0.0]), np.array([250.0, 1.0]))
INNER = LinearModel(np.arange(6.0).reshape(3, 2), NUMERIC, features="study:x", columns=("a", "b", "c"))
MODEL = Pipeline(INNER, targets=BOTH)
BASIS = Basis.of(
    {"a": ({"a": 2.0}, 1.0), "cost": ({"cost": 1.0}, 0.0), "stay": ({"stay": 1.0}, 0.0)}, ("a", "cost", "stay"), BOTH
)


def test_a_regressor_crosses_the_wire():
    again = wire.decode(wire.encode(MODEL), sender="north")
    x = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_array_equal(again.predict(x), MODEL.predict(x))
    assert (again.classes, again.features, again.columns) == (NUMERIC, "study:x", ("a", "b", "c"))
    assert again.targets.names == ("cost", "stay")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (replace(BOTH, unit=np.array([1.0, 0.0])), "units > 0"),
        (replace(BOTH, names=("cost",)), "1 column names for 2"),
        (NumericTargets((), np.zeros(0), np.zeros(0)), "lacks field 'names'"),
    ],
)
def test_outcomes_that_cannot_be_are_refused(wrong, told):
    with pytest.raises(FedgramError, match=told):
        wire.decode(wire.encode(replace(MODEL, targets=wrong)), sender="north")


def test_a_model_of_another_number_of_outcomes_is_refused():
    one = NumericTargets(("cost",), np.array([500.0]), np.array([250.0]))
    with pytest.raises(Mismatch, match="2 numbers for 1 outcomes"):
        Pipeline(MODEL.model, targets=one).predict(np.ones((2, 3)))


def test_a_system_of_several_outcomes_crosses_the_wire():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 2))
    system = System.of(joint_moments(x, y), ridge=1.0, intercept=True, targets=BOTH)
    again = wire.decode(wire.encode(system), sender="server")
    assert again.classes == NUMERIC
    np.testing.assert_array_equal(again.model().scores(x), system.model().scores(x))


def test_a_basis_keeps_outcomes_apart():
    again = wire.decode(wire.encode(BASIS), sender="server")
    assert again.same(BASIS)
    np.testing.assert_array_equal(again.of_features.apply(np.array([[3.0]])), [[7.0]])
    assert again.of_features.columns == ("a",)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (replace(BASIS, rows=np.array([1, 1, 2])), "must not mix outcomes"),
        (replace(BASIS, columns=("cost", "stay", "a")), "must be the last columns"),
    ],
)
def test_a_basis_that_shows_outcomes_to_the_model_is_refused(wrong, told):
    with pytest.raises(FedgramError, match=told):
        wire.decode(wire.encode(wrong), sender="server")
