"""The temperature and the offsets of least-squares scores, from moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax

from fedgram.heads import least_squares
from fedgram.heads.least_squares import DOUBT, HOTTEST, ClassScores, confidence, rarity_of
from support.campaign import examples


def known(classes=3, *, spread=0.1, n=1e6, pull=0.6, shares=None, leverage=0.0):
    """Return scores whose class means are somewhat nearer to each other than the targets."""
    shares = np.full(classes, 1 / classes) if shares is None else np.asarray(shares)
    targets = np.eye(len(shares))
    means = pull * targets + (1 - pull) * shares
    return ClassScores(means, spread * (np.diag(shares) - np.outer(shares, shares)), n * shares, leverage)


def at_mean(scores):
    """Return the probability of the first class for a sample with its mean scores."""
    temperature, offsets = confidence(scores)
    return softmax(scores.means[0] / temperature + offsets)[0]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_what_makes_a_model_less_sure(classes):
    plain = known(classes)
    assert at_mean(known(classes, spread=0.3)) < at_mean(plain)
    assert at_mean(known(classes, n=20)) < at_mean(plain)
    assert at_mean(plain._replace(leverage=0.3)) < at_mean(plain._replace(leverage=0.1)) < at_mean(plain)


@pytest.mark.parametrize("leverage", [0.01, 0.3, 0.9, 1.0])
def test_leverage_is_what_leaving_a_sample_out_does(leverage):
    """Errors y - s become (y - s) / (1 - h), where samples further out have more of the mean leverage."""
    squares = np.array([[[0.5], [1.0], [4.0]]])
    factors = least_squares._left_out(squares, known(leverage=leverage, n=1000))
    found = 1 - 1 / factors
    assert found.mean() == pytest.approx(min(leverage, 1000 / 1001), rel=1e-9)
    assert (np.diff(found.ravel()) > 0).all()


@examples(25)
@given(st.integers(2, 12), st.floats(0.02, 1.0), st.floats(0.1, 1.0))
def test_equally_frequent_classes_have_no_offsets(classes, spread, pull):
    """So the most probable class is the one with the highest score, as scikit-learn demands of such data."""
    assert not confidence(known(classes, spread=spread, pull=pull)).offsets.any()


def test_two_normal_classes_that_can_hardly_be_told_apart_have_nearly_the_odds_of_bayes():
    """Bayes' log-odds are s · gap / v + log(odds) - (m₁² - m₀²) / 2v for normal scores of the second class."""
    share, r2 = 0.05, 0.02
    shares, v = np.array([1 - share, share]), r2 * (1 - r2) * share * (1 - share)
    found = confidence(ClassScores(r2 * np.eye(2) + (1 - r2) * shares, v * np.array([[1, -1], [-1, 1]]), 1e6 * shares))
    low, high = (1 - r2) * share, (1 - r2) * share + r2
    for s in (low, high, high + 3 * np.sqrt(v)):
        bayes = expit(s * r2 / v + np.log(share / (1 - share)) - (high**2 - low**2) / (2 * v))
        ours = expit((2 * s - 1) / found.temperature + found.offsets[1] - found.offsets[0])
        assert ours == pytest.approx(bayes, rel=0.1)


@pytest.mark.parametrize("share", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("pull", [0.1, 0.5, 0.9])
def test_at_the_mean_of_a_class_it_is_more_probable_than_its_frequency(share, pull):
    scores = known(shares=[1 - share, share], pull=pull, spread=pull * (1 - pull), n=1e5)
    temperature, offsets = confidence(scores)
    of_common, of_rare = softmax(scores.means / temperature + offsets, axis=1)[:, 1]
    assert of_common < share < of_rare


def test_perfect_scores_of_few_samples_are_not_certain():
    """Each class has half a sample more, whose label is this one or the other."""
    perfect = confidence(known(2, spread=0.0, pull=1.0, n=10)).temperature
    assert expit(-1 / perfect) == pytest.approx(DOUBT / 2 / (5 + DOUBT), rel=1e-6)


def test_perfect_scores_of_any_number_of_samples_have_a_temperature():
    assert 0.01 < confidence(known(2, spread=0.0, pull=1.0, n=1e9)).temperature < 0.1


@pytest.mark.parametrize("pull", [0.0, -0.5])
def test_scores_that_say_nothing_leave_the_frequencies(pull):
    found = confidence(known(shares=[0.9, 0.1], pull=pull))
    assert found.temperature >= HOTTEST / 10
    assert expit(found.offsets[1] - found.offsets[0]) == pytest.approx(0.1, rel=0.02)


def test_of_many_classes_some_are_enough(monkeypatch):
    scores = known(300, spread=0.3, shares=np.linspace(1, 2, 300) / 450)
    some = confidence(scores)
    monkeypatch.setattr(least_squares, "MOST_CLASSES", 300)
    assert some.temperature == pytest.approx(confidence(scores).temperature, rel=0.05)


def test_a_class_without_samples_has_no_say():
    with_all = known(3)
    means, counts = with_all.means.copy(), np.array([5e5, 5e5, 0.0])
    with_numbers = confidence(with_all._replace(counts=counts))
    means[2] = np.nan
    without = confidence(with_all._replace(means=means, counts=counts))
    assert without.temperature == with_numbers.temperature
    assert without.offsets[2] == 0


def test_rarity():
    np.testing.assert_allclose(rarity_of(np.array([100.0, 10.0, 0.0])), [0, np.log(10), 0])
