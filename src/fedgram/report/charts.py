"""Descriptions of charts, and the look of each method in them.

A chart is described once, from results; the page draws it with JavaScript, `plots` with matplotlib. Every method has
the same look in every chart: a colour that colour-blind readers can tell apart, and a shape.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import sqrt
from statistics import fmean, quantiles
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from fedgram.core.filesystem import slug
from fedgram.core.terminal import human_size
from fedgram.experiments.results import METRICS, Column, Matrix, Result, Results, Spread
from fedgram.experiments.variants import show
from fedgram.report.metrics import Metric, metric_in, metric_of, metrics_of, round_count
from fedgram.report.result_tables import Cell, capitalised, cells, headings, seconds

ChartKind: TypeAlias = Literal["scatter", "lines", "strip", "heat", "reliability"]
Unit: TypeAlias = Literal["percent", "bytes", "seconds", "number"]
POOLED, TRIVIAL = "with all data in one place", "by predicting each client's own most frequent class"
Drawing: TypeAlias = Literal["marks", "line", "star", "reference", "strip"]
# After Okabe and Ito, without the yellow that vanishes on white; the second of each pair is for a dark page.
COLOURS = (
    ("#0072b2", "#4ba6e0"),
    ("#d55e00", "#f2803d"),
    ("#009e73", "#2fc79b"),
    ("#b8508c", "#e08fbd"),
    ("#c98500", "#f0b443"),
    ("#2f9bd3", "#8accf0"),
    ("#6a4c9c", "#ab8fe0"),
    ("#8a6642", "#c9a27a"),
)
REFERENCE = ("#6b7280", "#9aa3b2")
# Names of matplotlib's markers; the page draws the same shapes.
SHAPES = ("o", "s", "^", "D", "v", "P", "X")


class Look(NamedTuple):
    """The colours and the shape of a method."""

    colour: str
    dark: str
    shape: str


def looks(labels: Sequence[str], references: Sequence[str] = ()) -> dict[str, Look]:
    """Return each method's look; the first methods get the clearest colours, and no two looks are equal.

    >>> looks(["centralised", "afl"], ["centralised"])["afl"].colour
    '#0072b2'
    """
    chosen = {label: Look(*REFERENCE, "o") for label in references}
    for place, label in enumerate(label for label in labels if label not in references):
        colour, dark = COLOURS[place % len(COLOURS)]
        # Colour and shape both change with the place, so that neighbours differ in both.
        shape = SHAPES[(place + place // len(COLOURS)) % len(SHAPES)]
        chosen[label] = Look(colour, dark, shape)
    return chosen


@dataclass(frozen=True)
class Axis:
    """An axis of a chart. `ticks` are positions with their texts; without ticks the drawing library chooses."""

    title: str
    unit: Unit = "number"
    scale: Literal["linear", "log"] = "linear"
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Series:
    """Points or a line of one colour.

    `method` and `columns` (one per point, or one for all) are indices into the results' lists, by which a page hides
    series. `half` has the half widths of the intervals around `y`. `told` describes the series in words. A reference
    has no x. A strip has an x for each client, None without test samples, and `facts` about each client.
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
        """The panel described in words."""
        return self.told or "; ".join(series.told for series in self.series if series.told)


@dataclass(frozen=True)
class Chart:
    """One chart; `name` is its file's. `metric` is None where it is the same for all metrics.

    `methods` are the places of those methods that a chart is about as a whole.
    """

    name: str
    kind: ChartKind
    title: str
    x: Axis
    y: Axis
    panels: Sequence[Panel]
    note: str = ""
    metric: str | None = None
    methods: Sequence[int] = ()


