"""What pictures share: a figure, a panel for each setting, a legend, names of files."""

import re
from collections.abc import Hashable, Mapping
from math import ceil
from typing import Any, TypeAlias, TypeVar

from fedgram.core.terminal import visible
from fedgram.experiments.results import Result, Spread

Picture: TypeAlias = tuple[str, Any, str]  # a file's name, a matplotlib figure, and its text alternative
Key = TypeVar("Key", bound=Hashable)
MOST_PANELS = 12


def plain_figure(width: float = 5.2, height: float = 3.4) -> tuple[Any, Any]:
    """Return a figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def panels_of(titles: Mapping[Key, str], *, share_y: bool = False) -> tuple[Any, list[tuple[Key, Any]]]:
    """Return a figure with one panel per title, at most a dozen."""
    from matplotlib.figure import Figure

    shown = list(titles)[:MOST_PANELS]
    across = min(3, len(shown))
    down = ceil(len(shown) / across)
    figure = Figure(figsize=(max(4.6, 3.1 * across), 2.9 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=share_y)
    panels = list(zip(shown, grid.flat, strict=False))
    for key, axes in panels:
        axes.set_title(literal(titles[key]), fontsize=9)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    return figure, panels


def add_legend(figure: Any, axes: Any) -> None:
    """Put the legend of some axes beside them all."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, map(literal, labels), loc="outside right upper", fontsize=8)


def literal(text: str) -> str:
    """Return a text that matplotlib draws as it is: dollars enclose no formula, and control characters are shown."""
    return visible(text, lines=True).replace("$", r"\$")


def latest(item: Result | Spread) -> int:
    """Order by seed, the first one last, where it overrides the others."""
    return -item.seed


def slug(text: str) -> str:
    """Return a text as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
