"""Every chart as a description, made once from results: the page draws it with JavaScript, `plots` with matplotlib."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

from fedgram.experiments.results import Column, Result, Results
from fedgram.report.palette import Look, looks
from fedgram.report.tables import headings

Kind: TypeAlias = Literal["scatter", "lines", "strip", "heat", "reliability"]
Unit: TypeAlias = Literal["percent", "bytes", "seconds", "number"]
POOLED, TRIVIAL = "with all data in one place", "by predicting each client's own most frequent class"
Drawing: TypeAlias = Literal["marks", "line", "star", "reference", "strip"]


@dataclass(frozen=True)
class Axis:
    """What is along an edge of a chart. `ticks` are places with their texts; without them a drawer chooses."""

    title: str
    unit: Unit = "number"
    scale: Literal["linear", "log"] = "linear"
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Series:
    """What is drawn in one colour.

    `method` and `columns` (one of each point, or one of all) are places in the results' lists: a page hides by them.
    `half` holds halves of the intervals around `y`. `told` says in words what is seen. A reference has no x, and a
    strip has an x for each client, None without test samples, with `facts` of each client beside it.
    """

    label: str
    look: Look
    draw: Drawing
    x: Sequence[float | None] = ()
    y: Sequence[float] = ()
    method: int | None = None
    columns: Sequence[int] = ()
    half: Sequence[float | None] = ()
    facts: Mapping[str, Sequence[int] | int] = field(default_factory=dict)
    told: str = ""


@dataclass(frozen=True)
class Heat:
    """A matrix in colours: `values` by row. Without names, rows and columns are numbered.

    `own` says that rows and columns are the same clients; the diagonal then has no part in `range`. `clients` says
    which axis has the setting's clients, in their order.
    """

    values: Sequence[Sequence[float | None]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    range: tuple[float, float] | None = None
    shade: Literal["linear", "root"] = "linear"
    own: bool = False
    clients: Literal["rows", "columns", ""] = ""


@dataclass(frozen=True)
class Panel:
    """A part of a chart with axes of its own: mostly one setting."""

    title: str
    column: int | None = None
    method: int | None = None
    series: Sequence[Series] = ()
    heat: Heat | None = None
    told: str = ""

    @property
    def words(self) -> str:
        """What is seen in this panel, in words."""
        return self.told or "; ".join(series.told for series in self.series if series.told)


@dataclass(frozen=True)
class Chart:
    """One chart; `name` is its file's. `metric` is None where it is the same for all metrics.

    `methods` are the places of those methods that a chart is about as a whole.
    """

    name: str
    kind: Kind
    title: str
    x: Axis
    y: Axis
    panels: Sequence[Panel]
    note: str = ""
    metric: str | None = None
    methods: Sequence[int] = ()


@dataclass(frozen=True)
class Index:
    """Where methods and settings stand in a report, what they look like, and the seed that stands for a setting."""

    method: Mapping[str, int]
    column: Mapping[Column, int]
    heading: Mapping[Column, str]
    look: Mapping[str, Look]
    references: Mapping[str, str]  # what is said of each: how it comes by its figures
    seed: Mapping[Column, int]

    @classmethod
    def of(cls, results: Results) -> Self:
        """Number the methods and settings of some results."""
        labels, columns = results.labels, results.columns
        references = {run.label: TRIVIAL if run.is_trivial else POOLED for run in results.runs if run.reference}
        return cls(
            {label: place for place, label in enumerate(labels)},
            {column: place for place, column in enumerate(columns)},
            headings(columns),
            looks(labels, [label for label in labels if label in references]),
            references,
            _seeds(results),
        )

    def chosen(self, results: Results) -> dict[tuple[str, Column], Result]:
        """Return the runs whose single clients are shown, in the order of settings and methods."""
        runs = [run for run in results.finished if run.seed == self.seed[run.column]]
        runs.sort(key=lambda run: (self.column[run.column], self.method[run.label]))
        return {(run.label, run.column): run for run in runs}


def _seeds(results: Results) -> dict[Column, int]:
    """Return the lowest seed of those that most methods finished, for each column."""
    finished: dict[Column, Counter[int]] = defaultdict(Counter)
    for run in results.runs:
        finished[run.column][run.seed] += run.error is None
    return {column: min(counts, key=lambda seed: (-counts[seed], seed)) for column, counts in finished.items()}
