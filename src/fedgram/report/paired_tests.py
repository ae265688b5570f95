"""Paired tests: the best method of each setting against every other one, over the same clients and seeds."""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from fedgram.experiments.results import Column, Result, Results
from fedgram.report.metrics import Metric, Values

SIGNIFICANT = 0.05
_DIGITS = 12  # of differences, so that those that are equal but for rounding have equal ranks


@dataclass(frozen=True)
class Comparison:
    """A method against the best one of its setting.

    Attributes
    ----------
    best : str
        The label of the best method.
    pairs : int
        Pairs of figures of the same client in the same seed.
    difference : float
        Mean over the pairs of the method's figure minus the best one's, as shown.
    t, wilcoxon : float or None
        p of the paired t test and of Wilcoxon's signed-rank test, both two-sided and corrected by Holm for all
        comparisons of the setting; None where there are too few pairs.
    worse : bool or None
        Whether the method is significantly worse by Wilcoxon's test; None where there are too few pairs.

    """

    best: str
    pairs: int
    difference: float
    t: float | None = None
    wilcoxon: float | None = None
    worse: bool | None = None


def comparisons(results: Results, figure: Metric, best: Mapping[Column, str]) -> dict[tuple[str, Column], Comparison]:
    """Return the comparisons of all methods but references with the best one of each setting.

    Parameters
    ----------
    results : Results
        All runs.
    figure : Metric
        The figure that is compared; nothing is returned if it is not made of the clients' figures.
    best : mapping from Column to str
        The label of the best method in each setting.

    """
    if not figure.paired:
        return {}
    found: dict[tuple[str, Column], Comparison] = {}
    runs: dict[Column, dict[str, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for run in results.finished:
        if not run.reference:
            runs[run.column][run.label][run.seed] = run
    for column, first in best.items():
        values = {
            label: {seed: figure.clients(run) for seed, run in own.items()} for label, own in runs[column].items()
        }
        differences = {
            label: _differences(own, values[first], figure.factor) for label, own in values.items() if label != first
        }
        known = {label: one for label, one in differences.items() if one}
        enough = {label: one for label, one in known.items() if can_differ(len(one), len(known))}
        p = {label: p_values(one) for label, one in enough.items()}
        t, wilcoxon = (dict(zip(p, holm([pair[which] for pair in p.values()]), strict=True)) for which in (0, 1))
        for label, one in known.items():
            mean = fmean(one)
            loses = mean > 0 if figure.lower else mean < 0
            worse = wilcoxon[label] < SIGNIFICANT and loses if label in enough else None
            found[label, column] = Comparison(first, len(one), mean, t.get(label), wilcoxon.get(label), worse)
    return found


def _differences(own: Mapping[int, Values], others: Mapping[int, Values], factor: float) -> tuple[float, ...]:
    """Return the differences of two methods' figures by seed and client; clients stand in the same order."""
    shared = [(own[seed], others[seed]) for seed in own if seed in others and len(own[seed]) == len(others[seed])]
    return tuple(
        round(factor * (a - b), _DIGITS)
        for one, other in shared
        for a, b in zip(one, other, strict=True)
        if a is not None and b is not None
    )


def can_differ(pairs: int, comparisons: int) -> bool:
    """Return whether Wilcoxon's test of so many pairs could find a difference, after Holm's correction.

    >>> can_differ(5, 1), can_differ(6, 1), can_differ(6, 2), can_differ(10, 20)
    (False, True, False, True)
    """
    return comparisons * 2.0 ** (1 - pairs) <= SIGNIFICANT


@lru_cache(maxsize=10_000)  # several tables of a report need the same
def p_values(differences: tuple[float, ...]) -> tuple[float, float]:
    """Return p of the paired t test and of Wilcoxon's signed-rank test that differences are 0, both two-sided.

    >>> [round(p, 4) for p in p_values((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))]
    [0.0059, 0.0312]
    """
    if not any(differences):
        return 1.0, 1.0
    from scipy import stats  # takes long to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # differences that are all equal have no standard deviation
        t = float(stats.ttest_1samp(differences, 0.0).pvalue)
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    # With ties the normal approximation may fall below what any order of signs could give.
    unequal = sum(one != 0 for one in differences)
    return t, min(1.0, max(wilcoxon, 2.0 ** (1 - unequal)))


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected by Holm for being so many.

    >>> [round(one, 3) for one in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(p), 0.0
    for place, which in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - place) * p[which]))
        corrected[which] = highest
    return corrected