@dataclass(frozen=True)
class Index:
    """Places and looks of methods and settings in a report, and the seeds whose clients are shown.

    A page follows single clients, so it shows those of one seed at a time, `seed`; pictures on paper (`on_paper`) show
    all seeds.
    """

    method: Mapping[str, int]
    column: Mapping[Column, int]
    heading: Mapping[Column, str]
    look: Mapping[str, Look]
    references: Mapping[str, str]  # the kind of each reference, by label
    seed: Mapping[Column, int]
    seeds: Mapping[Column, int]  # how many there are
    on_paper: bool = False

    @classmethod
    def of(cls, results: Results, *, on_paper: bool = False) -> Self:
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
            {column: len({run.seed for run in results.runs if run.column == column}) for column in columns},
            on_paper,
        )

    def chosen(self, results: Results) -> dict[tuple[str, Column], Result]:
        """Return the runs whose single clients are shown, in the order of settings and methods."""
        runs = [run for run in results.finished if run.seed == self.seed.get(run.column)]
        runs.sort(key=lambda run: (self.column[run.column], self.method[run.label]))
        return {(run.label, run.column): run for run in runs}

    def other_seeds(self, results: Results) -> Iterator[Self]:
        """Yield the same for each other seed, with the settings that have runs of it."""
        finished = {(run.column, run.seed) for run in results.finished}
        for seed in sorted({seed for _, seed in finished}):
            seeds = {column: seed for column in self.column if seed != self.seed[column] and (column, seed) in finished}
            if seeds:
                yield replace(self, seed=seeds)

    def shown(self, results: Results) -> dict[tuple[str, Column], list[Result]]:
        """Return the chosen runs, on paper with those of all other seeds."""
        found = {place: [run] for place, run in self.chosen(results).items()}
        if self.on_paper:
            for place in found:
                found[place] = [run for run in results.finished if (run.label, run.column) == place]
        return found

    def title(self, column: Column, *, every_seed: bool) -> str:
        """Return the heading of a setting, on paper with the seeds that are shown, if there are several."""
        several = self.on_paper and self.seeds[column] > 1
        shown = f"{self.seeds[column]} seeds" if every_seed else f"seed {self.seed[column]}"
        return ", ".join(filter(None, (self.heading[column], shown if several else "")))


def _seeds(results: Results) -> dict[Column, int]:
    """Return the lowest seed of those that most methods finished, for each column."""
    finished: dict[Column, Counter[int]] = defaultdict(Counter)
    for run in results.runs:
        finished[run.column][run.seed] += run.error is None
    return {column: min(counts, key=lambda seed: (-counts[seed], seed)) for column, counts in finished.items()}


_LINES = {
    POOLED: "one global model of all data in one place, the mark for global models",
    TRIVIAL: "each client's own most frequent class, the mark for every method",
}
ROUNDS_NOTE = "Lines are methods that need rounds, means over seeds; a star is a method that is done after one."
BAND_NOTE = "A band around a line is ± the standard deviation over seeds."
Curve: TypeAlias = dict[str, list[float]]
Spreading: TypeAlias = dict[str, list[list[float]]]  # the values of all seeds by round, for each metric


@dataclass(frozen=True)
class Cost:
    """A cost of a whole run, by which figures are drawn; in charts of rounds each round takes an equal part of it."""

    name: str
    axis: Axis
    of: Callable[[Result], float | None]
    write: Callable[[float], str]
    note: str = ""


ROUNDS = Cost("rounds", Axis("round"), round_count, lambda count: f"{count:g} rounds" if count > 1 else "one round")
BYTES = Cost("bytes", Axis("bytes a client, up and down", "bytes", "log"), lambda run: run.bytes_per_client, human_size)
CPU = Cost(
    "cpu",
    Axis("CPU time", "seconds", "log"),
    lambda run: run.cpu,
    lambda spent: f"{seconds(spent)} s",
    "All clients and the server together.",
)


