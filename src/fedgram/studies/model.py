"""A model together with its study, which predicts from the parties' own tables."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import BadSamples, Doubtful, InvalidParameter, Mismatch, UnknownName
from fedgram.core.hashing import hash_bytes
from fedgram.data.own.bad import OnBad
from fedgram.data.own.cells import Coded, Mask
from fedgram.evaluation import Calibration, Errors
from fedgram.inference.binary_predictions import Estimate, EventScores, auroc
from fedgram.inference.numeric_predictions import bootstrap_intervals
from fedgram.models import Model, WrappedModel, finite, probabilities
from fedgram.moments.moments import described
from fedgram.pipeline import Pipeline
from fedgram.studies.encoding import Rows, gather, open_for
from fedgram.studies.study import Study

ROWS = 1 << 12  # that are predicted at a time
READ = "predict with `read`, which gives the reason for each bad row"


@dataclass(frozen=True)
class Predicted:
    """The predictions for some rows of a table, one element for each row.

    `found` are labels, or numbers (n, t) where the outcome has no classes. `probabilities` (n, c) are of the classes.
    `reasons` describe bad rows, for which the others are meaningless. `keys`, `known` and `values` are from the table
    itself: the rows' keys, labels and numeric outcomes (n, t), NaN if unknown.
    """

    found: npt.NDArray[Any]
    probabilities: Array | None
    reasons: list[str]
    keys: Coded | None
    known: Coded | None
    values: Array | None = None


@wire.message("study-model", version=1)
@dataclass(frozen=True, eq=False)
class StudyModel(WrappedModel):
    """A model of the columns that a study sends, as a model of tables: files, or those of pandas, polars and Arrow.

    Columns are found by name, in any order. A missing or unknown one is refused, and so are rows that break a rule of
    the study. `Study.model` makes one, and so does `Fit.predictor`.

    Parameters
    ----------
    study : Study
        The study.
    model : Model
        The model of the columns that the study sends.
    kept : str or None
        "own" or "global" in a party's file, by the choice of `personalize`; None elsewhere.
    seen : str or None
        The digest of the party's rows, if the model was made from them; `judge` recognises the rows by it.

    """

    study: Study
    model: Model
    kept: Annotated[str | None, wire.Later()] = None
    seen: Annotated[str | None, wire.Later()] = None

    def __post_init__(self) -> None:
        """Raise for a model that was not made from the columns of the study."""
        if self.model.features != self.study.features:
            raise Mismatch(
                f"this model was made from {described(self.model.features)}, not from "
                f"{described(self.study.features)}: give the study that it was made under"
            )
        if self.model.columns != self.study.sent[: len(self.model.columns)]:
            raise Mismatch(f"this model has other columns than study {self.study.name!r} sends")
        if tuple(self.model.classes) != self.study.schema.classes:
            found, wanted = (", ".join(map(repr, each[:8])) for each in (self.model.classes, self.study.schema.classes))
            raise Mismatch(
                f"this model has the classes {found}, and study {self.study.name!r} has {wanted}: give the study that "
                "it was made under"
            )
        wanted_names = self.study.numeric_outcomes
        found_targets = self.model.targets if isinstance(self.model, Pipeline) else None
        if wanted_names and (found_targets is None or found_targets.names != wanted_names):
            raise Mismatch(
                f"this model does not predict the outcomes of study {self.study.name!r}, "
                f"{', '.join(wanted_names)}: give the study that it was made under"
            )

    def check(self) -> None:
        """Raise for a choice that `personalize` does not have."""
        if self.kept not in (None, "own", "global"):
            raise Mismatch(f"field 'kept' must be 'own' or 'global', got {self.kept[:40]!r}")

    @property
    def columns(self) -> Columns:
        """The columns of a table that are used."""
        return tuple(name for name in self.study.needed if name not in self.study.outcomes)

    def unwrap(self, x: Any) -> Array:
        """Return the columns that the study sends, from a table."""
        table = replace(open_for(self.study, x, labelled=False), remedy=f"Mend or remove them, or {READ}")
        encoded, *_ = gather(table, "refuse")
        if table.left_out.dropped:  # each prediction is for the row in the same place
            raise BadSamples(
                f"{table.table.title}: expected a value in each column that study {self.study.name!r} needs, got "
                f"{table.left_out}; remove these rows, or {READ}"
            ).telling("rows lack values that the study needs")
        return encoded

    def read(self, source: Any, *, key: str | None = None) -> Iterator[Predicted]:
        """Yield the predictions for a table of any size, block by block; a bad row keeps its place.

        `key` is a column with the rows' ids; it need not be in the study.
        """
        if key is not None and getattr(self.study.columns.get(key), "numeric", False):
            raise Mismatch(
                f"column {key!r} is a number that the study uses, and cannot be the id of rows; name another column"
            )
        for rows in open_for(self.study, source, labelled=False, key=key).rows():
            good = rows.good
            # A block of a narrow table has very many rows, and the predictions for a row take more memory than the row.
            for start in range(0, len(good), ROWS):
                yield self._predicted(rows, good, slice(start, start + ROWS))

    def _predicted(self, rows: Rows, good: Mask, part: slice) -> Predicted:
        fine = good[part]
        numeric = not self.study.classes
        scores = np.zeros((len(fine), len(self.study.outcomes if numeric else self.classes)))
        wrong = np.flatnonzero(~fine).tolist()
        scores[fine] = finite(self.model.scores(rows.x[part][fine] if wrong else rows.x[part]))
        reasons = [""] * len(fine)
        for row in wrong:
            reasons[row] = rows.reasons(part.start + row)
        keys, known = (None if texts is None else texts.rows(part) for texts in (rows.keys, rows.labels))
        if numeric:
            return Predicted(scores, None, reasons, keys, known, None if rows.values is None else rows.values[part])
        labels = np.asarray(self.classes)[scores.argmax(axis=1)]
        return Predicted(labels, probabilities(self.model, scores), reasons, keys, known)


@dataclass(frozen=True)
class Judged:
    """The scores of a model on `samples` rows, with intervals of a confidence `level`.

    With classes: the `accuracy`, that of always naming the table's most frequent class (`usual`), the Brier score, the
    expected calibration error, and for each class how many rows it has and how many of them are right. `auroc` is the
    area under the ROC curve of each class against the rest, of two classes that of the event alone; `macro` is its
    mean. `event` is the class whose probability is judged as `event_scores`: given, or the last of two.

    With numeric outcomes: the `errors` in each, its unit, and bootstrap `intervals` of RMSE, MAE and R² from
    `resamples`.
    """

    samples: int
    level: float
    accuracy: float | None = None
    usual: float | None = None
    brier: float | None = None
    calibration: float | None = None
    classes: dict[str, tuple[int, int]] | None = None
    auroc: Mapping[str, Estimate] | None = None
    macro: float | None = None
    event: str | None = None
    event_scores: EventScores | None = None
    errors: Mapping[str, Errors] | None = None
    units: Mapping[str, str] | None = None
    intervals: Mapping[str, Mapping[str, tuple[float, float] | None]] | None = None
    resamples: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the scores as plain values for JSON, without those that do not apply."""
        apart = ("errors", "units", "intervals", "event", "event_scores", "auroc")
        found = {name: value for name, value in vars(self).items() if value is not None and name not in apart}
        if self.classes is not None:
            found["classes"] = {name: {"samples": n, "right": right} for name, (n, right) in self.classes.items()}
        if self.auroc is not None:
            found["auroc"] = {name: asdict(estimate) for name, estimate in self.auroc.items()}
        if self.event_scores is not None:
            found["event"] = {"class": self.event, **asdict(self.event_scores)}
        if self.errors is not None:
            assert self.units is not None
            assert self.intervals is not None
            found["errors"] = {
                name: errors.plain() | {"unit": self.units[name], "intervals": dict(self.intervals[name])}
                for name, errors in self.errors.items()
            }
        return found


