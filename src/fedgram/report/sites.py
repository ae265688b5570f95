"""Each party predicted by a model that has not seen it, beside those that have: who does not fit the others is seen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import median

from fedgram.experiments.judged import WHICH, Validation
from fedgram.experiments.results import Column, Results
from fedgram.report.tables import NOTHING, Entry, Table, headings

FAR = 2.0  # times the usual error of a party that is left out
STRANGE = "does not fit the others"
NOTE = (
    "Least squares with an intercept, from the moments that parties send anyway. The model without a party has not "
    "seen its samples; the other two have, so their errors are too small. R² is that of the model without the party: "
    "below 0, the party's own mean predicts better."
)


def site_tables(validation: Validation | None, units: Mapping[str, str]) -> list[Table]:
    """Return a table for each numeric outcome, or one for the classes; none where parties were not left out."""
    if validation is None:
        return []
    return [_table(validation, target, units.get(target, "")) for target in validation.errors]


def tables_by_column(results: Results) -> dict[Column, list[Table]]:
    """Return the tables of each setting, by the first run that has them: methods send the same moments."""
    found: dict[Column, list[Table]] = {}
    names = headings(results.columns)
    for run in results.finished:
        if run.column not in found and (tables := site_tables(run.judged.validation, run.judged.outcomes)):
            found[run.column] = [replace(one, caption=f"{names[run.column]}: {one.caption}") for one in tables]
    return found


def _table(validation: Validation, target: str, unit: str) -> Table:
    errors = validation.errors[target]
    lists = {which: _shown(errors[which], target) for which in WHICH}
    r2 = errors["left_out"].get("r2", [None] * len(validation.names))
    strange = _strange(errors["left_out"].get("mse", ()), r2)
    rows = [
        [
            Entry(name),
            Entry(f"{n:,}"),
            *(Entry(_text(lists[which][place])) for which in WHICH),
            Entry(_text(r2[place])),
            Entry(STRANGE if strange[place] else ""),
        ]
        for place, (name, n) in enumerate(zip(validation.names, validation.samples, strict=True))
    ]
    what = f"RMSE of {target}" + (f" in {unit}" if unit else "") if target else "Brier score"
    caption = f"{what} at each party, by the model of its own samples, of all, and of all the others."
    heads = ["samples", "its own", "all", "without it", "R² without it", ""]
    return Table(caption, [("", 1), ("model of", 3), ("", 2)], heads, rows)


def _shown(measures: Mapping[str, Sequence[float | None]], target: str) -> Sequence[float | None]:
    if not target:
        return measures["brier"]
    return [None if value is None else sqrt(value) for value in measures["mse"]]


def _strange(errors: Sequence[float | None], r2: Sequence[float | None]) -> list[bool]:
    """Say of each party whether the others predict it badly: worse than its mean, or far worse than other parties."""
    known = [value for value in errors if value is not None]
    usual = median(known) if known else 0.0
    return [
        (share is not None and share < 0) or (len(known) > 2 and value is not None and value > FAR * usual)
        for value, share in zip(errors, r2, strict=True)
    ]


def _text(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"
