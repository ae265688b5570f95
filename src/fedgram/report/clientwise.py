"""Charts of single clients: their figures, who has which classes, who takes how much of whom."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from fedgram.experiments.matrices import Matrix
from fedgram.experiments.results import Column, Results, Spread
from fedgram.report.charts import Axis, Chart, Heat, Index, Panel, Series
from fedgram.report.metrics import Metric
from fedgram.report.panels import slug
from fedgram.report.tables import capitalised


def client_figures(results: Results, index: Index, figures: Sequence[Metric]) -> Iterator[Chart]:
    """Describe how figures spread over the clients; accuracies of all kinds share one chart, the first."""
    accuracies = [figure for figure in figures if figure.is_accuracy]
    others = [figure for figure in figures if not figure.is_accuracy and not figure.key.startswith("client_")]
    for figure in (*accuracies[:1], *others):
        panels = _strips(results, index, figure)
        if not panels:
            continue
        is_accuracy = figure.is_accuracy
        yield Chart(
            "clients" if is_accuracy else slug(f"clients {figure.key}"),
            "strip",
            f"{'Accuracies' if is_accuracy else capitalised(figure.name)} of single clients",
            Axis("accuracy of a client in %" if is_accuracy else figure.title, "percent" if is_accuracy else "number"),
            Axis("method"),
            panels,
            "A dot is a client, the bar the middle half, the line the median, the diamond the mean.",
            None if is_accuracy else figure.key,
        )


def _strips(results: Results, index: Index, figure: Metric) -> list[Panel]:
    panels: dict[Column, list[Series]] = defaultdict(list)
    for (label, column), run in index.chosen(results).items():
        values = [None if value is None else figure.factor * value for value in figure.clients(run)]
        known = sorted(value for value in values if value is not None)
        if len(run.tested) < 2 or not known:
            continue
        median = known[0] if len(known) == 1 else quantiles(known, n=4, method="inclusive")[1]
        parts = {"lowest": known[0], "median": median, "mean": fmean(known), "highest": known[-1]}
        digits = 1 if figure.is_accuracy else None
        said = ", ".join(f"{name} {_short(value, digits)}" for name, value in parts.items())
        facts = {"sent up": run.up, "sent down": run.down} if run.up and run.down else {}
        x = [None if value is None else float(_short(value, digits)) for value in values]
        place, look = index.column[column], index.look[label]
        told = f"{label}: {said}" + (f" {figure.unit}" if figure.unit else "")
        panels[column].append(Series(label, look, "strip", x, (), index.method[label], [place], facts=facts, told=told))
    return [Panel(index.heading[column], index.column[column], series=panels[column]) for column in panels]


def _short(value: float, decimals: int | None) -> str:
    return f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def known_clients(results: Results, index: Index) -> list[dict[str, Any]]:
    """Return what is known of the clients of each setting, whatever the method: names, and facts in their order."""
    tested = {column: run.tested for (_, column), run in reversed(index.chosen(results).items()) if run.tested}
    spreads = _spreads(results, index)
    found = []
    for column in index.column:
        facts: dict[str, Sequence[int]] = {}
        if column in tested:
            facts["test samples"] = tested[column]
        if spread := spreads.get(column):
            facts["training samples"] = [sum(row) for row in spread.counts]
            if not spread.is_numeric:
                facts["classes"] = [sum(n > 0 for n in row) for row in spread.counts]
        found.append({"names": spread.names if spread else [], "facts": facts})
    return found


def _spreads(results: Results, index: Index) -> Mapping[Column, Spread]:
    return {spread.column: spread for spread in results.spreads if spread.seed == index.seed.get(spread.column)}


def class_counts(results: Results, index: Index) -> Iterator[Chart]:
    """Describe how many training samples of each class the clients have."""
    spreads = _spreads(results, index)
    panels = []
    for column, place in index.column.items():
        if (spread := spreads.get(column)) and not spread.is_numeric:
            values = list(zip(*spread.counts, strict=True))
            most = max((n for row in values for n in row), default=0)
            held = fmean(sum(n > 0 for n in row) for row in spread.counts)
            told = (
                f"{len(spread.counts)} clients by {len(values)} classes; a client has {held:.1f} classes on average, "
            )
            told += f"and the largest single count is {most}"
            # A square root, or else a few large clients would leave all the others white.
            heat = Heat(values, spread.classes, spread.names, (0, max(1, most)), "root", clients="columns")
            panels.append(Panel(index.heading[column], place, heat=heat, told=told))
    if panels:
        title = "Training samples by client and class"
        yield Chart("classes", "heat", title, Axis("client"), Axis("class"), panels, "Stronger colour is more.")


def noted_matrices(results: Results, index: Index) -> Iterator[Chart]:
    """Describe the matrices that methods left, a chart for each kind; the diagonal has no part in the range."""
    found: dict[str, list[tuple[str, Column, Matrix]]] = defaultdict(list)
    for (label, column), run in index.chosen(results).items():
        for name, matrix in run.matrices.items():
            found[name].append((label, column, matrix))
    for name, matrices in found.items():
        panels = []
        for label, column, matrix in matrices:
            names = matrix.clients
            heat = Heat(matrix.values, names, names, matrix.range, own=bool(names), clients="rows" if names else "")
            place, title = index.column[column], f"{label}\n{index.heading[column]}"
            panels.append(Panel(title, place, index.method[label], heat=heat, told=_told(matrix)))
        named = any(matrix.clients for _, _, matrix in matrices)
        note = "Each row is a client; its columns tell how much every client counts for it." if named else ""
        x, y = (Axis("of client"), Axis("client")) if named else (Axis("column"), Axis("row"))
        yield Chart(slug(f"matrix {name}"), "heat", name[:1].upper() + name[1:], x, y, panels, note)


def _told(matrix: Matrix) -> str:
    if matrix.range is None:
        return ""
    low, high = matrix.range
    if not matrix.clients:
        return f"{len(matrix.values)} rows by {len(matrix.values[0])} columns, {low:.3g} to {high:.3g}"
    own = f", of themselves {min(matrix.own):.3g} to {max(matrix.own):.3g}" if matrix.own else ""
    return f"{len(matrix.clients)} clients; of others {low:.3g} to {high:.3g}{own}"
