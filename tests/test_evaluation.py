"""Quality of probabilities: Brier score and expected calibration error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from fedgram.core.errors import InvalidData
from fedgram.evaluation import Calibration
from fedgram.models import LinearModel
from support.campaign import examples

seeds = st.integers(0, 2**32 - 1)


def brier_score(p, y):
    return Calibration.of(p, y).brier


def expected_calibration_error(p, y, **options):
    return Calibration.of(p, y, **options).error


def drawn(seed, n, c):
    """Return probabilities, and labels that happen as often as these say."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(c), size=n)
    return p, (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=c - 1)


@examples(30)
@given(seeds, st.integers(1, 50))
def test_brier_is_twice_that_of_one_of_two_classes(seed, n):
    p, y = drawn(seed, n, 2)
    assert brier_score(p, y) == pytest.approx(2 * brier_score_loss(y, p[:, 1], pos_label=1))


def test_brier_of_several_classes():
    assert brier_score(np.eye(3), [0, 1, 2]) == 0.0
    assert brier_score(np.eye(3), [1, 2, 0]) == 2.0
    assert brier_score(np.full((4, 4), 0.25), [0, 1, 2, 3]) == pytest.approx(0.75)


@pytest.mark.parametrize("classes", [2, 5])
def test_labels_that_happen_as_said_are_calibrated(classes):
    p, y = drawn(1, 40_000, classes)
    assert expected_calibration_error(p, y) < 0.01
    certain = np.eye(classes)[p.argmax(axis=1)]
    assert expected_calibration_error(certain, y) == pytest.approx((p.argmax(axis=1) != y).mean())


def test_errors_in_different_bins_do_not_cancel():
    p = np.array([[0.6, 0.4]] * 10 + [[0.9, 0.1]] * 10)
    y = np.array([0] * 10 + [0] * 5 + [1] * 5)  # 40 % too unsure, 40 % too sure
    assert expected_calibration_error(p, y) == pytest.approx(0.4)
    assert expected_calibration_error(p, y, bins=1) == pytest.approx(0.0)


def test_nothing_is_known_of_no_samples():
    assert np.isnan(brier_score(np.zeros((0, 2)), []))
    assert np.isnan(expected_calibration_error(np.zeros((0, 2)), []))


@pytest.mark.parametrize(
    ("p", "y", "why"),
    [
        ([[0.5, 0.6]], [0], "add up to 1"),
        ([[1.5, -0.5]], [0], "at least 0"),
        ([[0.5, 0.5]], [2], "up to 1, got 2"),
        ([[0.5, 0.5]], [-1], "got -1"),
        ([[0.5, 0.5]], [0, 1], r"\(1, 2\) and \(2,\)"),
        ([0.5, 0.5], [0, 1], r"got \(2,\)"),
    ],
)
def test_what_is_no_probability_is_refused(p, y, why):
    for measure in (brier_score, expected_calibration_error):
        with pytest.raises(InvalidData, match=why):
            measure(p, y)


@examples(30)
@given(seeds, st.integers(1, 60), st.integers(2, 4), st.integers(1, 5))
def test_sums_of_parts_are_those_of_all_samples(seed, n, c, parts):
    p, y = drawn(seed, n, c)
    shares = [Calibration.of(p[k::parts], y[k::parts]) for k in range(parts)]
    total = sum(shares[1:], start=shares[0])
    assert total.brier == pytest.approx(brier_score(p, y))
    assert total.error == pytest.approx(expected_calibration_error(p, y), abs=1e-12)
    assert (total.n, total.correct) == (n, (p.argmax(axis=1) == y).sum())
    assert Calibration.of_sums(total.sums()) == total


@examples(50)
@given(seeds, st.integers(1, 60), st.integers(2, 9))
def test_ranges_of_confidence_are_joined_until_each_has_enough_samples(seed, n, least):
    p, y = drawn(seed, n, 3)
    exact, joined = Calibration.of(p, y), Calibration.of(p, y, least=least)
    assert all(count == 0 or count >= min(least, n) for count in joined.samples)
    assert (joined.squared, joined.n, joined.correct) == (exact.squared, exact.n, exact.correct)
    assert sum(joined.confidence) == pytest.approx(sum(exact.confidence))
    assert joined.error <= exact.error + 1e-12, "gaps that are joined can only cancel"
    if min((count for count in exact.samples if count), default=least) >= least:
        assert joined == exact


def test_confidence_is_the_probability_of_the_predicted_class():
    """With offsets, another class may be more probable."""
    model = LinearModel(np.array([[1.0, 0.0]]), (0, 1), offsets=np.array([0.0, 3.0]))
    judged = Calibration.judged(model, [(np.ones((4, 1)), np.array([0, 1, 1, 1]))])
    p = 1 / (1 + np.exp(2))
    assert judged.correct == 1
    assert sum(judged.confidence) == pytest.approx(4 * p)
    assert judged.brier == pytest.approx(2 * ((1 - p) ** 2 + 3 * p**2) / 4)


def test_a_model_is_judged_by_its_scores():
    """Temperatures this high make probabilities equal that are not."""
    model = LinearModel(np.array([[1.0, 1.0 + 1e-13]]), (0, 1), temperature=1e3)
    assert Calibration.judged(model, [(np.ones((3, 1)), np.array([1, 1, 0]))]).correct == 2