def learning_curves(results: Results) -> dict[tuple[str, Column], Spreading]:
    """Return the accuracies of all seeds per round by metric, of methods that report rounds."""
    grouped: dict[tuple[str, Column], list[Mapping[str, Sequence[float]]]] = defaultdict(list)
    for run in results.finished:
        if run.rounds:
            grouped[run.label, run.column].append(run.rounds)
    return {
        place: {
            metric: [list(values) for values in zip(*(rounds.get(metric, ()) for rounds in seeds), strict=False)]
            for metric in METRICS
        }
        for place, seeds in grouped.items()
    }


@dataclass(frozen=True)
class Sweep:
    """The figures of one method by one hyper-parameter, all else equal; a curve per column and other settings."""

    method: str
    parameter: str
    values: Sequence[Any]
    curves: Mapping[tuple[Column, str], Mapping[Any, Curve]]


def sweeps(results: Results) -> list[Sweep]:
    """Return the sensitivity curves that the results hold: the figures of every seed, as shown, by value and metric."""
    figures = {key: metric_of(key) for key in metrics_of(results)}
    by_method: dict[str, list[Result]] = defaultdict(list)
    for run in results.finished:
        if not run.reference and any(figure.value(run) is not None for figure in figures.values()):
            by_method[run.method].append(run)
    found = []
    for method, runs in by_method.items():
        for parameter in dict.fromkeys(name for run in runs for name in run.settings):
            curves = _curves(runs, parameter, figures)
            values = list(dict.fromkeys(value for points in curves.values() for value in points))
            if len(values) > 1:
                found.append(Sweep(method, parameter, _sorted(values), curves))
    return found


