"""Charts of single clients: their accuracies, who has which classes, who takes how much of whom."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from fedgram.experiments.matrices import Matrix
from fedgram.experiments.results import Column, Results, Spread
from fedgram.report.charts import Axis, Chart, Heat, Index, Panel, Series
from fedgram.report.panels import slug


def client_accuracies(results: Results, index: Index) -> Iterator[Chart]:
    """Describe how accuracies spread over the clients, one panel for each setting."""
    panels: dict[Column, list[Series]] = defaultdict(list)
    for (label, column), run in index.chosen(results).items():
        known = sorted(100 * value for value in run.by_client if value is not None)
        if len(run.tested) < 2 or not known:
            continue
        median = known[0] if len(known) == 1 else quantiles(known, n=4, method="inclusive")[1]
        told = (
            f"{label}: lowest {known[0]:.1f}, median {median:.1f}, mean {fmean(known):.1f}, highest {known[-1]:.1f} %"
        )
        facts = {"sent up": run.up, "sent down": run.down} if run.up and run.down else {}
        x = [None if value is None else round(100 * value, 1) for value in run.by_client]
        place = index.column[column]
        panels[column].append(
            Series(label, index.look[label], "strip", x, (), index.method[label], [place], facts=facts, told=told)
        )
    if panels:
        yield Chart(
            "clients",
            "strip",
            "Accuracies of single clients",
            Axis("accuracy of a client in %", "percent"),
            Axis("method"),
            [Panel(index.heading[column], index.column[column], series=panels[column]) for column in panels],
            "A dot is a client, the bar the middle half, the line the median, the diamond the mean.",
        )


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
        if spread := spreads.get(column):
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
