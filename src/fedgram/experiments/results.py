"""Records of runs in `results.jsonl`: how an evaluation is written, and how results are read.

Reading computes no scores again, and a record without some optional field still loads.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedgram.core.errors import JournalError
from fedgram.core.schema import Natural, NotNegative, Plain, Share, annotations_of, read, read_fields
from fedgram.evaluation import BINS, ERROR_SUMS, Calibration, Errors, Evaluation
from fedgram.experiments import journal
from fedgram.experiments.journal import Damage, went_well
from fedgram.experiments.scenario import Column, stable_key
from fedgram.experiments.variants import MOST_FREQUENT, REFERENCES, show
from fedgram.protocol.fit import Fit

__all__ = ["METRICS", "Column", "Result", "Results", "Spread", "load_results", "read_results"]

METRICS = {
    "client_mean": "mean of the clients' accuracies",
    "pooled": "accuracy over all test samples",
    "worst_decile": "mean accuracy of the worst tenth of the clients",
    "best_round": "accuracy over all test samples in the best round, which is chosen by these samples",
}
# What reading a record of a wrong kind raises.
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)
WHICH = ("own", "pooled", "left_out")  # the three models that are judged at each party
MOST_ROWS = 200  # of a matrix that is recorded
_DIGITS = 4  # significant digits in a matrix: a client's weight for others may be a thousandth of its own


@dataclass(frozen=True)
class Matrix:
    """A matrix of a run; where `clients` are named, each has a row and a column. None stands for non-finite values."""

    values: Sequence[Sequence[float | None]]
    clients: Sequence[str] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any], where: str = "") -> Self:
        """Return the matrix in a record that `recorded_matrices` wrote."""
        found = _read(cls, record, where)
        values, clients = found["values"], found.get("clients", [])
        if not values or not values[0] or len({len(row) for row in values}) > 1:
            raise ValueError("rows of a matrix differ in length, or are empty")
        if clients and not len(clients) == len(values) == len(values[0]):
            raise ValueError(f"a matrix of {len(values)} by {len(values[0])} is not of {len(clients)} clients")
        return cls(values, clients)

    @property
    def own(self) -> list[float]:
        """The diagonal, if rows and columns are clients."""
        return _known(row[i] for i, row in enumerate(self.values)) if self.clients else []

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and highest value off the diagonal, for the colours: diagonal values would dwarf the others."""
        others = _known(
            value for i, row in enumerate(self.values) for j, value in enumerate(row) if i != j or not self.clients
        )
        return (min(others), max(others)) if others else None


@dataclass(frozen=True)
class Validation:
    """Errors at each party of three models: trained on its own samples, on all samples, and on all but its own.

    `errors` are by numeric outcome, or for classes under the name "", then by model, then by measure: a list of one
    value per party. If there is no validation, `left_out` says why.
    """

    names: Sequence[str] = ()
    samples: Sequence[Natural] = ()
    errors: Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]] = field(default_factory=dict)
    left_out: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the validation in a run's record."""
        found = cls(**_read(cls, record, "validation."))
        names, errors = found.names, found.errors
        models = [model for by_model in errors.values() for model in by_model.values()]
        lengths = {len(found.samples), *(len(values) for model in models for values in model.values())}
        if lengths - {len(names)}:
            raise ValueError(f"validation has lists that are not of its {len(names)} parties")
        for target, by_model in errors.items():
            if by_model.keys() != set(WHICH):
                raise ValueError(f"validation.errors.{target}: expected {', '.join(WHICH)}, got {', '.join(by_model)}")
            wanted = {"mse", "r2", *(() if target else ("brier",))}
            if not all(wanted <= model.keys() for model in by_model.values()):
                raise ValueError(f"validation must have {', '.join(sorted(wanted))} for each model")
            for model, measures in by_model.items():
                kinds = dict.fromkeys(wanted - {"r2"}, Sequence[NotNegative | None])
                _read(kinds, measures, f"validation.errors.{target}.{model}.")
        return found


