"""Results as they were written down. Nothing is computed again, and an older file without some field still loads."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedgram.experiments import journal
from fedgram.experiments.grid import stable_key
from fedgram.experiments.journal import Damage, JournalError, went_well
from fedgram.experiments.matrices import Matrix
from fedgram.experiments.variants import CENTRALISED, show

METRICS = {
    "client_mean": "mean of the clients' accuracies",
    "pooled": "accuracy over all test samples",
    "worst_decile": "mean accuracy of the worst tenth of the clients",
}


class Column(NamedTuple):
    """What a table compares methods on: a setting without its seed."""

    data: str
    backbone: str | None
    clients: int | None
    partition: str
    test: str
    test_fraction: float | None
    samples: int | None = None
    label_column: str | None = None
    client_column: str | None = None
    shift: str | None = None

    @property
    def spread(self) -> str:
        """The partition as a reader wants it."""
        kind, _, value = self.partition.partition(":")
        match kind:
            case "dirichlet":
                return f"α = {value}"
            case "shards":
                return f"{value} shards"
            case "pathological":
                classes, _, shares = value.partition(":")
                return f"{classes} classes" + (f", {shares}" if shares else "")
            case "iid":
                return "IID"
        return self.partition.replace("_", " ")

    @property
    def crowd(self) -> str:
        """The number of clients in words."""
        return "" if self.clients is None else f"{self.clients:,} client" + "s" * (self.clients != 1)


@dataclass(frozen=True)
class Result:
    """One run that has ended, with what was written down of it."""

    key: str
    label: str
    method: str
    column: Column
    seed: int = 0
    reference: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    require: Any = "all"
    error: str | None = None
    accuracy: Mapping[str, float] = field(default_factory=dict)
    correct: Sequence[int] = ()
    tested: Sequence[int] = ()
    up: Sequence[int] = ()
    down: Sequence[int] = ()
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    peak_memory: int | None = None
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    contributors: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    fingerprint: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read a record; only the method's name must be there."""
        method = str(record["method"])
        return cls(
            key=str(record.get("key") or stable_key(record)),
            label=str(record.get("label") or method),
            method=method,
            column=_column(record),
            seed=int(record.get("seed", 0)),
            reference=bool(record.get("reference", method == CENTRALISED)),
            settings=_mapping(record, "settings"),
            require=record.get("require", "all"),
            error=str(record.get("error") or "failed") if not went_well(record) else None,
            accuracy={name: float(value) for name, value in _mapping(record, "accuracy").items() if value is not None},
            correct=_whole_numbers(record, "correct"),
            tested=_whole_numbers(record, "tested"),
            up=_whole_numbers(record, "up"),
            down=_whole_numbers(record, "down"),
            cpu_seconds={who: float(value) for who, value in _mapping(record, "cpu_seconds").items()},
            seconds=_optional(float, record.get("seconds")),
            peak_memory=_optional(int, record.get("peak_memory")),
            rounds={name: [float(v) for v in values] for name, values in _mapping(record, "rounds").items()},
            contributors=_optional(int, record.get("contributors")),
            absent={name: str(why) for name, why in _mapping(record, "absent").items()},
            matrices={name: Matrix.of(value) for name, value in _mapping(record, "matrices").items()},
            fingerprint=str(record.get("fingerprint", "")),
            versions={name: str(value) for name, value in _mapping(record, "versions").items()},
        )

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

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read a record."""
        counts = [[int(n) for n in row] for row in record["class_counts"]]
        names = record.get("names") or [f"client-{k}" for k in range(len(counts))]
        classes = record.get("classes") or range(len(counts[0]))
        return cls(
            _column(record), int(record.get("seed", 0)), [str(c) for c in classes], list(map(str, names)), counts
        )


@dataclass(frozen=True)
class Results:
    """All the runs of some files, and the lines that could not be read."""

    runs: Sequence[Result]
    spreads: Sequence[Spread] = ()
    damaged: Sequence[Damage] = ()
    title: str = ""

    @property
    def labels(self) -> list[str]:
        """The methods as tables list them: the reference first, then in the order of the file."""
        references = {run.label: None for run in self.runs if run.reference}
        return list(references | {run.label: None for run in self.runs})

    @property
    def columns(self) -> list[Column]:
        """The settings without their seeds, grouped by data and clients, each in the order of the file."""
        columns = list(dict.fromkeys(run.column for run in self.runs))
        orders = [list(dict.fromkeys(values)) for values in zip(*columns, strict=True)]
        rank = [{value: place for place, value in enumerate(order)} for order in orders]
        # Clients and then partitions change fastest.
        order = sorted(range(len(rank)), key=lambda i: Column._fields[i] in ("clients", "partition"))
        return sorted(columns, key=lambda column: [rank[i][column[i]] for i in order])

    @property
    def finished(self) -> list[Result]:
        """The runs that went well."""
        return [run for run in self.runs if run.error is None]

    @property
    def failed(self) -> list[Result]:
        """The runs that did not."""
        return [run for run in self.runs if run.error is not None]


def load_results(paths: Iterable[Path], labels: Mapping[str, str] | None = None) -> Results:
    """Read results files; of a run that was repeated, the last one counts that went well.

    `labels` by a run's key take precedence over those in the files. A label that stands for different methods or
    hyper-parameters is extended by what differs: no two runs with the same label and column have the same seed.
    """
    title = ""
    runs: list[Result] = []
    spreads: dict[tuple[Column, int], Spread] = {}
    damaged: list[Damage] = []
    for path in paths:
        for line in journal.read(path):
            if isinstance(line, Damage):
                damaged.append(line)
                continue
            try:
                if line.is_run:
                    runs.append(Result.of(line.record))
                else:
                    spread = Spread.of(line.record)
                    spreads[spread.column, spread.seed] = spread
                    title = title or str(line.record.get("title") or "")
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                damaged.append(Damage(path, line.number, f"not a record of a run ({type(error).__name__}: {error})"))
    if not runs:
        what = "; ".join(map(str, damaged[:3])) or "no runs in it"
        raise JournalError(f"nothing to report: {what}")
    once = [replace(run, label=(labels or {}).get(run.key, run.label)) for run in _last_good(runs, lambda run: run.key)]
    told_apart = _last_good(_told_apart(once), lambda run: (run.label, run.column, run.seed))
    return Results(told_apart, list(spreads.values()), damaged, title)


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


def _column(record: Mapping[str, Any]) -> Column:
    return Column(
        str(record.get("data", "")),
        _optional(str, record.get("backbone")),
        _optional(int, record.get("clients")),
        str(record.get("partition", "")),
        str(record.get("test", "local")),
        _optional(float, record.get("test_fraction")),
        _optional(int, record.get("samples")),
        _optional(str, record.get("label_column")),
        _optional(str, record.get("client_column")),
        _optional(str, record.get("shift")),
    )


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name) or {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is not a table")
    return value


def _whole_numbers(record: Mapping[str, Any], name: str) -> list[int]:
    return [int(value) for value in record.get(name) or ()]


def _optional(kind: Any, value: Any) -> Any:
    return None if value is None else kind(value)
