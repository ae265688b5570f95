"""The charts that results allow: figures against costs, per round, by client, by hyper-parameter; matrices."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedgram.experiments.results import Column, Result, Results
from fedgram.experiments.variants import show
from fedgram.report.charts import POOLED, TRIVIAL, Axis, Chart, Index, Panel, Series, Unit
from fedgram.report.clientwise import class_counts, client_figures, noted_matrices
from fedgram.report.curves import round_charts
from fedgram.report.metrics import Metric, metric_in, metrics_of
from fedgram.report.palette import looks
from fedgram.report.panels import slug
from fedgram.report.reliability import reliability
from fedgram.report.series import Sweep, is_number, sweeps
from fedgram.report.tables import Cell, capitalised, cells, seconds, size

_LINES = {
    POOLED: "one global model of all data in one place, the mark for global models",
    TRIVIAL: "each client's own most frequent class, the mark for every method",
}
_WRITE: dict[Unit, Callable[[float], str]] = {
    "bytes": size,
    "seconds": lambda value: f"{seconds(value)} s",
    "percent": lambda value: f"{value:.2f} %",
    "number": lambda value: f"{value:g}",
}


def describe(results: Results, metrics: Sequence[str] = ()) -> Iterator[Chart]:
    """Yield the descriptions one by one: those of figures for each of `metrics` (default: all), the others once."""
    index, found = Index.of(results), sweeps(results)
    figures = [metric_in(results, key) for key in metrics or metrics_of(results)]
    for figure in figures:
        known = cells(results, figure.key)
        yield from _costs(results, index, figure, known)
        yield from round_charts(results, index, figure.key, figure_axis(figure), known)
        for sweep in found:
            yield from _sensitivity(sweep, results, index, figure)
    yield from client_figures(results, index, figures)
    yield from reliability(results, index)
    yield from class_counts(results, index)
    yield from noted_matrices(results, index)


def figure_axis(figure: Metric) -> Axis:
    """Return the axis of a metric."""
    return Axis(f"{figure.title}, {figure.short}", "percent") if figure.is_accuracy else Axis(figure.title)


def _costs(results: Results, index: Index, figure: Metric, known: dict[tuple[str, Column], Cell]) -> Iterator[Chart]:
    kinds: list[tuple[str, str, Unit, list[str], Callable[[Result], float | None]]] = [
        ("bytes", "bytes a client, up and down", "bytes", [], lambda run: run.bytes_per_client),
        ("cpu", "CPU time", "seconds", ["All clients and the server together."], lambda run: run.cpu),
    ]
    runs: dict[tuple[str, Column], list[Result]] = defaultdict(list)
    for run in results.finished:
        runs[run.label, run.column].append(run)
    for name, title, unit, note, cost in kinds:
        found = (_points(label, runs, index, known, cost, unit) for label in results.labels)
        series = [drawn for drawn in found if drawn is not None]
        if not any(one.draw == "marks" for one in series):
            continue
        side = "Down" if figure.lower else "Up"
        notes = [*note, f"{side} and left is better. The large mark is the mean, small ones are single settings."]
        if any(half is not None for one in series for half in one.half):
            notes.append("Where one setting is shown, the line through a mark spans its ±.")
        said = {index.references[one.label] for one in series if one.draw == "reference"}
        if said:
            notes.append(f"Dashed lines are references: {', and '.join(_LINES[kind] for kind in sorted(said))}.")
        axis = Axis(title, unit, "log")
        panels = [Panel("", series=series)]
        heading = f"{capitalised(figure.name)} against {title}"
        file = f"{'accuracy' if figure.is_accuracy else slug(figure.key)}-{name}"
        yield Chart(file, "scatter", heading, axis, figure_axis(figure), panels, " ".join(notes), figure.key)


def _points(
    label: str,
    runs: Mapping[tuple[str, Column], Sequence[Result]],
    index: Index,
    known: dict[tuple[str, Column], Cell],
    cost: Callable[[Result], float | None],
    unit: Unit,
) -> Series | None:
    """Return a method's figures with their costs, one of each setting; the reference costs nothing."""
    reference = label in index.references
    points: list[tuple[float | None, Cell, int]] = []
    for column, place in index.column.items():
        cell = known.get((label, column))
        if cell is None or cell.mean is None:
            continue
        costs = [value for run in runs[label, column] if (value := cost(run))]
        if reference or costs:
            points.append((None if reference else fmean(costs), cell, place))
    if not points:
        return None
    y = [cell.mean or 0.0 for _, cell, _ in points]
    x = [float(f"{value:.6g}") for value, _, _ in points if value is not None]
    said = points[0][1].metric.say(fmean(y))
    told = f"{label}: {said}" + (f" at {_WRITE[unit](fmean(x))}" if x else f" {index.references[label]}")
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


def _sensitivity(sweep: Sweep, results: Results, index: Index, figure: Metric) -> Iterator[Chart]:
    numbers = [value for value in sweep.values if is_number(value)]
    continuous = len(numbers) == len(sweep.values)
    place: dict[Any, float] = {value: value if continuous else i for i, value in enumerate(sweep.values)}
    curves = sorted(sweep.curves.items(), key=lambda item: index.column[item[0][0]])
    look = list(looks([str(i) for i in range(len(curves))]).values())
    series = []
    for i, ((column, rest), points) in enumerate(curves):
        known = {
            value: Cell(found, metric=figure).mean or 0.0
            for value in sweep.values
            if value in points and (found := points[value].get(figure.key))
        }
        if not known:
            continue
        others = sum(column == other for other, _ in sweep.curves) > 1
        label = f"{index.heading[column]}; {rest}" if others else index.heading[column]
        told = f"{label}: " + ", ".join(f"{show(value)} gives {figure.say(y)}" for value, y in known.items())
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
        figure_axis(figure),
        [Panel("", series=series)],
        "",
        figure.key,
        sorted({index.method[run.label] for run in results.runs if run.method == sweep.method}),
    )
