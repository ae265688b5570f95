"""Whether moments can be those of a table under a study: what the study's own rules say about their sums."""

import numpy as np

from fedgram.core.errors import Mismatch, NotMoments
from fedgram.core.labels import NUMERIC
from fedgram.moments.moments import Moments
from fedgram.studies.kinds import Category, Flag, Number, unknown
from fedgram.studies.study import Study

ROUNDING = 1e-6  # of the number of samples; sums of ones are exact, factors of Gram matrices are not


def check_moments(study: Study, moments: Moments) -> None:
    """Refuse moments of other columns or classes, or whose sums no rows that keep the study's rules can have.

    Columns of 0 and 1 have whole sums, and as sums of squares the same; numbers in units of their range are from -1
    to 1.
    """
    kind = moments.kind
    if kind.columns != study.sent or kind.classes != (study.classes or NUMERIC) or kind.features != study.features:
        raise Mismatch(f"these are not moments of what study {study.name!r} sends")
    sums, squares = moments.cross, moments.squares
    indicators, bounded = _places(study)
    slack = ROUNDING * max(moments.n, 1)
    for place in bounded:
        if squares[place] > moments.n + slack or (np.abs(sums[place]) > moments.counts + slack).any():
            raise NotMoments(
                f"column {study.sent[place]!r} is from -1 to 1 in units of its range, and its sum of squares over "
                f"{moments.n} samples is {squares[place]:g}: encode the table by the study"
            )
    for place in indicators:
        found = sums[place]
        whole = (np.abs(found - found.round()) <= slack).all() and (found >= -slack).all()
        if not whole or abs(squares[place] - found.sum()) > slack:
            raise NotMoments(
                f"column {study.sent[place]!r} is 0 or 1, and its sums by class are {found.tolist()[:4]}, of squares "
                f"{squares[place]:g}: encode the table by the study"
            )


def _places(study: Study) -> tuple[list[int], list[int]]:
    """Return where the columns of 0 and 1 are, and where numbers in units of their range."""
    indicators, bounded, place = [], [], 0
    for name, column in study.used.items():
        for sent in column.sent(name):
            is_indicator = isinstance(column, Category | Flag) or sent == unknown(name)
            if is_indicator:
                indicators.append(place)
            if is_indicator or (isinstance(column, Number) and column.range is not None):
                bounded.append(place)
            place += 1
    return indicators, bounded
