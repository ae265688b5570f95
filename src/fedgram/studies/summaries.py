"""What a party sends under a study: the moments of its table, of any size, read once and block by block."""

from typing import Any

import numpy as np

from fedgram.core.labels import Label
from fedgram.core.threads import beside_reading
from fedgram.data.own.bad import OnBad
from fedgram.moments.accumulate import Accumulator
from fedgram.moments.moments import Moments
from fedgram.studies.encoding import open_for
from fedgram.studies.kinds import unknown
from fedgram.studies.study import Study


def summarize(study: Study, party: str, source: Any, *, on_bad: OnBad = "refuse") -> Moments:
    """Return the moments of a party's table (a file, or one in memory), as a fit would ask the party for.

    Rows that break a rule are refused by line, or left out; a party below the study's thresholds is refused. Only a
    block of the table is in memory at a time.
    """
    kind = study.kind
    place = {label: index for index, label in enumerate(kind.classes)}
    total, counts = Accumulator(kind.dimension, len(place)), np.zeros(len(place), dtype=np.int64)
    with beside_reading(kind.dimension):
        for rows in open_for(study, source).good_rows(on_bad):
            labels = np.zeros(len(rows.x), dtype=np.int64)
            if rows.labels is not None:  # texts of rows that were left out have no place, and no rows any more
                labels = rows.labels.map(lambda text: place.get(text, -1), np.int64)
            total.add_columns(rows.x, labels)
            counts += np.bincount(labels, minlength=len(place))
    study.admit_counts(party, counts, int(counts.sum()))
    return Moments(kind, sums=total.sums[counts > 0], counts=counts, packed=total.packed)


def missing_counts(study: Study, moments: Moments) -> dict[str, dict[Label, int]]:
    """Return in how many samples of each class a column is missing, for columns that may be; moments say it exactly.

    Where the outcome is a number, all samples are of one class.
    """
    places = {name: index for index, name in enumerate(study.sent)}
    return {
        name: dict(zip(moments.classes, map(int, moments.cross[places[unknown(name)]]), strict=True))
        for name in study.used
        if unknown(name) in places
    }
