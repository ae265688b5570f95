"""The temperature of least-squares scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.heads.least_squares import COLDEST, DOUBT, HOTTEST, MOST_CLASSES, ClassScores, temperature
from support.campaign import examples


def known(classes=3, *, spread=0.1, leverage=0.0, n=1e6, size=1.0, pull=0.6):
    """Return scores whose class means are somewhat nearer to each other than the targets."""
    targets = size * np.eye(classes)
    means = pull * targets + (1 - pull) * targets.mean(axis=0)
    covariance = size**2 * spread * np.eye(classes)
    return ClassScores(means, targets, covariance, np.full(classes, 1 / classes), leverage, n)


@examples(25)
@given(st.integers(2, 40), st.floats(0.02, 2.0), st.floats(0.1, 100.0))
def test_goes_with_the_size_of_the_scores(classes, spread, size):
    one, other = (temperature(known(classes, spread=spread, size=factor)) for factor in (1.0, size))
    assert other == pytest.approx(size * one, rel=1e-6)


def test_two_normal_classes_have_nearly_the_temperature_of_bayes():
    """If a difference of scores is normal with means ± m and variance v, log-odds are 2m/v times that difference."""
    spread, pull = 0.5, 0.6
    m, v = pull, 2 * spread
    assert temperature(known(2, spread=spread, pull=pull)) == pytest.approx(v / (2 * m), rel=0.1)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_what_makes_a_model_less_sure(classes):
    plain = temperature(known(classes))
    assert temperature(known(classes, spread=0.3)) > plain
    assert temperature(known(classes, leverage=0.3)) > plain
    assert temperature(known(classes, n=20)) > plain


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_leverage_is_what_leaving_a_sample_out_does(classes):
    """A score s with target y becomes y - (y - s) / (1 - h): the means move, and they scatter more."""
    h, pull, spread = 0.3, 0.8, 0.1
    out = known(classes, pull=1 - (1 - pull) / (1 - h), spread=spread / (1 - h) ** 2)
    assert temperature(known(classes, pull=pull, spread=spread, leverage=h)) == pytest.approx(temperature(out))


def test_perfect_scores_of_few_samples_are_not_certain():
    """Samples that were all right leave a little for the other class, as if part of one had been seen."""
    perfect = temperature(known(2, spread=0.0, pull=1.0, n=10))
    assert 1 / (1 + np.exp(1 / perfect)) == pytest.approx(DOUBT / (10 + 2 * DOUBT), rel=1e-6)
    assert temperature(known(2, spread=0.0, pull=1.0, n=10, leverage=1.0)) == pytest.approx(perfect)


def test_scores_that_say_nothing_make_all_classes_alike():
    assert temperature(known(3, pull=0.0)) == HOTTEST
    assert temperature(known(3, pull=-0.5)) == HOTTEST


def test_there_is_an_end_to_being_sure():
    assert temperature(known(2, spread=0.0, pull=1.0, n=1e300)) == COLDEST


def test_of_many_classes_some_are_enough():
    """The classes here are all alike, so only the points matter, not the choice of classes."""
    assert 2 * MOST_CLASSES < 600
    few, many = temperature(known(200, spread=0.002)), temperature(known(600, spread=0.002))
    assert few < many < 1.3 * few, "more classes to be mistaken for, and little else"


def test_a_class_without_samples_has_no_say():
    with_all = known(3)
    means = with_all.means.copy()
    means[2] = np.nan
    lacking = with_all._replace(frequencies=np.array([0.5, 0.5, 0.0]))
    assert temperature(lacking._replace(means=means)) == temperature(lacking)