@dataclass(frozen=True)
class Judged:
    """The evaluation in a run's record.

    `outcomes` are the numeric outcomes with their units, `errors` the errors over all test samples, and `clients` the
    errors of each client, None for a client without test samples. `probabilities` are scores over all test samples,
    `squared` and `calibration_errors` the scores of each client.
    """

    outcomes: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clients: Mapping[str, Sequence[Errors | None]] = field(default_factory=dict)
    probabilities: Mapping[str, float] = field(default_factory=dict)
    squared: Sequence[float] = ()
    calibration_errors: Sequence[float | None] = ()
    reliability: Calibration | None = None
    validation: Validation | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any], tested: Sequence[int]) -> Self:
        """Return the evaluation in a run's record; `tested` are the clients' numbers of test samples."""
        found = _read({**_JUDGED, "error_sums": Mapping[str, Mapping[str, Sequence[float]]]}, record)
        sums = found.pop("error_sums", {})
        for name, parts in sums.items():
            if parts.keys() != set(ERROR_SUMS):
                raise ValueError(f"error_sums.{name}: expected {', '.join(ERROR_SUMS)}, got {', '.join(parts)}")
            _read(dict.fromkeys({*ERROR_SUMS} - {"total"}, Sequence[NotNegative]), parts, f"error_sums.{name}.")
        lengths = {len(values) for parts in sums.values() for values in parts.values()}
        lengths |= {len(found.get(name, ())) for name in ("squared", "calibration_errors")}
        if lengths - {0, len(tested)}:
            raise ValueError(f"sums of test samples are not those of {len(tested)} clients")
        parts = _read(dict.fromkeys(("reliability", "validation"), Mapping[str, Any]), record)
        return cls(
            **found,
            clients={name: _errors(parts, tested) for name, parts in sums.items()},
            reliability=_reliability(parts["reliability"]) if "reliability" in parts else None,
            validation=Validation.of(parts["validation"]) if "validation" in parts else None,
        )


@dataclass(frozen=True)
class Result:
    """The record of a run that has ended."""

    key: str
    label: str
    method: str
    column: Column
    seed: Natural = 0
    reference: bool = False
    personal: bool | None = None  # older files do not say
    settings: Mapping[str, Plain] = field(default_factory=dict)
    revision: Natural = 1  # of the method's computation
    require: Plain = "all"
    error: str | None = None
    unprepared: bool = False  # whether it failed because its data could not be prepared
    accuracy: Mapping[str, float] = field(default_factory=dict)
    correct: Sequence[Natural] = ()
    tested: Sequence[Natural] = ()
    up: Sequence[Natural] = ()
    down: Sequence[Natural] = ()
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    total_seconds: float | None = None  # with evaluations
    timing: Mapping[str, float] = field(default_factory=dict)
    peak_memory: Natural | None = None
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    contributors: Natural | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    setting: str = ""
    fingerprint: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    judged: Judged = field(default_factory=Judged)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the result in a record; only the method's name is required, and no field may have a wrong type."""
        found, good = _read(_RUN, record), went_well(record)
        method, rounds, accuracy = found["method"], found.get("rounds", {}), found.get("accuracy", {})
        if good:
            read(Mapping[str, Share], accuracy, "accuracy", error=ValueError)
        matrices = read(Mapping[str, Mapping[str, Any]], record.get("matrices") or {}, "matrices", error=ValueError)
        found |= {
            "key": found.get("key") or stable_key(record),
            "label": found.get("label") or method,
            "column": Column.of(record),
            "reference": found.get("reference", method in REFERENCES),
            "error": None if good else found.get("error") or "failed",
            "accuracy": _with_best(accuracy, rounds),
            "rounds": _with_running_best(rounds),
            "matrices": {name: Matrix.of(value, f"matrices.{name}.") for name, value in matrices.items()},
            "judged": Judged.of(record, found.get("tested", ())),
        }
        result = cls(**found)
        if result.correct and result.tested and len(result.correct) != len(result.tested):
            raise ValueError(f"correct has {len(result.correct)} clients, tested {len(result.tested)}")
        if any(right > n for right, n in zip(result.correct, result.tested, strict=False)):
            raise ValueError("correct counts more samples than tested")
        return result

    @property
    def is_numeric(self) -> bool:
        """Whether outcomes are numbers."""
        return bool(self.judged.outcomes)

    @property
    def is_trivial(self) -> bool:
        """Whether clients always predict their own most frequent class."""
        return self.method == MOST_FREQUENT

    @property
    def by_client(self) -> list[float | None]:
        """Accuracy of each client, None for one without test samples."""
        return [right / n if n else None for right, n in zip(self.correct, self.tested, strict=False)]

    @property
    def bytes_per_client(self) -> float | None:
        """Bytes up and down per client."""
        return (sum(self.up) + sum(self.down)) / len(self.up) if self.up else None

    @property
    def cpu(self) -> float | None:
        """CPU seconds of all the clients and the server together."""
        return sum(self.cpu_seconds.values()) if self.cpu_seconds and not self.reference else None


