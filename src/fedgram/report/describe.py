"""The charts that results allow: accuracy against costs, per round, by client, by hyper-parameter, and matrices."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedgram.experiments.results import METRICS, Column, Result, Results
from fedgram.experiments.variants import show
from fedgram.report.charts import Axis, Chart, Index, Panel, Series, Unit
from fedgram.report.clientwise import class_counts, client_accuracies, noted_matrices
from fedgram.report.curves import round_charts
from fedgram.report.palette import looks
from fedgram.report.panels import slug
from fedgram.report.series import Sweep, is_number, sweeps
from fedgram.report.tables import Cell, cells, seconds, size

SHORT = {"client_mean": "client mean", "pooled": "pooled", "worst_decile": "worst decile", "best_round": "best round"}
_WRITE: dict[Unit, Callable[[float], str]] = {
    "bytes": size,
    "seconds": lambda value: f"{seconds(value)} s",
    "percent": lambda value: f"{value:.2f} %",
    "number": lambda value: f"{value:g}",
}


def describe(results: Results, metrics: Sequence[str] = tuple(METRICS)) -> Iterator[Chart]:
    """Yield the descriptions one by one: those of accuracies for each of `metrics`, the others once."""
    index, found = Index.of(results), sweeps(results)
    for metric in metrics:
        accuracy = cells(results, metric)
        yield from _costs(results, index, metric, accuracy)
        yield from round_charts(results, index, metric, accuracy_axis(metric), accuracy)
        for sweep in found:
            yield from _sensitivity(sweep, results, index, metric)
    yield from client_accuracies(results, index)
    yield from class_counts(results, index)
    yield from noted_matrices(results, index)


def accuracy_axis(metric: str) -> Axis:
    """Return the axis of accuracies."""
    return Axis(f"accuracy in %, {SHORT[metric]}", "percent")


def _costs(results: Results, index: Index, metric: str, accuracy: dict[tuple[str, Column], Cell]) -> Iterator[Chart]:
    kinds: list[tuple[str, str, Unit, list[str], Callable[[Result], float | None]]] = [
        ("bytes", "bytes a client, up and down", "bytes", [], lambda run: run.bytes_per_client),
        ("cpu", "CPU time", "seconds", ["All clients and the server together."], lambda run: run.cpu),
    ]
    runs: dict[tuple[str, Column], list[Result]] = defaultdict(list)
    for run in results.finished:
        runs[run.label, run.column].append(run)
    for name, title, unit, note, cost in kinds:
        found = (_points(label, runs, index, accuracy, cost, unit) for label in results.labels)
        series = [drawn for drawn in found if drawn is not None]
        if not any(one.draw == "marks" for one in series):
            continue
        notes = [*note, "Up and left is better. The large mark is the mean, small ones are single settings."]
        if any(half is not None for one in series for half in one.half):
            notes.append("Where one setting is shown, the line through a mark spans its ±.")
        if any(one.draw == "reference" for one in series):
            notes.append("The dashed line is one global model of all data in one place: the mark for global models.")
        axis = Axis(title, unit, "log")
        panels = [Panel("", series=series)]
        heading = f"Accuracy against {title}"
        yield Chart(
            f"accuracy-{name}", "scatter", heading, axis, accuracy_axis(metric), panels, " ".join(notes), metric
        )


def _points(
    label: str,
    runs: Mapping[tuple[str, Column], Sequence[Result]],
    index: Index,
    accuracy: dict[tuple[str, Column], Cell],
    cost: Callable[[Result], float | None],
    unit: Unit,
) -> Series | None:
    """Return a method's accuracies with their costs, one of each setting; the reference costs nothing."""
    reference = label in index.references
    points: list[tuple[float | None, Cell, int]] = []
    for column, place in index.column.items():
        cell = accuracy.get((label, column))
        if cell is None or cell.mean is None:
            continue
        costs = [value for run in runs[label, column] if (value := cost(run))]
        if reference or costs:
            points.append((None if reference else fmean(costs), cell, place))
    if not points:
        return None
    y = [cell.mean or 0.0 for _, cell, _ in points]
    x = [float(f"{value:.6g}") for value, _, _ in points if value is not None]
    told = f"{label}: {fmean(y):.2f} %" + (f" at {_WRITE[unit](fmean(x))}" if x else " with all data in one place")
    return Series(
        label,
        index.look[label],
        "reference" if reference else "marks",
        x,
        y,
        index.method[label],
        [place for _, _, place in points],
        [cell.half for _, cell, _ in points],
        told=told,
    )


def _sensitivity(sweep: Sweep, results: Results, index: Index, metric: str) -> Iterator[Chart]:
    numbers = [value for value in sweep.values if is_number(value)]
    continuous = len(numbers) == len(sweep.values)
    place: dict[Any, float] = {value: value if continuous else i for i, value in enumerate(sweep.values)}
    curves = sorted(sweep.curves.items(), key=lambda item: index.column[item[0][0]])
    look = list(looks([str(i) for i in range(len(curves))]).values())
    series = []
    for i, ((column, rest), points) in enumerate(curves):
        known = {
            value: round(100 * fmean(points[value][metric]), 2)
            for value in sweep.values
            if value in points and points[value].get(metric)
        }
        if not known:
            continue
        others = sum(column == other for other, _ in sweep.curves) > 1
        label = f"{index.heading[column]}; {rest}" if others else index.heading[column]
        told = f"{label}: " + ", ".join(f"{show(value)} gives {y:.2f} %" for value, y in known.items())
        x = [place[value] for value in known]
        columns = [index.column[column]]
        series.append(Series(label, look[i], "line", x, list(known.values()), columns=columns, told=told))
    if not series:
        return
    wide = continuous and min(numbers) > 0 and max(numbers) / min(numbers) >= 50
    ticks = [(place[value], show(value)) for value in sweep.values]
    yield Chart(
        slug(f"sensitivity {sweep.method} {sweep.parameter}"),
        "lines",
        f"{sweep.method}: {sweep.parameter}",
        Axis(f"{sweep.parameter} of {sweep.method}", "number", "log" if wide else "linear", ticks),
        accuracy_axis(metric),
        [Panel("", series=series)],
        "",
        metric,
        sorted({index.method[run.label] for run in results.runs if run.method == sweep.method}),
    )
