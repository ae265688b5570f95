"""Whether moments can be those of a table under a study, and a basis that of pooled sums, by the study's own rules."""

import numpy as np

from fedgram.core.errors import Mismatch, NotMoments
from fedgram.core.labels import NUMERIC
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.studies.kinds import Category, Flag, Number, unknown
from fedgram.studies.study import Study

ROUNDING = 1e-6  # of the number of samples; sums of ones are exact, factors of Gram matrices are not
MOST_SCALE = 1e150  # of a column's standard deviation or its inverse: squares of both are numbers


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


def check_basis(study: Study, basis: Basis) -> None:
    """Refuse a basis that the study does not make of any pooled sums, before anything is made by it.

    Names, order and number of columns, and which of them are made of which, follow from the study alone. Free are the
    pooled means and standard deviations: finite, and within the ranges of columns that have one.
    """
    own = study.basis(np.zeros(len(study.sent)), np.ones(len(study.sent)), 1.0)  # means 0, standard deviations 1
    expected = f"basis: expected the {len(own.columns)} columns that study {study.name!r} makes of {own.source}"
    remedy = "ask the coordinator for a round of this study"
    if basis.source != own.source or len(basis.shift) != len(own.shift):
        raise Mismatch(f"{expected}, got {len(basis.shift)} of {basis.source}; {remedy}")
    if basis.columns != own.columns or (basis.outcomes is None) != (own.outcomes is None):
        raise Mismatch(f"{expected}, got columns of other names, or in another order; {remedy}")
    if not (np.array_equal(basis.rows, own.rows) and np.array_equal(basis.places, own.places)):
        raise Mismatch(f"{expected}, got columns that are made of others; {remedy}")
    if own.outcomes is not None and basis.outcomes is not None:
        same = basis.outcomes.names == own.outcomes.names and np.array_equal(basis.outcomes.unit, own.outcomes.unit)
        if not same or not np.isfinite(basis.outcomes.centre).all():
            raise Mismatch(f"{expected}, got other outcomes, or other units of them; {remedy}")
    main = own.values == 1  # the value itself; the others stand in for missing ones
    scale, largest = np.zeros(len(own.shift)), np.full(len(own.shift), MOST_SCALE)
    scale[own.places[main]] = basis.values[main]
    bounded = np.isin(own.rows[main], _places(study)[1])
    largest[own.places[main][bounded]] = 1.0
    targets = np.isin(own.columns, study.targets)
    finite = np.isfinite(basis.values).all() and np.isfinite(basis.shift).all()
    slack = 1 + ROUNDING
    means = np.concatenate([np.abs(basis.values[~main]), np.abs(basis.shift)])  # each times its scale
    of = np.concatenate([own.places[~main], np.arange(len(own.shift))])
    if not (
        finite
        and ((scale == 0) | (scale * largest * slack >= 1)).all()
        and (scale <= MOST_SCALE).all()
        and (scale[targets] == 1).all()
        and (means / slack <= scale[of] * largest[of]).all()
    ):
        raise Mismatch(
            f"{expected} with means and standard deviations that columns in their ranges can have, got others; {remedy}"
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