@dataclass(frozen=True)
class Spread:
    """The samples of each client by class in one setting."""

    column: Column
    seed: int
    classes: Sequence[str]
    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    setting: str = ""
    title: str = ""
    is_numeric: bool = False  # then all samples are of one class
    reference: Result | None = None  # every client always predicts its own most frequent class

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the spread in a setting's record."""
        found = _read(_SETTING, record)
        counts = found["class_counts"]
        names = found.get("names") or [f"client-{k}" for k in range(len(counts))]
        classes = list(map(str, found.get("classes") or range(len(counts[0]))))
        if len(names) != len(counts) or any(len(row) != len(classes) for row in counts):
            raise ValueError(f"class_counts are not those of {len(names)} clients and {len(classes)} classes")
        told = {name: found.get(name, "") for name in ("setting", "title")}
        reference = (
            Result.of(most_frequent_record(record, found["most_frequent"])) if "most_frequent" in found else None
        )
        numeric = bool(found.get("outcomes"))
        column, seed = Column.of(record), found.get("seed", 0)
        return cls(column, seed, classes, names, counts, **told, is_numeric=numeric, reference=reference)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, so that what follows from it can be kept
class Results:
    """All the runs of some files, and the lines that could not be read."""

    runs: Sequence[Result]
    spreads: Sequence[Spread] = ()
    damaged: Sequence[Damage] = ()
    title: str = ""
    outdated: int = 0  # runs left out because there are others of a newer revision of their method

    @property
    def labels(self) -> list[str]:
        """The methods as tables list them: the references first, then in the order of the file."""
        references = {run.label: None for run in self.runs if run.reference}
        return list(references | {run.label: None for run in self.runs})

    @property
    def columns(self) -> list[Column]:
        """The settings without their seeds, grouped by data and clients, each in the order of the file."""
        columns = {column: astuple(column) for column in dict.fromkeys(run.column for run in self.runs)}
        orders = [list(dict.fromkeys(values)) for values in zip(*columns.values(), strict=True)]
        rank = [{value: place for place, value in enumerate(order)} for order in orders]
        names = [field.name for field in fields(Column)]
        # Clients and then partitions change fastest.
        order = sorted(range(len(rank)), key=lambda i: names[i] in ("clients", "partition"))
        return sorted(columns, key=lambda column: [rank[i][columns[column][i]] for i in order])

    @property
    def finished(self) -> list[Result]:
        """The runs that went well."""
        return [run for run in self.runs if run.error is None]

    @property
    def failed(self) -> list[Result]:
        """The runs that failed."""
        return [run for run in self.runs if run.error is not None]


