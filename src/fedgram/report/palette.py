"""One look per method in every picture: colours that colour-blind readers can tell apart, and a shape besides."""

from collections.abc import Sequence
from typing import NamedTuple

# After Okabe and Ito, without the yellow that vanishes on white; the second of each pair is for a dark page.
COLOURS = (
    ("#0072b2", "#4ba6e0"),
    ("#d55e00", "#f2803d"),
    ("#009e73", "#2fc79b"),
    ("#b8508c", "#e08fbd"),
    ("#c98500", "#f0b443"),
    ("#2f9bd3", "#8accf0"),
    ("#6a4c9c", "#ab8fe0"),
    ("#8a6642", "#c9a27a"),
)
REFERENCE = ("#6b7280", "#9aa3b2")
# Names of matplotlib's markers; the page draws the same shapes.
SHAPES = ("o", "s", "^", "D", "v", "P", "X")


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    dark: str
    shape: str


def looks(labels: Sequence[str], references: Sequence[str] = ()) -> dict[str, Look]:
    """Give every method its look; the first methods get the clearest colours, and no two get the same.

    >>> looks(["centralised", "afl"], ["centralised"])["afl"].colour
    '#0072b2'
    """
    chosen = {label: Look(*REFERENCE, "o") for label in references}
    for place, label in enumerate(label for label in labels if label not in references):
        colour, dark = COLOURS[place % len(COLOURS)]
        # The shape moves on with the colour too, so that neighbours differ in both.
        shape = SHAPES[(place + place // len(COLOURS)) % len(SHAPES)]
        chosen[label] = Look(colour, dark, shape)
    return chosen
