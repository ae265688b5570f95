"""Accuracy while a method is at work: by round, and by what it has sent and computed until then."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from fedgram.experiments.results import Column, Result, Results
from fedgram.report.charts import Axis, Chart, Index, Panel, Series
from fedgram.report.measures import round_count
from fedgram.report.series import Curve, learning_curves
from fedgram.report.tables import Cell, seconds, size

NOTE = "Lines are methods that need rounds; a star is a method that is done after one."


@dataclass(frozen=True)
class Kind:
    """What is along the axis: a cost of the whole run, of which each round takes an equal part."""

    name: str
    title: str
    axis: Axis
    cost: Callable[[Result], float | None]
    write: Callable[[float], str]
    note: str = f"{NOTE} All rounds of a run count as equally costly."


KINDS = (
    Kind(
        "accuracy-rounds",
        "Accuracy per round",
        Axis("round"),
        round_count,
        lambda x: f"{x:g} rounds" if x > 1 else "one round",
        NOTE,
    ),
    Kind(
        "accuracy-rounds-bytes",
        "Accuracy by bytes",
        Axis("bytes a client, up and down", "bytes", "log"),
        lambda run: run.bytes_per_client,
        size,
    ),
    Kind(
        "accuracy-rounds-cpu",
        "Accuracy by CPU time",
        Axis("CPU time", "seconds", "log"),
        lambda run: run.cpu,
        lambda x: f"{seconds(x)} s",
    ),
)


def round_charts(
    results: Results, index: Index, metric: str, y: Axis, accuracy: Mapping[tuple[str, Column], Cell]
) -> Iterator[Chart]:
    """Yield a chart of each kind for which there are learning curves."""
    curves = {
        where: _whole(curve, metric)
        for where, curve in learning_curves(results).items()
        if max(map(len, curve.values())) > 1  # a single round is a point, not a line
    }
    for kind in KINDS:
        costs = _means(results, kind.cost)
        panels = []
        for column, place in index.column.items():
            found = []
            for label in results.labels:
                where = label, column
                if where in curves:
                    found.append(_line(label, place, index, kind, costs.get(where), curves[where]))
                elif where in accuracy:
                    found.append(_point(label, place, index, kind, costs.get(where), accuracy[where]))
            series = [one for one in found if one is not None]
            if any(one.draw == "line" for one in series):
                panels.append(Panel(index.heading[column], place, series=series))
        if panels:
            yield Chart(kind.name, "lines", kind.title, kind.axis, y, panels, kind.note, metric)


def _whole(curve: Curve, metric: str) -> list[float]:
    """Return a metric's curve in %, empty if it is not known in every round: that would look as if it ended early."""
    values = curve.get(metric, [])
    return [round(100 * value, 2) for value in values] if len(values) == max(map(len, curve.values())) else []


def _means(results: Results, cost: Callable[[Result], float | None]) -> dict[tuple[str, Column], float]:
    found: dict[tuple[str, Column], list[float]] = defaultdict(list)
    for run in results.finished:
        if value := cost(run):
            found[run.label, run.column].append(value)
    return {where: fmean(values) for where, values in found.items()}


def _rounded(value: float) -> float:
    """Return four digits, which is more than a reader sees: a page holds thousands of these."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _line(label: str, place: int, index: Index, kind: Kind, cost: float | None, y: list[float]) -> Series | None:
    if cost is None or not y:
        return None
    x = [_rounded(cost * (i + 1) / len(y)) for i in range(len(y))]
    told = f"{label} ends at {y[-1]:.2f} % after {kind.write(cost)}"
    return Series(label, index.look[label], "line", x, y, index.method[label], [place], told=told)


def _point(label: str, place: int, index: Index, kind: Kind, cost: float | None, cell: Cell) -> Series | None:
    look, method, half = index.look[label], index.method[label], [cell.half]
    if cell.mean is None:
        return None
    told = f"{label} has {cell.metric.say(cell.mean)} "
    if label in index.references:
        told += index.references[label]
        return Series(label, look, "reference", (), [cell.mean], method, [place], half, told=told)
    if cost is None:
        return None
    told += f"after {kind.write(cost)}"
    return Series(label, look, "star", [_rounded(cost)], [cell.mean], method, [place], half, told=told)