def read_results(path: Path) -> Iterator[Result | Spread | Damage]:
    """Yield the results and spreads in a results file, and a `Damage` for each line that cannot be read."""
    for line in journal.read(path):
        if isinstance(line, Damage):
            yield line
            continue
        try:
            yield Result.of(line.record) if line.is_run else Spread.of(line.record)
        except _UNREADABLE as error:
            why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            yield Damage(path, line.number, f"not a record of a {'run' if line.is_run else 'setting'} ({why})")


def load_results(paths: Iterable[Path], labels: Mapping[str, str] | None = None) -> Results:
    """Return the results in some files; of a repeated run, the last success counts.

    Of each method only the newest revision in the files counts, so that means and comparisons never mix two different
    computations.
    `labels` by a run's key take precedence over those in the files. A label that stands for different methods or
    hyper-parameters is extended by what differs: no two runs with the same label and column have the same seed.
    """
    title = ""
    runs: list[Result] = []
    spreads: dict[tuple[Column, int], Spread] = {}
    damaged: list[Damage] = []
    for path in paths:
        for found in read_results(path):
            match found:
                case Result():
                    runs.append(found)
                case Spread():
                    spreads[found.column, found.seed] = found
                    title = title or found.title
                case Damage():
                    damaged.append(found)
    kinds = {run.is_numeric for run in runs if run.error is None}
    if len(kinds) > 1:
        raise JournalError(
            "some of these results are for classes and some for numeric outcomes, which no table compares: report them "
            "one by one"
        )
    if not runs:
        what = "; ".join(map(str, damaged[:3])) or "no runs in it"
        raise JournalError(f"nothing to report: {what}")
    told = {(run.column, run.seed) for run in runs}
    runs += [spread.reference for place, spread in spreads.items() if place in told and spread.reference]
    current = _newest_revisions(runs)
    once = [
        replace(run, label=(labels or {}).get(run.key, run.label)) for run in _last_good(current, lambda run: run.key)
    ]
    told_apart = _last_good(_told_apart(once), lambda run: (run.label, run.column, run.seed))
    return Results(told_apart, list(spreads.values()), damaged, title, len(runs) - len(current))


def _newest_revisions(runs: Sequence[Result]) -> list[Result]:
    newest: dict[str, int] = {}
    for run in runs:
        newest[run.method] = max(run.revision, newest.get(run.method, 0))
    return [run for run in runs if run.revision == newest[run.method]]


def _last_good(runs: Iterable[Result], identity: Callable[[Result], Hashable]) -> list[Result]:
    kept: dict[Hashable, Result] = {}
    for run in runs:
        before = kept.get(identity(run))
        if run.error is None or before is None or before.error is not None:
            kept[identity(run)] = run
    return list(kept.values())


def _told_apart(runs: Sequence[Result]) -> list[Result]:
    """Return the runs, with labels extended by the differences between variants that share a label."""
    variants: dict[str, dict[str, Result]] = defaultdict(dict)
    for run in runs:
        variants[run.label].setdefault(_variant(run), run)
    return [replace(run, label=_extended(run, list(variants[run.label].values()))) for run in runs]


def _variant(run: Result) -> str:
    return stable_key([run.method, run.settings, run.require])


def _extended(run: Result, namesakes: Sequence[Result]) -> str:
    twins = [other for other in namesakes if other.method == run.method]
    details = [run.method] if len(twins) < len(namesakes) else []
    details += [
        f"{name}={show(value)}"
        for name, value in run.settings.items()
        if any(stable_key(other.settings.get(name)) != stable_key(value) for other in twins)
    ]
    if any(other.require != run.require for other in twins):
        details.append(f"require={show(run.require)}")
    return f"{run.label} ({', '.join(details)})" if details else run.label


