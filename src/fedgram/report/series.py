"""What pictures are drawn from: learning curves and sensitivity curves, as means over seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

from fedgram.experiments.results import METRICS, Column, Result, Results
from fedgram.experiments.variants import show
from fedgram.report.metrics import Metric, metric_of, metrics_of

Curve: TypeAlias = dict[str, list[float]]


def learning_curves(results: Results) -> dict[tuple[str, Column], Curve]:
    """Return the accuracies per round by metric, mean over seeds, of methods that report rounds."""
    grouped: dict[tuple[str, Column], list[Mapping[str, Sequence[float]]]] = defaultdict(list)
    for run in results.finished:
        if run.rounds:
            grouped[run.label, run.column].append(run.rounds)
    return {
        place: {
            metric: [fmean(values) for values in zip(*(rounds.get(metric, ()) for rounds in seeds), strict=False)]
            for metric in METRICS
        }
        for place, seeds in grouped.items()
    }


@dataclass(frozen=True)
class Sweep:
    """How the figures of one method follow one hyper-parameter, all else equal; a curve per column and rest."""

    method: str
    parameter: str
    values: Sequence[Any]
    curves: Mapping[tuple[Column, str], Mapping[Any, Curve]]


def sweeps(results: Results) -> list[Sweep]:
    """Return the sensitivity curves that the results hold: the figures of every seed, as shown, by value and metric."""
    figures = {key: metric_of(key) for key in metrics_of(results)}
    by_method: dict[str, list[Result]] = defaultdict(list)
    for run in results.finished:
        if not run.reference and any(figure.value(run) is not None for figure in figures.values()):
            by_method[run.method].append(run)
    found = []
    for method, runs in by_method.items():
        for parameter in dict.fromkeys(name for run in runs for name in run.settings):
            curves = _curves(runs, parameter, figures)
            values = list(dict.fromkeys(value for points in curves.values() for value in points))
            if len(values) > 1:
                found.append(Sweep(method, parameter, _sorted(values), curves))
    return found


def _curves(
    runs: Sequence[Result], parameter: str, figures: Mapping[str, Metric]
) -> dict[tuple[Column, str], dict[Any, Curve]]:
    curves: dict[tuple[Column, str], dict[Any, Curve]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        if parameter not in run.settings:
            continue
        value = _scalar(run.settings[parameter])
        rest = ", ".join(f"{name}={show(other)}" for name, other in run.settings.items() if name != parameter)
        for metric, figure in figures.items():
            if (known := figure.shown(run)) is not None:
                curves[run.column, rest][value][metric].append(known)
    # A hyper-parameter counts as swept only where nothing else changed with it.
    return {place: dict(points) for place, points in curves.items() if len(points) > 1}


def _scalar(value: Any) -> Any:
    """Return a value that can be a point of a curve: lists, and whatever else a file may hold, as text."""
    if isinstance(value, list):
        return ", ".join(map(show, value))
    return value if value is None or isinstance(value, bool | int | float | str) else show(value)


def _sorted(values: list[Any]) -> list[Any]:
    return sorted(values, key=lambda value: (isinstance(value, str | None), value if is_number(value) else 0))


def is_number(value: Any) -> bool:
    """Say whether a value can stand on an axis of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)
