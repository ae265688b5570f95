"""What pictures share: a figure with a panel for each setting, a legend, names of files."""

import re
from collections.abc import Sequence
from math import ceil
from typing import Any

from fedgram.core.terminal import visible
from fedgram.report.charts import Axis, Panel

MOST_PANELS = 12


def panels_of(panels: Sequence[Panel], *, share_y: bool = False) -> tuple[Any, list[tuple[Panel, Any]]]:
    """Return a figure with axes for each panel, at most a dozen."""
    from matplotlib.figure import Figure

    shown = panels[:MOST_PANELS]
    across = min(3, len(shown))
    down = ceil(len(shown) / across)
    size = (5.2, 3.4) if len(shown) == 1 else (3.1 * across, 2.9 * down)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=share_y)
    for panel, axes in zip(shown, grid.flat, strict=False):
        axes.set_title(literal(panel.title), fontsize=9)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    return figure, list(zip(shown, grid.flat, strict=False))


def add_legend(figure: Any, panels: Sequence[tuple[Panel, Any]]) -> None:
    """Put one legend of all that is drawn beside the panels."""
    known: dict[str, Any] = {}
    for _, axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    figure.legend(known.values(), map(literal, known), loc="outside right upper", fontsize=8)


def set_axis(axes: Any, which: str, axis: Axis) -> None:
    """Give one of the axes ("x" or "y") its title, its scale and its ticks."""
    if axis.scale == "log":
        axes.set(**{f"{which}scale": "log"})
    if axis.ticks and axis.scale == "linear":
        getattr(axes, f"set_{which}ticks")(
            [place for place, _ in axis.ticks], [literal(text) for _, text in axis.ticks]
        )
    unit = {"bytes": ", bytes", "seconds": " in seconds"}.get(axis.unit, "")
    axes.set(**{f"{which}label": literal(axis.title + ("" if unit.strip(" ,") in axis.title else unit))})


def literal(text: str) -> str:
    """Return a text that matplotlib draws as it is: dollars enclose no formula, and control characters are shown."""
    return visible(text, lines=True).replace("$", r"\$")


def slug(text: str) -> str:
    """Return a text as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