def _with_best(accuracy: dict[str, float], rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Add the accuracy of the best round, the end of the run included; some papers report no other."""
    if "pooled" not in accuracy:
        return accuracy
    return accuracy | {"best_round": max([accuracy["pooled"], *rounds.get("pooled", ())])}


def _with_running_best(rounds: dict[str, list[float]]) -> dict[str, list[float]]:
    return rounds | {"best_round": list(accumulate(rounds["pooled"], max))} if "pooled" in rounds else rounds


def most_frequent_record(about: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of the reference run in which each client predicts its own most frequent class.

    `found` holds the scores of that run; `about` is a record of the same setting, which identifies it.
    """
    settings = {name: about[name] for name in (*(field.name for field in fields(Column)), "seed") if name in about}
    named = {"kind": "run", "method": MOST_FREQUENT, "label": MOST_FREQUENT, "reference": True}
    return {**named, "key": stable_key({**settings, "method": MOST_FREQUENT}), **settings, **found}


def recorded_evaluation(evaluation: Evaluation, names: Sequence[str], units: Mapping[str, str]) -> dict[str, Any]:
    """Return an evaluation as fields of a record, in the order of the clients; a client that was lost has zeros."""
    outcomes = {"outcomes": dict(units)} if units else {}
    if not evaluation:
        return {"untested": len(names), **outcomes}
    judges = list(names) if set(evaluation.tested) <= set(names) else list(evaluation.tested)
    tested = [evaluation.tested.get(name, 0) for name in judges]
    known = {"tested": tested, "untested": evaluation.untested, **outcomes}
    return known | evaluation.report() | evaluation.record(judges)


def _errors(parts: Mapping[str, Sequence[float]], tested: Sequence[int]) -> list[Errors | None]:
    rows = zip(tested, *(parts[name] for name in ERROR_SUMS), strict=True)
    return [Errors(n, *sums) if n else None for n, *sums in rows]


def _reliability(sums: Mapping[str, Any]) -> Calibration:
    kinds = {"samples": Sequence[Natural], "right": Sequence[Natural], "confidence": Sequence[float], "squared": float}
    found = _read(kinds, sums, "reliability.")
    if {len(found[part]) for part in ("samples", "right", "confidence")} != {BINS}:
        raise ValueError(f"reliability must have {BINS} ranges of confidence")
    return Calibration.of_sums(found)


def _read(kinds: Mapping[str, Any] | type, record: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    return read_fields(kinds, record, where, error=ValueError, json=True)


# Fields that are read unchanged; the others are put together from several fields.
_RUN = {name: kind for name, kind in annotations_of(Result).items() if name not in ("column", "matrices", "judged")}
_JUDGED = {
    name: kind for name, kind in annotations_of(Judged).items() if name not in ("clients", "reliability", "validation")
}
_SETTING = {
    "class_counts": Sequence[Sequence[Natural]],
    "names": Sequence[str],
    "classes": Sequence[Plain],
    "outcomes": Mapping[str, str],
    "most_frequent": Mapping[str, Any],
    **dict.fromkeys(("setting", "title"), str),
    "seed": Natural,
}


def recorded_matrices(fit: Fit, names: Sequence[str]) -> dict[str, Any]:
    """Return the matrices among a fit's notes, ready for JSON; `names` are all the clients', in the engine's order.

    Notes that are not matrices of real numbers, or are too large to be looked at, are left out.
    """
    found = {name: value for name, value in fit.notes.items() if _is_matrix(value)}
    return {name: _matrix_record(value, fit, names) for name, value in found.items()}


def _is_matrix(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.ndim == 2
        and value.dtype.kind in "biuf"
        and min(value.shape) > 0
        and max(value.shape) <= MOST_ROWS
    )


def _matrix_record(matrix: np.ndarray[Any, Any], fit: Fit, names: Sequence[str]) -> dict[str, Any]:
    took_part = [name for name in names if name in fit.contributors or name not in fit.absent]
    # A client that was lost on the way may still have its row. If the size fits neither list, no client is named.
    clients = next((some for some in (took_part, names) if (len(some), len(some)) == matrix.shape), ())
    values = [[_rounded(value) for value in row] for row in matrix.tolist()]
    return {"clients": list(clients), "values": values} if clients else {"values": values}


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isfinite(value) else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
