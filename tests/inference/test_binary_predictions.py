"""AUROC, shares and calibration, beside scikit-learn, statsmodels, and the formulas written out pair by pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.inference.binary_predictions import (
    EventScores,
    auroc,
    calibration_groups,
    calibration_line,
    quantile,
    wilson,
)
from support.campaign import examples

# Few different scores, so that ties are many.
SCORES = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0]), st.booleans()), max_size=40)


def arrays(pairs):
    scores, event = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(scores, dtype=float), np.array(event, dtype=bool)


def delong(scores, event, level):
    """DeLong, DeLong and Clarke-Pearson (1988): all pairs, and the variances of the structural components."""
    x, y = scores[event], scores[~event]
    psi = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    theta, (m, n) = psi.mean(), psi.shape
    v10, v01 = psi.mean(axis=1), psi.mean(axis=0)
    s10, s01 = ((v10 - theta) ** 2).sum() / (m - 1), ((v01 - theta) ** 2).sum() / (n - 1)
    return theta, quantile(level) * np.sqrt(s10 / m + s01 / n)


@examples(100)
@given(SCORES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_delongs_with_ties(pairs, level):
    scores, event = arrays(pairs)
    found = auroc(scores, event, level)
    if min(event.sum(), (~event).sum()) < 2:
        assert found.how != "DeLong"
        return
    area, half = delong(scores, event, level)
    assert found.value == pytest.approx(area, rel=1e-12, abs=1e-15)
    assert (found.how == "DeLong") is bool(half > 1e-9)
    if found.how == "DeLong":
        assert (found.low, found.high) == pytest.approx((max(area - half, 0), min(area + half, 1)), rel=1e-9, abs=1e-12)


@examples(50)
@given(SCORES.filter(lambda pairs: len({event for _, event in pairs}) == 2))
def test_the_area_is_scikit_learns(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    scores, event = arrays(pairs)
    assert auroc(scores, event, 0.95).value == pytest.approx(metrics.roc_auc_score(event, scores), rel=1e-12, abs=1e-15)


@examples(30)
@given(SCORES)
def test_turning_scores_round_turns_the_area_round(pairs):
    scores, event = arrays(pairs)
    one, other = auroc(scores, event, 0.95), auroc(-scores, event, 0.95)
    if one.value is not None:
        assert one.value + other.value == pytest.approx(1, rel=1e-12)
        assert (one.low + other.high, one.high + other.low) == pytest.approx((1, 1), rel=1e-9)
    assert one.how == other.how


def test_one_kind_of_samples_has_no_area():
    assert auroc(np.array([0.1, 0.2]), np.array([True, True]), 0.95).why == "no samples of another class"
    assert auroc(np.array([0.1, 0.2]), np.array([False, False]), 0.95).why == "no samples of the class"
    assert auroc(np.zeros(0), np.zeros(0, dtype=bool), 0.95).value is None


@pytest.mark.parametrize(
    ("scores", "area", "why"),
    [
        ([0.1, 0.2, 0.3, 0.7, 0.8, 0.9], 1.0, "do not overlap"),
        ([0.9, 0.8, 0.7, 0.3, 0.2, 0.1], 0.0, "do not overlap"),
        ([0.5] * 6, 0.5, "all scores are equal"),
    ],
)
def test_a_collapsed_interval_is_replaced_and_named(scores, area, why):
    found = auroc(np.array(scores), np.array([False] * 3 + [True] * 3), 0.95)
    assert (found.value, found.how) == (area, "Newcombe")
    assert why in found.why
    assert 0 <= found.low < found.high <= 1
    assert found.low <= area <= found.high
    if area == 0.5:
        assert found.low == pytest.approx(1 - found.high, rel=1e-12)
    if area == 1.0:
        assert found.high == 1.0


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 30), (3, 3), (50, 20), (2000, 5)])
@pytest.mark.parametrize("area", [1.0, 0.5])
def test_newcombes_ends_solve_his_equation(m, n, area):
    scores = np.concatenate([np.full(m, 1.0 if area == 1 else 0.0), np.zeros(n)])
    found = auroc(scores, np.arange(m + n) < m, 0.95)
    assert found.value == area
    for end in {found.low, found.high} - {1.0}:
        many = (m + n) / 2 - 1
        variance = end * (1 - end) * (1 + many * (1 - end) / (2 - end) + many * end / (1 + end)) / (m * n)
        assert abs(end - area) == pytest.approx(quantile(0.95) * np.sqrt(variance), rel=1e-9)


def test_separated_scores_of_many_samples_have_a_narrow_interval():
    widths = []
    for size in (5, 50, 5000):
        event = np.arange(2 * size) >= size
        widths.append(1 - auroc(event.astype(float), event, 0.95).low)
    assert widths[0] > 0.2
    assert sorted(widths, reverse=True) == widths
    assert widths[-1] < 2e-3


@examples(50)
@given(st.integers(0, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95]))
def test_wilsons_interval_is_that_of_statsmodels(counts, level):
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    count, n = counts
    found = wilson(count, n, level)
    if not n:
        assert (found.value, found.why) == (None, "no samples")
        return
    wanted = proportion.proportion_confint(count, n, alpha=1 - level, method="wilson")
    assert (found.low, found.high) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1


@examples(30)
@given(SCORES.filter(bool), st.sampled_from([0.1, 0.25, 0.5, 1.0]))
def test_counts_at_a_threshold_are_those_of_a_table_of_four_cells(pairs, threshold):
    scores, event = arrays(pairs)
    found = EventScores.of(scores, event, threshold=threshold, level=0.95)
    named = scores >= threshold
    cells = [int(np.sum(named & event)), int(np.sum(~named & event)), int(np.sum(named & ~event))]
    assert [found.hits, found.missed, found.false_alarms] == cells
    assert found.hits + found.missed + found.false_alarms + found.rejected == len(scores)
    shares = (
        (found.sensitivity, found.hits, found.missed),
        (found.specificity, found.rejected, found.false_alarms),
        (found.ppv, found.hits, found.false_alarms),
        (found.npv, found.rejected, found.missed),
    )
    for estimate, right, wrong in shares:
        assert estimate == wilson(right, right + wrong, 0.95)
    assert found.brier == pytest.approx(np.mean((scores - event) ** 2), rel=1e-12, abs=1e-15)
    assert sum(group.samples for group in found.groups) == len(scores)


@examples(20)
@given(st.integers(0, 10**6))
def test_the_calibration_line_is_that_of_statsmodels(seed):
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(seed)
    odds = rng.normal(1, 3, 200)
    event = rng.random(200) < 1 / (1 + np.exp(-(0.5 + 0.6 * odds)))
    intercept, slope = calibration_line(1 / (1 + np.exp(-odds)), event, 0.9)
    options = {"family": sm.families.Binomial()}
    large = sm.GLM(event.astype(float), np.ones((200, 1)), offset=odds, **options).fit(tol=1e-12)
    line = sm.GLM(event.astype(float), sm.add_constant(odds), **options).fit(tol=1e-12)
    for found, fit, place in ((intercept, large, 0), (slope, line, 1)):
        low, high = fit.conf_int(alpha=0.1)[place]
        assert (found.value, found.low, found.high) == pytest.approx((fit.params[place], low, high), rel=1e-6, abs=1e-8)


def test_a_line_that_has_no_slope_is_named():
    event = np.array([False, False, True, True])
    large, slope = calibration_line(np.array([0.1, 0.2, 0.8, 0.9]), event, 0.95)
    assert large.value == pytest.approx(0, abs=1e-9)
    assert (slope.value, slope.why) == (None, "events and others are separated by the probability")
    _, turned = calibration_line(np.array([0.9, 0.8, 0.2, 0.1]), event, 0.95)
    assert "separated" in turned.why
    _, touching = calibration_line(np.array([0.1, 0.5, 0.5, 0.9]), event, 0.95)
    assert "separated" in touching.why
    large, equal = calibration_line(np.full(4, 0.25), event, 0.95)
    assert (equal.value, equal.why) == (None, "all probabilities are equal")
    assert large.value == pytest.approx(np.log(3), rel=1e-9)  # odds of 1 where odds of 1/3 were predicted
    for truth in (np.ones(4, dtype=bool), np.zeros(4, dtype=bool)):
        assert [found.value for found in calibration_line(np.full(4, 0.25), truth, 0.95)] == [None, None]


@examples(50)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1e-9, 0.5, 1 - 1e-9, 1.0]), st.booleans()), min_size=1, max_size=8))
def test_extreme_probabilities_raise_and_warn_of_nothing(pairs):
    for found in calibration_line(*arrays(pairs), 0.95):
        assert (found.value is None) is bool(found.why)
        assert found.value is None or np.isfinite([found.value, found.low, found.high]).all()


def test_events_between_others_have_a_slope():
    event = np.array([False, True, True, False])
    _, slope = calibration_line(np.array([0.1, 0.5, 0.5, 0.9]), event, 0.95)
    assert slope.value == pytest.approx(0, abs=1e-9)


def test_probabilities_of_exactly_0_and_1_have_a_finite_line():
    scores = np.array([0.0, 0.0, 1.0, 1.0, 0.3, 0.6])
    event = np.array([False, True, True, False, True, False])
    for found in calibration_line(scores, event, 0.95):
        assert found.value is not None
        assert np.isfinite([found.low, found.high]).all()


@examples(30)
@given(SCORES.filter(bool), st.randoms())
def test_groups_do_not_depend_on_the_order_of_rows(pairs, random):
    groups = calibration_groups(*arrays(pairs), 0.95)
    random.shuffle(pairs)
    again = calibration_groups(*arrays(pairs), 0.95)
    assert [(g.samples, g.observed) for g in groups] == [(g.samples, g.observed) for g in again]
    means = [group.predicted for group in groups]
    assert means == sorted(means)
    assert len(groups) <= 10


def test_groups_are_tenths_where_all_probabilities_differ():
    scores = np.random.default_rng(0).permutation(np.linspace(0.01, 0.99, 100))
    assert [group.samples for group in calibration_groups(scores, scores > 0.5, 0.95)] == [10] * 10