def _curves(
    runs: Sequence[Result], parameter: str, figures: Mapping[str, Metric]
) -> dict[tuple[Column, str], dict[Any, Curve]]:
    curves: dict[tuple[Column, str], dict[Any, Curve]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        if parameter not in run.settings:
            continue
        value = _scalar(run.settings[parameter])
        rest = ", ".join(f"{name}={show(other)}" for name, other in run.settings.items() if name != parameter)
        for metric, figure in figures.items():
            if (known := figure.shown(run)) is not None:
                curves[run.column, rest][value][metric].append(known)
    # A hyper-parameter counts as swept only where nothing else changed with it.
    return {place: dict(points) for place, points in curves.items() if len(points) > 1}


def _scalar(value: Any) -> Any:
    """Return a value that can be a point of a curve; lists and other values of a file become text."""
    if isinstance(value, list):
        return ", ".join(map(show, value))
    return value if value is None or isinstance(value, bool | int | float | str) else show(value)


def _sorted(values: list[Any]) -> list[Any]:
    return sorted(values, key=lambda value: (isinstance(value, str | None), value if is_number(value) else 0))


def is_number(value: Any) -> bool:
    """Return whether a value fits on an axis of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe(results: Results, metrics: Sequence[str] = (), *, on_paper: bool = False) -> Iterator[Chart]:
    """Yield the descriptions one by one: those of figures for each of `metrics` (default: all), the others once.

    With `on_paper`, clients of all seeds are shown, and titles say so, or name the one seed.
    """
    index, found = Index.of(results, on_paper=on_paper), sweeps(results)
    figures = [metric_in(results, key) for key in metrics or metrics_of(results)]
    for figure in figures:
        known = cells(results, figure.key)
        yield from _costs(results, index, figure, known)
        yield from round_charts(results, index, figure.key, figure_axis(figure), known)
        for sweep in found:
            yield from _sensitivity(sweep, results, index, figure)
    yield from one_seed(results, index, figures)


def one_seed(results: Results, index: Index, figures: Sequence[Metric]) -> Iterator[Chart]:
    """Yield the descriptions of charts that show the seed of an index: single clients, reliability and matrices."""
    yield from client_figures(results, index, figures)
    yield from reliability(results, index)
    yield from class_counts(results, index)
    yield from noted_matrices(results, index)


def figure_axis(figure: Metric) -> Axis:
    """Return the axis of a metric."""
    return Axis(f"{figure.title}, {figure.short}", "percent") if figure.is_accuracy else Axis(figure.title)


def _costs(results: Results, index: Index, figure: Metric, known: dict[tuple[str, Column], Cell]) -> Iterator[Chart]:
    runs: dict[tuple[str, Column], list[Result]] = defaultdict(list)
    for run in results.finished:
        runs[run.label, run.column].append(run)
    for cost in (BYTES, CPU):
        found = (_points(label, runs, index, known, cost) for label in results.labels)
        series = [drawn for drawn in found if drawn is not None]
        if not any(one.draw == "marks" for one in series):
            continue
        side = "Down" if figure.lower else "Up"
        notes = [cost.note, f"{side} and left is better. The large mark is the mean, small ones are single settings."]
        if any(half is not None for one in series for half in one.half):
            notes.append("Where one setting is shown, the line through a mark spans its ±.")
        said = {index.references[one.label] for one in series if one.draw == "reference"}
        if said:
            notes.append(f"Dashed lines are references: {', and '.join(_LINES[kind] for kind in sorted(said))}.")
        panels = [Panel("", series=series)]
        heading = f"{capitalised(figure.name)} against {cost.axis.title}"
        file = f"{'accuracy' if figure.is_accuracy else slug(figure.key)}-{cost.name}"
        yield Chart(
            file, "scatter", heading, cost.axis, figure_axis(figure), panels, " ".join(filter(None, notes)), figure.key
        )


def _points(
    label: str,
    runs: Mapping[tuple[str, Column], Sequence[Result]],
    index: Index,
    known: dict[tuple[str, Column], Cell],
    cost: Cost,
) -> Series | None:
    """Return a method's figures with their costs, one of each setting; the reference costs nothing."""
    reference = label in index.references
    points: list[tuple[float | None, Cell, int]] = []
    for column, place in index.column.items():
        cell = known.get((label, column))
        if cell is None or cell.mean is None:
            continue
        costs = [value for run in runs[label, column] if (value := cost.of(run))]
        if reference or costs:
            points.append((None if reference else fmean(costs), cell, place))
    if not points:
        return None
    y = [cell.mean or 0.0 for _, cell, _ in points]
    x = [float(f"{value:.6g}") for value, _, _ in points if value is not None]
    said = points[0][1].metric.say(fmean(y))
    told = f"{label}: {said}" + (f" at {cost.write(fmean(x))}" if x else f" {index.references[label]}")
    return Series(
        label,
        index.look[label],
        "reference" if reference else "marks",
        x,
        y,
        index.method[label],
        [place for _, _, place in points],
        [cell.half for _, cell, _ in points],
        told=told,
    )


def _sensitivity(sweep: Sweep, results: Results, index: Index, figure: Metric) -> Iterator[Chart]:
    numbers = [value for value in sweep.values if is_number(value)]
    continuous = len(numbers) == len(sweep.values)
    place: dict[Any, float] = {value: value if continuous else i for i, value in enumerate(sweep.values)}
    curves = sorted(sweep.curves.items(), key=lambda item: index.column[item[0][0]])
    look = list(looks([str(i) for i in range(len(curves))]).values())
    series = []
    for i, ((column, rest), points) in enumerate(curves):
        cell_of = {
            value: Cell(found, metric=figure)
            for value in sweep.values
            if value in points and (found := points[value].get(figure.key))
        }
        if not cell_of:
            continue
        known = {value: cell.mean or 0.0 for value, cell in cell_of.items()}
        half = _halves([cell.half for cell in cell_of.values()])
        others = sum(column == other for other, _ in sweep.curves) > 1
        label = f"{index.heading[column]}; {rest}" if others else index.heading[column]
        told = f"{label}: " + ", ".join(f"{show(value)} gives {figure.say(y)}" for value, y in known.items())
        x = [place[value] for value in known]
        columns = [index.column[column]]
        series.append(Series(label, look[i], "line", x, list(known.values()), columns=columns, half=half, told=told))
    if not series:
        return
    wide = continuous and min(numbers) > 0 and max(numbers) / min(numbers) >= 50
    ticks = [(place[value], show(value)) for value in sweep.values]
    yield Chart(
        slug(f"sensitivity {sweep.method} {sweep.parameter}"),
        "lines",
        f"{sweep.method}: {sweep.parameter}",
        Axis(f"{sweep.parameter} of {sweep.method}", "number", "log" if wide else "linear", ticks),
        figure_axis(figure),
        [Panel("", series=series)],
        "",
        figure.key,
        sorted({index.method[run.label] for run in results.runs if run.method == sweep.method}),
    )


def round_charts(
    results: Results, index: Index, metric: str, y: Axis, accuracy: Mapping[tuple[str, Column], Cell]
) -> Iterator[Chart]:
    """Yield a chart of each kind for which there are learning curves."""
    curves = {
        where: _whole(curve, metric)
        for where, curve in learning_curves(results).items()
        if max(map(len, curve.values())) > 1  # a single round is a point, not a line
    }
    kinds = (ROUNDS, "Accuracy per round"), (BYTES, "Accuracy by bytes"), (CPU, "Accuracy by CPU time")
    for kind, title in kinds:
        costs = _means(results, kind.of)
        panels = []
        for column, place in index.column.items():
            found = []
            for label in results.labels:
                where = label, column
                if where in curves:
                    found.append(_line(label, place, index, kind, costs.get(where), curves[where]))
                elif where in accuracy:
                    found.append(_point(label, place, index, kind, costs.get(where), accuracy[where]))
            series = [one for one in found if one is not None]
            if any(one.draw == "line" for one in series):
                panels.append(Panel(index.heading[column], place, series=series))
        if panels:
            name = "accuracy-rounds" if kind is ROUNDS else f"accuracy-rounds-{kind.name}"
            note = ROUNDS_NOTE if kind is ROUNDS else f"{ROUNDS_NOTE} All rounds of a run count as equally costly."
            yield Chart(name, "lines", title, kind.axis, y, panels, note, metric)


def _whole(curve: Spreading, metric: str) -> list[list[float]]:
    """Return a metric's curve in %; empty if a round lacks it, because the curve would seem to end early."""
    values = curve.get(metric, [])
    whole = len(values) == max(map(len, curve.values()))
    return [[100 * value for value in seeds] for seeds in values] if whole else []


def _deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; in floating point, because `stdev` takes far longer on all the rounds."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    return round(sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)), 2)


def _halves(known: Sequence[float | None]) -> Sequence[float | None]:
    """Return the half widths of a band; none at all where there is nothing to draw."""
    return known if any(known) else ()


def _means(results: Results, cost: Callable[[Result], float | None]) -> dict[tuple[str, Column], float]:
    found: dict[tuple[str, Column], list[float]] = defaultdict(list)
    for run in results.finished:
        if value := cost(run):
            found[run.label, run.column].append(value)
    return {where: fmean(values) for where, values in found.items()}


def _rounded(value: float) -> float:
    """Return a value with four digits, more than a reader sees: a page holds thousands of them."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _line(
    label: str, place: int, index: Index, kind: Cost, cost: float | None, curve: list[list[float]]
) -> Series | None:
    if cost is None or not curve:
        return None
    y = [round(fmean(seeds), 2) for seeds in curve]
    half = _halves([_deviation(seeds) for seeds in curve])
    x = [_rounded(cost * (i + 1) / len(y)) for i in range(len(y))]
    around = f" ± {half[-1]:.2f}" if half and half[-1] is not None else ""
    told = f"{label} ends at {y[-1]:.2f}{around} % after {kind.write(cost)}"
    return Series(label, index.look[label], "line", x, y, index.method[label], [place], half, told=told)


def _point(label: str, place: int, index: Index, kind: Cost, cost: float | None, cell: Cell) -> Series | None:
    look, method, half = index.look[label], index.method[label], [cell.half]
    if cell.mean is None:
        return None
    told = f"{label} has {cell.metric.say(cell.mean)} "
    if label in index.references:
        told += index.references[label]
        return Series(label, look, "reference", (), [cell.mean], method, [place], half, told=told)
    if cost is None:
        return None
    told += f"after {kind.write(cost)}"
    return Series(label, look, "star", [_rounded(cost)], [cell.mean], method, [place], half, told=told)


def reliability(results: Results, index: Index) -> Iterator[Chart]:
    """Describe confidence against accuracy over all test samples, one panel for each setting."""
    panels: dict[Column, list[Series]] = defaultdict(list)
    for (label, column), runs in index.shown(results).items():
        found = [run.judged.reliability for run in runs if run.judged.reliability is not None]
        if not found or not (known := reduce(lambda one, other: one + other, found)).n:
            continue
        rows = zip(known.samples, known.right, known.confidence, strict=True)
        points = [(100 * sure / n, 100 * right / n, n) for n, right, sure in rows if n]
        x, y, n = zip(*points, strict=True)
        told = f"{label}: calibration error {known.error:.4f}"
        place, look = index.column[column], index.look[label]
        panels[column].append(
            Series(
                label,
                look,
                "marks",
                [round(value, 2) for value in x],
                [round(value, 2) for value in y],
                index.method[label],
                [place] * len(x),
                facts={"samples": n},
                told=told,
            )
        )
    if panels:
        yield Chart(
            "reliability",
            "reliability",
            "Reliability of probabilities",
            Axis("confidence in %", "percent"),
            Axis("accuracy in %", "percent"),
            [
                Panel(index.title(column, every_seed=True), index.column[column], series=panels[column])
                for column in panels
            ],
            "A mark is a range of confidence, the larger the more samples are in it. On the dashed line a model is "
            "right as often as it says; below it is too sure, above it could be surer.",
        )


def client_figures(results: Results, index: Index, figures: Sequence[Metric]) -> Iterator[Chart]:
    """Describe how figures spread over the clients; accuracies of all kinds share one chart, the first."""
    accuracies = [figure for figure in figures if figure.is_accuracy]
    others = [figure for figure in figures if not figure.is_accuracy and not figure.key.startswith("client_")]
    for figure in (*accuracies[:1], *others):
        panels = _strips(results, index, figure)
        if not panels:
            continue
        is_accuracy = figure.is_accuracy
        yield Chart(
            "clients" if is_accuracy else slug(f"clients {figure.key}"),
            "strip",
            f"{'Accuracies' if is_accuracy else capitalised(figure.name)} of single clients",
            Axis("accuracy of a client in %" if is_accuracy else figure.title, "percent" if is_accuracy else "number"),
            Axis("method"),
            panels,
            "A dot is a client, the bar the middle half, the line the median, the diamond the mean.",
            None if is_accuracy else figure.key,
        )


def _strips(results: Results, index: Index, figure: Metric) -> list[Panel]:
    panels: dict[Column, list[Series]] = defaultdict(list)
    for (label, column), runs in index.shown(results).items():
        values = [None if v is None else figure.factor * v for run in runs for v in figure.clients(run)]
        known = sorted(value for value in values if value is not None)
        if all(len(run.tested) < 2 for run in runs) or not known:
            continue
        median = known[0] if len(known) == 1 else quantiles(known, n=4, method="inclusive")[1]
        parts = {"lowest": known[0], "median": median, "mean": fmean(known), "highest": known[-1]}
        digits = 1 if figure.is_accuracy else None
        said = ", ".join(f"{name} {_short(value, digits)}" for name, value in parts.items())
        run = runs[0]
        facts = {"sent up": run.up, "sent down": run.down} if len(runs) == 1 and run.up and run.down else {}
        x = [None if value is None else float(_short(value, digits)) for value in values]
        place, look = index.column[column], index.look[label]
        told = f"{label}: {said}" + (f" {figure.unit}" if figure.unit else "")
        panels[column].append(Series(label, look, "strip", x, (), index.method[label], [place], facts=facts, told=told))
    return [
        Panel(index.title(column, every_seed=True), index.column[column], series=panels[column]) for column in panels
    ]


def _short(value: float, decimals: int | None) -> str:
    return f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def known_clients(results: Results, index: Index) -> list[dict[str, Any]]:
    """Return names and facts of the clients of each setting, which do not depend on the method."""
    tested = {column: run.tested for (_, column), run in reversed(index.chosen(results).items()) if run.tested}
    spreads = _spreads(results, index)
    found = []
    for column in index.column:
        facts: dict[str, Sequence[int]] = {}
        if column in tested:
            facts["test samples"] = tested[column]
        if spread := spreads.get(column):
            facts["training samples"] = [sum(row) for row in spread.counts]
            if not spread.is_numeric:
                facts["classes"] = [sum(n > 0 for n in row) for row in spread.counts]
        found.append({"names": spread.names if spread else [], "facts": facts})
    return found


def _spreads(results: Results, index: Index) -> Mapping[Column, Spread]:
    return {spread.column: spread for spread in results.spreads if spread.seed == index.seed.get(spread.column)}


def class_counts(results: Results, index: Index) -> Iterator[Chart]:
    """Describe how many training samples of each class the clients have."""
    spreads = _spreads(results, index)
    panels = []
    for column, place in index.column.items():
        if (spread := spreads.get(column)) and not spread.is_numeric:
            values = list(zip(*spread.counts, strict=True))
            most = max((n for row in values for n in row), default=0)
            held = fmean(sum(n > 0 for n in row) for row in spread.counts)
            told = (
                f"{len(spread.counts)} clients by {len(values)} classes; a client has {held:.1f} classes on average, "
            )
            told += f"and the largest single count is {most}"
            # Colours by the square root: otherwise a few large clients would leave all others white.
            heat = Heat(values, spread.classes, spread.names, (0, max(1, most)), "root", clients="columns")
            panels.append(Panel(index.title(column, every_seed=False), place, heat=heat, told=told))
    if panels:
        title = "Training samples by client and class"
        yield Chart("classes", "heat", title, Axis("client"), Axis("class"), panels, "Stronger colour is more.")


def noted_matrices(results: Results, index: Index) -> Iterator[Chart]:
    """Describe the matrices that methods left, a chart for each kind; the diagonal has no part in the range."""
    found: dict[str, list[tuple[str, Column, Matrix]]] = defaultdict(list)
    for (label, column), run in index.chosen(results).items():
        for name, matrix in run.matrices.items():
            found[name].append((label, column, matrix))
    for name, matrices in found.items():
        panels = []
        for label, column, matrix in matrices:
            names = matrix.clients
            heat = Heat(matrix.values, names, names, matrix.range, own=bool(names), clients="rows" if names else "")
            place, title = index.column[column], f"{label}\n{index.title(column, every_seed=False)}"
            panels.append(Panel(title, place, index.method[label], heat=heat, told=_told(matrix)))
        named = any(matrix.clients for _, _, matrix in matrices)
        note = "Each row is a client; its columns tell how much every client counts for it." if named else ""
        x, y = (Axis("of client"), Axis("client")) if named else (Axis("column"), Axis("row"))
        yield Chart(slug(f"matrix {name}"), "heat", name[:1].upper() + name[1:], x, y, panels, note)


def _told(matrix: Matrix) -> str:
    if matrix.range is None:
        return ""
    low, high = matrix.range
    if not matrix.clients:
        return f"{len(matrix.values)} rows by {len(matrix.values[0])} columns, {low:.3g} to {high:.3g}"
    own = f", of themselves {min(matrix.own):.3g} to {max(matrix.own):.3g}" if matrix.own else ""
    return f"{len(matrix.clients)} clients; of others {low:.3g} to {high:.3g}{own}"
