"""Pictures for papers, drawn with matplotlib; PNG and SVG, each with a text alternative inside."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgram.core.extras import require
from fedgram.core.terminal import visible
from fedgram.experiments.results import METRICS, Result, Results
from fedgram.experiments.variants import show
from fedgram.report.heatmaps import class_counts, noted_matrices
from fedgram.report.palette import looks
from fedgram.report.panels import Picture, add_legend, latest, literal, panels_of, plain_figure, slug
from fedgram.report.series import Sweep, is_number, learning_curves, sweeps
from fedgram.report.tables import cells, headings

_STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.edgecolor": "#6b7280",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedgram",
}


def write_plots(results: Results, folder: Path, metric: str) -> Iterator[Path]:
    """Write every picture that the results allow, as PNG and SVG, and yield each file as it is there."""
    with _matplotlib():
        for name, figure, alternative in draw(results, metric):
            for ending, save in (("png", _save_png), ("svg", _save_svg)):
                path = folder / f"{name}.{ending}"
                path.write_bytes(save(figure, name, alternative))
                yield path


@contextmanager
def _matplotlib() -> Iterator[None]:
    with require("matplotlib", "plot", "drawing plots").rc_context(_STYLE):
        yield


def _save_png(figure: Any, name: str, alternative: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Title": name, "Description": alternative})
    return out.getvalue()


def _save_svg(figure: Any, name: str, alternative: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue().decode()
    end = text.index(">", text.index("<svg"))
    told = escape(visible(alternative))
    told = f' role="img" aria-label="{told}"><title>{told}</title>'
    return (text[:end] + told + text[end + 1 :]).encode()


def draw(results: Results, metric: str) -> Iterator[Picture]:
    """Draw the pictures one by one."""
    yield from _costs(results, metric, "bytes", "bytes a client, up and down", lambda run: run.bytes_per_client)
    yield from _costs(results, metric, "cpu", "CPU seconds of a run, clients and server", lambda run: run.cpu)
    yield from _rounds(results, metric)
    yield from _clients(results)
    yield from class_counts(results)
    yield from noted_matrices(results)
    for sweep in sweeps(results):
        yield _sensitivity(sweep, results, metric)


def _costs(
    results: Results, metric: str, name: str, title: str, cost: Callable[[Result], float | None]
) -> Iterator[Picture]:
    look = looks(results.labels, _references(results))
    figure, axes = plain_figure()
    told = []
    for label in results.labels:
        runs = [run for run in results.finished if run.label == label and metric in run.accuracy and cost(run)]
        if not runs:
            continue
        points = [
            (fmean(cost(r) or 0 for r in group), fmean(100 * r.accuracy[metric] for r in group))
            for group in _by_column(runs)
        ]
        style = {"color": look[label].colour, "marker": look[label].shape, "linestyle": "none"}
        axes.plot(*zip(*points, strict=True), markersize=3.5, alpha=0.35, **style)
        x, y = (fmean(values) for values in zip(*points, strict=True))
        axes.plot([x], [y], markersize=9, markeredgecolor="white", label=label, **style)
        told.append(f"{label} {y:.1f} % at {x:.3g}")
    if not told:
        return
    axes.set(xscale="log", xlabel=title, ylabel=_percent(metric))
    add_legend(figure, axes)
    yield f"accuracy-{name}", figure, f"Accuracy against {title}, mean over settings: {'; '.join(told)}."


def _rounds(results: Results, metric: str) -> Iterator[Picture]:
    curves = {place: curve[metric] for place, curve in learning_curves(results).items() if curve[metric]}
    if not curves:
        return
    look, accuracy = looks(results.labels, _references(results)), cells(results, metric)
    where = headings(results.columns)
    figure, panels = panels_of({c: where[c] for c in where if any(c == other for _, other in curves)}, share_y=True)
    told = []
    for column, axes in panels:
        for label in results.labels:
            colour, cell = look[label].colour, accuracy.get((label, column))
            if curve := curves.get((label, column)):
                axes.plot(range(1, len(curve) + 1), [100 * v for v in curve], color=colour, label=label, linewidth=1.6)
                told.append(f"{label} ends at {100 * curve[-1]:.1f} % after {len(curve)} rounds ({where[column]})")
            elif cell and cell.mean is not None and label in _references(results):
                axes.axhline(cell.mean, color=colour, linestyle="--", linewidth=1, label=label)
            elif cell and cell.mean is not None:
                axes.plot([1], [cell.mean], "*", color=colour, markersize=12, markeredgecolor="white", label=label)
                told.append(f"{label} has {cell.mean:.1f} % in one round ({where[column]})")
        axes.set_xlabel("round")
        axes.label_outer()
    figure.supylabel(_percent(metric), fontsize=9, ha="center")
    add_legend(figure, panels[0][1])
    yield "accuracy-rounds", figure, f"Accuracy per round; stars are methods of one round. {'; '.join(told)}."


def _clients(results: Results) -> Iterator[Picture]:
    first = {(run.label, run.column): run for run in sorted(results.finished, key=latest)}
    values = {
        place: known
        for place, run in first.items()
        if len(known := [100 * value for value in run.by_client if value is not None]) > 1
    }
    if not values:
        return
    look = looks(results.labels, _references(results))
    where = headings(results.columns)
    figure, panels = panels_of({c: where[c] for c in where if any(c == other for _, other in values)}, share_y=True)
    for column, axes in panels:
        labels = [label for label in results.labels if (label, column) in values]
        boxes = axes.boxplot(
            [values[label, column] for label in labels],
            patch_artist=True,
            medianprops={"color": "#111827"},
            flierprops={"markersize": 2.5, "markeredgecolor": "#6b7280"},
        )
        for box, label in zip(boxes["boxes"], labels, strict=True):
            box.set(facecolor=look[label].colour, alpha=0.65)
        axes.set_xticks(
            range(1, len(labels) + 1), map(literal, labels), rotation=45, ha="right", rotation_mode="anchor"
        )
    figure.supylabel("accuracy of a client in %", fontsize=9)
    told = "; ".join(
        f"{label} ({where[column]}) lowest {min(known):.0f}, mean {fmean(known):.1f}, highest {max(known):.0f}"
        for (label, column), known in sorted(values.items(), key=lambda item: item[0][0])
    )
    yield "clients", figure, f"Distribution of the clients' accuracies in %, first seed: {told}."


def _sensitivity(sweep: Sweep, results: Results, metric: str) -> Picture:
    figure, axes = plain_figure()
    columns = results.columns
    where = headings(columns)
    numbers = [value for value in sweep.values if is_number(value)]
    continuous = len(numbers) == len(sweep.values)
    place = {value: value if continuous else index for index, value in enumerate(sweep.values)}
    told = []
    for index, ((column, rest), points) in enumerate(
        sorted(sweep.curves.items(), key=lambda item: columns.index(item[0][0]))
    ):
        known = [
            (place[v], 100 * fmean(points[v][metric])) for v in sweep.values if v in points and points[v].get(metric)
        ]
        look = list(looks([str(i) for i in range(index + 1)]).values())[-1]
        others = sum(column == other for other, _ in sweep.curves) > 1
        label = f"{where[column]}; {rest}" if others else where[column]
        axes.plot(*zip(*known, strict=True), color=look.colour, marker=look.shape, markersize=4, label=label)
        told.append(f"{label}: " + ", ".join(f"{y:.1f}" for _, y in known))
    if continuous and min(numbers) > 0 and max(numbers) / min(numbers) >= 50:
        axes.set_xscale("log")
    if not continuous:
        axes.set_xticks(list(place.values()), [literal(show(value)) for value in sweep.values])
    axes.set(xlabel=literal(f"{sweep.parameter} of {sweep.method}"), ylabel=_percent(metric))
    add_legend(figure, axes)
    name = slug(f"sensitivity {sweep.method} {sweep.parameter}")
    values = ", ".join(map(show, sweep.values))
    return name, figure, f"Accuracy of {sweep.method} in % for {sweep.parameter} = {values}. {'; '.join(told)}."


def _by_column(runs: Sequence[Result]) -> list[list[Result]]:
    columns = dict.fromkeys(run.column for run in runs)
    return [[run for run in runs if run.column == column] for column in columns]


def _references(results: Results) -> list[str]:
    return list(dict.fromkeys(run.label for run in results.runs if run.reference))


def _percent(metric: str) -> str:
    return f"accuracy in %\n{METRICS[metric]}"