class RowsDigest:
    """A digest of rows that does not depend on their order: the sum of their hashes, which single rows do not show."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, x: Array, labels: Iterable[Any]) -> None:
        """Add encoded rows (n, columns) with their labels."""
        for row, label in zip(np.ascontiguousarray(x, dtype="<f8"), labels, strict=True):
            self._sum += int(hash_bytes([row.tobytes(), str(label).encode()]), 16)

    @property
    def text(self) -> str:
        """The digest in hexadecimal."""
        return f"{self._sum % (1 << 256):064x}"


def judge(
    model: StudyModel,
    table: Any,
    *,
    on_bad: OnBad = "refuse",
    event: str | None = None,
    threshold: float | None = None,
    level: float = 0.95,
) -> Judged:
    """Return the scores of the model on a table with the outcome, of which one block is in memory at a time.

    Of each row a number is kept for each class whose ROC curve is drawn, or two for each numeric outcome. A table
    without a usable row is refused. There is a warning if the model is known to have been made of these rows.

    Parameters
    ----------
    model : StudyModel
        The model.
    table : Any
        A file, or a table in memory, with the outcome.
    on_bad : "refuse" or "skip"
        Whether a row that breaks a rule of the study raises or is left out.
    event : str or None
        The class whose probability is judged as that of an event. By default the last of two; of more classes none.
    threshold : float or None
        The probability from which on the event is predicted, between 0 and 1; by default 0.5.
    level : float
        The confidence level of intervals, between 0 and 1.

    """
    _check_options(model, event, threshold, level)
    digest = RowsDigest()
    rows = _few_at_once(open_for(model.study, table).good_rows(on_bad))
    if model.seen is not None:
        rows = _digested(rows, digest)
    if model.study.classes:
        chosen = str(model.classes[-1]) if event is None and len(model.classes) == 2 else event
        judged = _judge_classes(model, rows, chosen, 0.5 if threshold is None else threshold, level)
    else:
        judged = _judge_numbers(model, rows, level)
    if digest.text == model.seen:
        warnings.warn(
            "these are the rows that the model was made of, so the figures look better than they are: judge it by rows "
            "that were held back",
            Doubtful,
            stacklevel=2,
        )
    return judged


def _check_options(model: StudyModel, event: str | None, threshold: float | None, level: float) -> None:
    """Raise for an event, a threshold or a level that makes no sense for this model."""
    for name, value in (("level", level), ("threshold", threshold)):
        if value is not None and not 0 < value < 1:
            raise InvalidParameter(f"{name}: expected a number between 0 and 1, got {value:g}; {name} 0.9, for example")
    for name, given in (("event", event), ("threshold", threshold)):
        if given is not None and not model.study.classes:
            raise InvalidParameter(
                f"{name}: expected none for a numeric outcome, which has no classes, got {given}; leave it out"
            )
    if event is not None and event not in (known := list(map(str, model.classes))):
        raise UnknownName("class", event, known)
    if threshold is not None and event is None and len(model.classes) > 2:
        raise InvalidParameter(
            f"threshold: expected an event beside it, because there are {len(model.classes)} classes, got "
            f"{threshold:g} alone; name the class that counts as the event"
        )


def _digested(rows: Iterable[tuple[Array, Coded | None]], digest: RowsDigest) -> Iterator[tuple[Array, Coded | None]]:
    for x, labels in rows:
        digest.add(x, [""] * len(x) if labels is None else labels.tolist())
        yield x, labels


def _few_at_once(rows: Iterable[Rows]) -> Iterator[tuple[Array, Coded | None]]:
    """Yield rows with their labels, a few at a time: the scores of a row may take more memory than the row."""
    for some in rows:
        for start in range(0, len(some.x), ROWS):
            part = slice(start, start + ROWS)
            yield some.x[part], None if some.labels is None else some.labels.rows(part)


def _judge_classes(
    model: StudyModel, rows: Iterable[tuple[Array, Coded | None]], event: str | None, threshold: float, level: float
) -> Judged:
    place = {label: index for index, label in enumerate(model.classes)}
    names = list(map(str, place))
    counts, hits = np.zeros((2, len(place)), dtype=np.int64)
    known: Calibration | None = None
    columns = list(range(len(place))) if len(place) != 2 or event is None else [names.index(event)]
    kept, truths = list[Array](), list[npt.NDArray[np.int64]]()
    for x, named in rows:
        assert named is not None
        # A value that only bad rows have, or an unused level of a category, need not be a class.
        labels, scores = named.map(lambda label: place.get(label, -1), np.int64), finite(model.model.scores(x))
        assert (labels >= 0).all()
        counts += np.bincount(labels, minlength=len(place))
        hits += np.bincount(labels[scores.argmax(axis=1) == labels], minlength=len(place))
        found = Calibration.of_scores(model.model, scores, labels)
        known = found if known is None else known + found
        kept.append(probabilities(model.model, scores)[:, columns])
        truths.append(labels)
    assert known is not None
    chances, truth = np.concatenate(kept), np.concatenate(truths)
    areas = {names[k]: auroc(chances[:, at], truth == k, level) for at, k in enumerate(columns)}
    defined = [area.value for area in areas.values() if area.value is not None]
    scored = None
    if event is not None:
        k = names.index(event)
        scored = EventScores.of(chances[:, columns.index(k)], truth == k, threshold=threshold, level=level)
    return Judged(
        samples=known.n,
        level=level,
        accuracy=known.correct / known.n,
        usual=int(counts.max()) / known.n,
        brier=known.brier,
        calibration=known.error,
        classes=dict(zip(names, zip(counts.tolist(), hits.tolist(), strict=True), strict=True)),
        auroc=areas,
        macro=sum(defined) / len(defined) if len(place) > 2 and defined else None,
        event=event,
        event_scores=scored,
    )


def _judge_numbers(model: StudyModel, rows: Iterable[tuple[Array, Coded | None]], level: float) -> Judged:
    """Return the scores for numeric outcomes, which are the last columns, in units of their ranges."""
    outcomes, study = model.study.targets, model.study
    t = len(outcomes.names)
    parts = [(finite(model.model.scores(x[:, :-t])), outcomes.as_outcomes(x[:, -t:])) for x, _ in rows]
    predicted, values = (np.concatenate(some) for some in zip(*parts, strict=True))
    found, resamples = bootstrap_intervals(predicted - values, values, level=level)
    return Judged(
        samples=len(values),
        level=level,
        errors={name: Errors.of(predicted[:, k], values[:, k]) for k, name in enumerate(outcomes.names)},
        units={name: getattr(study.columns[name], "unit", "") for name in outcomes.names},
        intervals=dict(zip(outcomes.names, found, strict=True)),
        resamples=resamples,
    )
