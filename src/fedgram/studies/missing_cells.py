"""Missing cells of a study's columns: their counts from the moments that are sent, and what a table says of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from fedgram.inference.table import Gap
from fedgram.moments.moments import Moments
from fedgram.studies.kinds import unknown
from fedgram.studies.study import Study

TREATMENTS: Mapping[str, Literal["imputed", "flagged", "category"]] = {
    "mean": "imputed",
    "flag": "flagged",
    "category": "category",
}
MEANS = ("imputed", "flagged")  # treatments that put the pooled mean in the place of a missing value
SHOWN = 5  # names in a note or an error


def gaps_of(
    study: Study, columns: Iterable[str], site: str, sent: Moments, dropped: Mapping[str, int] | None = None
) -> list[Gap]:
    """Return the missing cells of columns in some moments, and the rows that were left out.

    Parameters
    ----------
    study : Study
        The study.
    columns : Iterable[str]
        The study's columns in the model.
    site : str
        The name of the site; "" for all together.
    sent : Moments
        Its moments, as they are sent.
    dropped : Mapping or None
        Its rows that were left out, by the column that they lack.

    """
    sums = dict(zip(study.sent, sent.cross.sum(axis=1).tolist(), strict=True))
    found = []
    for name in columns:
        treatment = TREATMENTS.get(getattr(study.used[name], "missing", ""))
        count = round(sums.get(unknown(name), 0.0))
        if treatment is not None and count:
            found.append(Gap(name, site, count, treatment))
    return found + [Gap(name, site, count, "dropped") for name, count in (dropped or {}).items()]


def with_means(study: Study, columns: Iterable[str]) -> list[str]:
    """Return those of some columns in which the pooled mean stands in for missing values."""
    return [name for name in columns if TREATMENTS.get(getattr(study.used[name], "missing", "")) in MEANS]


def notes_on_missing(study: Study, imputed: Sequence[str]) -> list[str]:
    """Return notes on missing values.

    Parameters
    ----------
    study : Study
        The study.
    imputed : Sequence[str]
        The columns of the model in which means stand in for missing values, as the note lists them.

    """
    notes = []
    if imputed:
        more = f" and {len(imputed) - SHOWN} more columns" if len(imputed) > SHOWN else ""
        notes.append(
            f"The pooled mean stands in for missing values: {', '.join(imputed[:SHOWN])}{more}. Standard errors take "
            "these for known, so they are too small, and coefficients of correlated columns are biased; missing = "
            "'drop' in the study leaves such rows out instead."
        )
    if study.dropping:
        notes.append(
            f"Rows without {', '.join(study.dropping[:SHOWN])} were left out at the parties: the table is of complete "
            "cases. Parties do not tell counts below minimum_group, nor do regions."
        )
    return notes
