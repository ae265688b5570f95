"""Heat maps: who has which classes, and the matrices that methods left, such as who takes how much of whom."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, TypeAlias

from fedgram.experiments.matrices import Matrix
from fedgram.experiments.results import Column, Results
from fedgram.report.panels import Picture, latest, literal, panels_of, slug
from fedgram.report.tables import headings

Range: TypeAlias = tuple[float, float]
MOST_NAMES = 20


def class_counts(results: Results) -> Iterator[Picture]:
    """Draw how many training samples of each class the clients have."""
    first = {spread.column: spread for spread in sorted(results.spreads, key=latest)}
    where = {column: text for column, text in headings(results.columns).items() if column in first}
    if not where:
        return
    figure, panels = panels_of(where)
    for column, axes in panels:
        spread = first[column]
        # A square root, or else a few large clients would leave all the others white.
        shades = [[n**0.5 for n in row] for row in spread.counts]
        axes.imshow(shades, aspect="auto", cmap="Blues", interpolation="nearest")
        axes.grid(visible=False)
        axes.set(xlabel="class", ylabel="client")
        if len(spread.classes) <= MOST_NAMES:
            names = [literal(name) for name in spread.classes]
            axes.set_xticks(range(len(names)), names, rotation=0 if len("".join(names)) < 30 else 90)
    told = "; ".join(f"{where[column]}: {_held(first[column].counts)}" for column, _ in panels)
    yield "classes", figure, f"Training samples by client and class, darker is more; {told}."


def _held(counts: Sequence[Sequence[int]]) -> str:
    mean = fmean(sum(n > 0 for n in row) for row in counts)
    return f"{len(counts)} clients with {mean:.1f} classes each on average"


def noted_matrices(results: Results) -> Iterator[Picture]:
    """Draw the matrices that methods left, a picture for each kind; the diagonal is clamped to the others' range."""
    found: dict[str, dict[tuple[str, Column], tuple[Matrix, Range]]] = defaultdict(dict)
    for run in sorted(results.finished, key=latest):
        for name, matrix in run.matrices.items():
            if matrix.range:
                found[name][run.label, run.column] = matrix, matrix.range
    where = headings(results.columns)
    for name, first in found.items():
        places = [(label, column) for column in results.columns for label in results.labels if (label, column) in first]
        figure, panels = panels_of({place: f"{place[0]}\n{where[place[1]]}" for place in places})
        figure.set_layout_engine("compressed")  # panels are squares, and stay together
        for place, axes in panels:
            _draw(figure, axes, *first[place])
        told = "; ".join(f"{label}, {where[column]}: {_told(*first[label, column])}" for (label, column), _ in panels)
        yield slug(f"matrix {name}"), figure, f"{name.capitalize()}, first seed, darker is more; {told}."


def _draw(figure: Any, axes: Any, matrix: Matrix, shown: Range) -> None:
    low, high = shown
    shades = [[float("nan") if value is None else value for value in row] for row in matrix.values]
    image = axes.imshow(shades, cmap="Blues", vmin=low, vmax=high, interpolation="nearest")
    axes.grid(visible=False)
    axes.set(ylabel="client" if matrix.clients else "row", xlabel="of client" if matrix.clients else "column")
    if 0 < len(matrix.clients) <= MOST_NAMES:
        names = [literal(name) for name in matrix.clients]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
    over, under = max(matrix.own, default=high) > high, min(matrix.own, default=low) < low
    extend = "both" if over and under else "max" if over else "min" if under else "neither"
    bar = figure.colorbar(image, ax=axes, extend=extend)
    bar.ax.tick_params(labelsize=7)
    if over or under:
        bar.set_label("the diagonal is clamped", fontsize=7)


def _told(matrix: Matrix, shown: Range) -> str:
    low, high = shown
    if not matrix.clients:
        return f"{len(matrix.values)} rows by {len(matrix.values[0])} columns, from {low:.3g} to {high:.3g}"
    own = f", on it {min(matrix.own):.3g} to {max(matrix.own):.3g}, which the colours do not tell" if matrix.own else ""
    return f"{len(matrix.clients)} clients, off the diagonal {low:.3g} to {high:.3g}{own}"
