"""Results as they were written down. Nothing is computed again, and an older file without some field still loads."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from fedgram.core.errors import JournalError
from fedgram.experiments import journal
from fedgram.experiments.fields import count, each, flag, maybe, number, setting, share, table, text
from fedgram.experiments.journal import Damage, went_well
from fedgram.experiments.judged import Judged
from fedgram.experiments.keys import stable_key
from fedgram.experiments.matrices import Matrix
from fedgram.experiments.scenario import Column
from fedgram.experiments.variants import MOST_FREQUENT, REFERENCES, show

__all__ = ["METRICS", "Column", "Result", "Results", "Spread", "load_results", "read_results"]

METRICS = {
    "client_mean": "mean of the clients' accuracies",
    "pooled": "accuracy over all test samples",
    "worst_decile": "mean accuracy of the worst tenth of the clients",
    "best_round": "accuracy over all test samples in the best round, which is chosen by these samples",
}
# What reading a record of a wrong kind raises.
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True)
class Result:
    """One run that has ended, with what was written down of it."""

    key: str
    label: str
    method: str
    column: Column
    seed: int = 0
    reference: bool = False
    personal: bool | None = None  # older files do not say
    settings: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 1  # of the method's computation
    require: Any = "all"
    error: str | None = None
    unprepared: bool = False  # whether it failed because its data could not be prepared
    accuracy: Mapping[str, float] = field(default_factory=dict)
    correct: Sequence[int] = ()
    tested: Sequence[int] = ()
    up: Sequence[int] = ()
    down: Sequence[int] = ()
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    timing: Mapping[str, float] = field(default_factory=dict)
    peak_memory: int | None = None
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    contributors: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    setting: str = ""
    fingerprint: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    judged: Judged = field(default_factory=Judged)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read a record; only the method's name must be there, and nothing may be of a wrong kind."""
        method, good = text("method", record["method"]), went_well(record)
        reference = maybe(flag, record, "reference")
        accuracy = table(share if good else number, record, "accuracy")
        rounds = table(each(number), record, "rounds")
        tested = maybe(each(count), record, "tested") or []
        result = cls(
            key=maybe(text, record, "key") or stable_key(record),
            label=maybe(text, record, "label") or method,
            method=method,
            column=Column.of(record),
            seed=maybe(count, record, "seed") or 0,
            reference=method in REFERENCES if reference is None else reference,
            personal=maybe(flag, record, "personal"),
            settings=_settings(record.get("settings")),
            revision=maybe(count, record, "revision") or 1,
            require=setting("require", record.get("require", "all")),
            error=None if good else maybe(text, record, "error") or "failed",
            unprepared=bool(maybe(flag, record, "unprepared")),
            accuracy=_with_best(accuracy, rounds),
            correct=maybe(each(count), record, "correct") or (),
            tested=tested,
            up=maybe(each(count), record, "up") or (),
            down=maybe(each(count), record, "down") or (),
            cpu_seconds=table(number, record, "cpu_seconds"),
            seconds=maybe(number, record, "seconds"),
            timing=table(number, record, "timing"),
            peak_memory=maybe(count, record, "peak_memory"),
            rounds=_with_running_best(rounds),
            contributors=maybe(count, record, "contributors"),
            absent=table(text, record, "absent"),
            matrices=table(_matrix, record, "matrices"),
            setting=maybe(text, record, "setting") or "",
            fingerprint=maybe(text, record, "fingerprint") or "",
            versions=table(text, record, "versions"),
            judged=Judged.of(record, tested),
        )
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
        """Bytes up and down, a client."""
        return (sum(self.up) + sum(self.down)) / len(self.up) if self.up else None

    @property
    def cpu(self) -> float | None:
        """CPU seconds of all the clients and the server together."""
        return sum(self.cpu_seconds.values()) if self.cpu_seconds and not self.reference else None


@dataclass(frozen=True)
class Spread:
    """Who has which samples in one setting."""

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
        """Read a record."""
        counts = each(each(count))("class_counts", record["class_counts"])
        names = maybe(each(text), record, "names") or [f"client-{k}" for k in range(len(counts))]
        classes = [str(setting("classes", c)) for c in record.get("classes") or range(len(counts[0]))]
        if len(names) != len(counts) or any(len(row) != len(classes) for row in counts):
            raise ValueError(f"class_counts are not those of {len(names)} clients and {len(classes)} classes")
        key, title = (maybe(text, record, name) or "" for name in ("setting", "title"))
        seed, numeric = maybe(count, record, "seed") or 0, bool(table(text, record, "outcomes"))
        reference = maybe(_reference(record), record, "most_frequent")
        return cls(Column.of(record), seed, classes, names, counts, key, title, numeric, reference)


@dataclass(frozen=True)
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
        """The runs that did not."""
        return [run for run in self.runs if run.error is not None]


def read_results(path: Path) -> Iterator[Result | Spread | Damage]:
    """Yield what stands in the lines of a results file, and which of them cannot be read."""
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
    """Read results files; of a run that was repeated, the last one counts that went well.

    Of each method only the newest revision in the files counts: a mean over seeds, or a comparison of columns, of
    two different computations would be of neither.
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
    """Extend each label that stands for several variants by whatever differs between them."""
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


def _settings(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ValueError("settings must be a table")
    return {name: setting(f"settings.{name}", item) for name, item in (value or {}).items()}


def most_frequent_record(about: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a reference run: `found` is what clients have that predict their most frequent class.

    `about` is a record of the same setting, and says which that is.
    """
    settings = {name: about[name] for name in (*(field.name for field in fields(Column)), "seed") if name in about}
    named = {"kind": "run", "method": MOST_FREQUENT, "label": MOST_FREQUENT, "reference": True}
    return {**named, "key": stable_key({**settings, "method": MOST_FREQUENT}), **settings, **found}


def _reference(about: Mapping[str, Any]) -> Callable[[str, Any], Result]:
    def read(name: str, found: Any) -> Result:
        if not isinstance(found, dict):
            raise ValueError(f"{name} must be a table")
        return Result.of(most_frequent_record(about, found))

    return read


def _matrix(name: str, value: Any) -> Matrix:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table")
    return Matrix.of(value)
