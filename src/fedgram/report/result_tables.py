"""Tables of results: figures with their intervals, costs, times, rounds to reach an accuracy, and errors by site."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import floor, sqrt
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from fedgram.core.terminal import human_size
from fedgram.evaluation import FEW_SAMPLES
from fedgram.experiments.results import WHICH, Column, Result, Results, Validation
from fedgram.protocol.registry import registry
from fedgram.report.metrics import (
    SPANS,
    Metric,
    at_round,
    beside,
    bytes_a_round,
    client_seconds,
    metric_in,
    metric_of,
    round_count,
    rounds_to,
    seconds_a_round,
)
from fedgram.report.paired_tests import SIGNIFICANT, Comparison, comparisons

BEST, SECOND = 1, 2
TRIVIAL = "†"  # marks a figure that predicting the client's most frequent class nearly reaches
NEAR = 0.5  # points above the accuracy of that prediction, up to which a figure is marked
TRIVIAL_NOTE = f"{TRIVIAL} is at most {NEAR} points above always predicting the client's own most frequent class."
USUAL = metric_of("client_mean")
NOTHING = "–"
LEVEL = 0.95
BOLD_NOTE = (
    f"Bold: the best of a setting, and what is not significantly worse at {100 * SIGNIFICANT:g} % (Wilcoxon's "
    "signed-rank test over pairs of the same client and seed, corrected by Holm)."
)
TOO_FEW = "too few"
MINUS = "\N{MINUS SIGN}"
UNTESTED_NOTE = (
    "Underlined: the two best means of a setting that is not tested (too few pairs, or a figure that is not made of "
    "those of single clients)."
)
REACH_STEP, MOST_REACHED = 5, 3  # step between accuracies in %, and most accuracies in a table
REACH_NOTE = (
    "All rounds of a run count as equally costly. Where not all seeds reach an accuracy, figures are means of those "
    f"that do; {NOTHING} is never reached."
)
FAR_OFF = 2.0  # times the usual error of a party that is left out
STRANGE = "does not fit the others"
FEW_METRICS = ("client_mean", "worst_decile", "client_rmse")  # in which each client counts as much as any other
SITES_NOTE = (
    "Least squares with an intercept, from the moments that parties send anyway. The model without a party has not "
    "seen its samples; the other two have, so their errors are too small. R² is that of the model without the party: "
    "below 0, the party's own mean predicts better."
)


@dataclass(frozen=True)
class Cell:
    """One method's figures in one column, a value per seed as it is shown; with one seed, an interval from clients."""

    values: Sequence[float] = ()
    failed: int = 0
    interval: float | None = None
    metric: Metric = USUAL

    @cached_property
    def mean(self) -> float | None:
        """The mean, rounded as it is shown, so that figures that look equal have equal ranks."""
        return round(mean := fmean(self.values), self.metric.places(mean)) if self.values else None

    @cached_property
    def deviation(self) -> float | None:
        """The sample standard deviation; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def half(self) -> float | None:
        """The number after ±: the standard deviation over seeds, or with one seed half the clients' interval."""
        half = self.interval if self.deviation is None else self.deviation
        return None if half is None else round(half, self.metric.places(self.mean or 0.0))

    @property
    def low(self) -> float:
        """The lower end of the interval mean ± half."""
        return (self.mean or 0) - (self.half or 0)

    @property
    def high(self) -> float:
        """The upper end of the interval mean ± half."""
        return (self.mean or 0) + (self.half or 0)

    def __str__(self) -> str:
        if self.mean is None:
            return "failed" if self.failed else NOTHING
        places = self.metric.places(self.mean)
        half = "" if self.half is None else f" ± {self.half:.{places}f}"
        return f"{self.mean:.{places}f}{half}" + (f" ({self.failed} failed)" if self.failed else "")


class Entry(NamedTuple):
    """A piece of text in a table; rank 1 is shown bold, 2 underlined."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class Table:
    """Text ready for any format: a head of spans over a head of columns over rows. The first column names the row.

    `name` is the table's label in LaTeX; those of several settings end in a number.
    """

    caption: str
    spans: Sequence[tuple[str, int]]
    heads: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    name: str = ""

    @property
    def full_heads(self) -> list[str]:
        """The heads of the columns after the first, each with the span above it."""
        groups = [text for text, width in self.spans for _ in range(width)]
        return [f"{group}, {head}" if group else head for group, head in zip(groups, self.heads, strict=True)]

    def split(self) -> "list[Table]":
        """Return one table per span, for outputs that are too narrow for the whole."""
        parts, at = [], 1
        for text, width in self.spans:
            rows = [[row[0], *row[at : at + width]] for row in self.rows]
            caption = self.caption if at == 1 else ""
            parts.append(Table(caption, [(text, width)], self.heads[at - 1 : at - 1 + width], rows, self.name))
            at += width
        return parts


def cells(results: Results, metric: str) -> dict[tuple[str, Column], Cell]:
    """Return the figures of each method in each column."""
    figure = metric_in(results, metric)
    values: dict[tuple[str, Column], list[float]] = defaultdict(list)
    failed: dict[tuple[str, Column], int] = defaultdict(int)
    intervals: dict[tuple[str, Column], float] = {}
    alone = has_one_seed(results)
    for run in sorted(results.runs, key=lambda run: run.seed):
        place = run.label, run.column
        if run.error is not None:
            failed[place] += 1
        elif (value := figure.shown(run)) is not None:
            values[place].append(value)
            if alone and (half := half_width(run, metric)) is not None:
                intervals[place] = figure.factor * half
    return {
        place: Cell(values.get(place, ()), failed.get(place, 0), intervals.get(place), figure)
        for place in values.keys() | failed.keys()
    }


def has_one_seed(results: Results) -> bool:
    """Return whether no method has several seeds in a setting."""
    return seed_counts(results)[1] == 1


def seed_counts(results: Results) -> tuple[int, int]:
    """Return the least and the highest number of seeds of a method in a setting."""
    counts = Counter((run.label, run.column) for run in results.runs)
    return min(counts.values()), max(counts.values())


def ranks(results: Results, found: Mapping[tuple[str, Column], Cell]) -> dict[tuple[str, Column], int]:
    """Return the ranks of the best and the second method in each column, without references."""
    references = {run.label for run in results.runs if run.reference}
    marked: dict[tuple[str, Column], int] = {}
    lower = any(cell.metric.lower for cell in found.values())
    for column in results.columns:
        means = {
            label: cell.mean
            for (label, where), cell in found.items()
            if where == column and label not in references and cell.mean is not None
        }
        if len(means) < 2:
            continue
        for rank, value in enumerate(sorted(set(means.values()), reverse=not lower)[:2], start=BEST):
            marked |= {(label, column): rank for label, mean in means.items() if mean == value}
    return marked


@lru_cache(maxsize=16)  # a report needs those of a metric several times
def tested(results: Results, metric: str) -> Mapping[tuple[str, Column], Comparison]:
    """Return the paired tests of each method against the best one of its setting."""
    found, figure = cells(results, metric), metric_in(results, metric)
    best: dict[Column, str] = {}
    for (label, column), rank in sorted(ranks(results, found).items(), key=lambda item: item[0][0]):
        if rank == BEST:
            best.setdefault(column, label)
    return comparisons(results, figure, best)


def marks(results: Results, metric: str) -> dict[tuple[str, Column], int]:
    """Return the cells that are bold (1) and underlined (2).

    The best of a column is bold, and so is every method that is not significantly worse. Without a test, because pairs
    are too few, the best and the second are underlined.
    """
    tests = tested(results, metric)
    bold = {(one.best, column) for (_, column), one in tests.items() if one.worse is not None}
    bold |= {place for place, one in tests.items() if one.worse is False}
    columns = {column for _, column in bold}
    underlined = {place: SECOND for place in ranks(results, cells(results, metric)) if place[1] not in columns}
    return underlined | dict.fromkeys(bold, BEST)


def marks_note(results: Results, metrics: Sequence[str]) -> str:
    """Return what bold and underlined figures of some metrics mean; "" if there are none."""
    known = {rank for key in metrics for rank in marks(results, key).values()}
    return " ".join(note for rank, note in ((BEST, BOLD_NOTE), (SECOND, UNTESTED_NOTE)) if rank in known)


def trivial(results: Results, found: Mapping[tuple[str, Column], Cell]) -> set[tuple[str, Column]]:
    """Return the accuracies that are at most `NEAR` points above those of the client's own most frequent class."""
    baselines = {run.label for run in results.runs if run.is_trivial}
    lines = {column: cell.mean for (label, column), cell in found.items() if label in baselines}
    return {
        (label, column)
        for (label, column), cell in found.items()
        if label not in baselines
        and cell.metric.is_accuracy
        and cell.mean is not None
        and (line := lines.get(column)) is not None
        and cell.mean <= round(line + NEAR, 2)
    }


def accuracy_table(results: Results, metric: str) -> Table:
    """Return the table of a metric by method and setting, as papers print it."""
    columns, found = results.columns, cells(results, metric)
    rank, marked = marks(results, metric), trivial(results, found)
    heads = span_texts(columns)
    spans = [(text, len(list(group))) for text, group in groupby(heads)]
    references = {run.label for run in results.runs if run.reference}
    rows = [
        [
            Entry(f"{label} (reference)" if label in references else label),
            *(
                Entry(
                    str(found.get((label, c), Cell())) + f" {TRIVIAL}" * ((label, c) in marked), rank.get((label, c), 0)
                )
                for c in columns
            ),
        ]
        for label in results.labels
    ]
    return Table(accuracy_caption(results, metric), spans, [column.spread for column in columns], rows, "figures")


def accuracy_caption(results: Results, metric: str) -> str:
    """Return a description of the numbers."""
    least, most = seed_counts(results)
    features = ", ".join(dict.fromkeys(about(column) for column in results.columns))
    over = f"mean ± standard deviation over {most} seeds" if most > 1 else "one seed"
    if least < most:
        over = f"mean ± standard deviation over {least} to {most} seeds" + (
            ", without ± one seed" if least == 1 else ""
        )
    elif most == 1 and len({run.seed for run in results.runs}) > 1:
        over += " each"
    if any(cell.interval is not None for cell in cells(results, metric).values()):
        over += ", ± half of a 95 % t interval over the clients"
    common = all(column.has_common_test for column in results.columns)
    figure = metric_in(results, metric)
    kind = "on a common test set" if common else figure.about
    better = "; lower is better" if figure.lower else ""
    notes = [
        f"{capitalised(figure.title)} ({kind}) of {features}; {over}{better}.",
        TRIVIAL_NOTE if trivial(results, cells(results, metric)) else "",
        _few_note(results) if figure.key in FEW_METRICS and not common else "",
        _crowd_note(results),
        marks_note(results, [metric]),
    ]
    return " ".join(filter(None, notes))


def with_names(results: Results) -> Results:
    """Return results with methods called as people write them, "FedGram" for "fedgram", for papers.

    Methods that are not registered, and labels of users, stay as they are.
    """
    labels = {run.label: _label_written(run) for run in results.runs}
    taken = Counter(labels.values())
    runs = [
        replace(
            run,
            method=written_name(run.method),
            label=labels[run.label] if taken[labels[run.label]] == 1 else run.label,
        )
        for run in results.runs
    ]
    return replace(results, runs=runs)


def _label_written(run: Result) -> str:
    rest = run.label.removeprefix(run.method)
    return written_name(run.method) + rest if rest != run.label and rest[:1] in ("", " ") else run.label


def written_name(method: str) -> str:
    """Return a method's name as people write it, by its class.

    >>> [written_name(name) for name in ("afl", "fedavg+ft", "pfedme", "my own")]
    ['AFL', 'FedAvg+FT', 'pFedMe', 'my own']
    """
    base, plus, tuned = method.partition("+")
    if base not in registry:
        return method
    name = registry[base].__name__
    return ("p" + name[1:] if name.startswith("PFed") else name) + plus + tuned.upper()


def few_clients(few: int, clients: int) -> str:
    """Return in words how many clients have so few test samples that their figures are mostly noise."""
    return f"{few:,} of {clients:,} clients have fewer than {FEW_SAMPLES} test samples and count as much as the others"


def _few_note(results: Results) -> str:
    """Return in words how many clients of each setting, over its seeds, have few test samples; "" if none has."""
    names = headings(results.columns)
    told: list[str] = []
    for column in results.columns:
        by_seed = {run.seed: run.tested for run in results.finished if run.column == column and run.tested}
        known = [n for tested in by_seed.values() for n in tested if n]
        if few := sum(n < FEW_SAMPLES for n in known):
            where = f" ({names[column]})" if len(results.columns) > 1 and names[column] else ""
            told.append(few_clients(few, len(known)) + where if not told else f"{few:,} of {len(known):,}{where}")
    return f"{'; '.join(told)}." if told else ""


def _crowd_note(results: Results) -> str:
    """Return in words how many clients have samples, where that is not the number in a heading; "" otherwise."""
    told = []
    for column, name in headings(results.columns).items():
        counts = [len(spread.names) for spread in results.spreads if spread.column == column]
        if column.clients is not None and set(counts) - {column.clients}:
            least, most = min(counts), max(counts)
            shown = f"{least:,}" if least == most else f"{least:,} to {most:,}, by seed"
            told.append(f"{name}: {shown}")
    return f"Clients with samples: {'; '.join(told)}." if told else ""


def capitalised(text: str) -> str:
    """Return a text with its first letter as a capital, and the rest unchanged."""
    return text[:1].upper() + text[1:]


def beside_table(results: Results, metric: str) -> Table:
    """Return the table of related figures: other errors of the same outcome, or probabilities."""
    columns, others = results.columns, [metric_in(results, key) for key in beside(results, metric)]
    found = [cells(results, other.key) for other in others]
    ranked = [marks(results, other.key) for other in others]
    pairs = list(zip(found, ranked, strict=True))

    def entry(place: tuple[str, Column], known: Mapping[tuple[str, Column], Cell], rank: Mapping[Any, int]) -> Entry:
        return Entry(str(known.get(place, Cell())), rank.get(place, 0))

    rows = [
        [Entry(label), *(entry((label, column), *pair) for column in columns for pair in pairs)]
        for label in results.labels
        if others
    ]
    names = [other.short for other in others]
    said = f"{capitalised(', '.join(other.title for other in others))} over all test samples."
    caption = " ".join(filter(None, [said, marks_note(results, [other.key for other in others])]))
    spans = [(heading, len(others)) for heading in headings(columns).values()]
    return Table(caption, spans, names * len(columns), rows, "beside")


def test_table(results: Results, metric: str) -> Table:
    """Return the table of paired tests between the best method of each setting and the others."""
    columns, figure, tests = results.columns, metric_in(results, metric), tested(results, metric)
    best = {(one.best, column) for (_, column), one in tests.items()}
    columns = [column for column in columns if any(where == column for _, where in tests)]

    def entries(place: tuple[str, Column]) -> list[Entry]:
        if place in best:
            return [Entry("best", BEST), *[Entry("")] * 3]
        if (one := tests.get(place)) is None:
            return [Entry(NOTHING)] * 4
        difference = f"{one.difference:+.{figure.places(one.difference)}f}".replace("-", MINUS)
        return [Entry(text) for text in (difference, f"{one.pairs:,}", _chance(one.wilcoxon), _chance(one.t))]

    rows = [
        [Entry(label), *(entry for column in columns for entry in entries((label, column)))]
        for label in results.labels
        if any(place[0] == label for place in (*tests, *best))
    ]
    caption = (
        f"Tests against the best method of each setting: {figure.title}, mean difference over pairs of the same client "
        "and seed, and p of Wilcoxon's signed-rank test and of the paired t test, two-sided, corrected by Holm. Pairs "
        "of one seed share models and data, so that p may be too small."
    )
    names = headings(results.columns)
    spans = [(names[column], 4) for column in columns]
    return Table(caption, spans, ["difference", "pairs", "Wilcoxon p", "t p"] * len(columns), rows, "tests")


def _chance(p: float | None) -> str:
    return TOO_FEW if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def about(column: Column) -> str:
    """Return a description of the features."""
    backbone = f" through {column.backbone}" if column.backbone else ""
    return column.data + backbone + (f" with shift {column.shift}" if column.shift else "")


def span_texts(columns: Sequence[Column]) -> list[str]:
    """Return the heading above each column: the number of clients, and settings that differ."""
    texts = []
    for column in columns:
        parts = [
            words for name, words in column.details.items() if len({getattr(other, name) for other in columns}) > 1
        ]
        texts.append(", ".join(part for part in (*parts, column.crowd) if part))
    return texts


def headings(columns: Sequence[Column]) -> dict[Column, str]:
    """Return each column in words, with the settings that distinguish it from the others."""
    texts = zip(columns, span_texts(columns), strict=True)
    return {column: ", ".join(part for part in (text, column.spread) if part) for column, text in texts}


def cost_table(results: Results) -> Table:
    """Return the traffic and computation of each method, means over all its runs."""
    rows = []
    for label in results.labels:
        runs = [run for run in results.finished if run.label == label and not run.reference]
        if runs:
            rows.append([Entry(label), *map(Entry, _costs(runs))])
    spans = [("bytes a client", 2), ("CPU seconds", 2), ("", 1)]
    heads = ["up", "down", "clients", "server", "peak memory"]
    return Table("Cost of a run, mean over all runs.", spans, heads, rows, "costs")


def _costs(runs: Sequence[Result]) -> list[str]:
    return [
        mean_of([sum(run.up) / len(run.up) for run in runs if run.up], human_size),
        mean_of([sum(run.down) / len(run.down) for run in runs if run.down], human_size),
        mean_of([run.cpu_seconds["clients"] for run in runs if "clients" in run.cpu_seconds], seconds),
        mean_of([run.cpu_seconds["server"] for run in runs if "server" in run.cpu_seconds], seconds),
        mean_of([run.peak_memory for run in runs if run.peak_memory], human_size),
    ]


def mean_of(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Return the mean of some values as text, or the sign for no value."""
    return write(fmean(values)) if values else NOTHING


def seconds(value: float) -> str:
    """Return a time in seconds with three significant digits.

    >>> seconds(0.01234), seconds(123.4)
    ('0.0123', '123')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def half_width(run: Result, metric: str) -> float | None:
    """Return half of the interval around a run's figure, as recorded (a share); None below two clients.

    The clients are taken as a sample of all possible clients. For a mean over clients this is the t interval. A figure
    over all samples is a ratio of two sums over clients, with the usual variance of a ratio; the variance of its root
    follows from the derivative.
    """
    figure = metric_of(metric)
    pairs = figure.pairs(run)
    clients, total = len(pairs), sum(n for _, n in pairs)
    if clients < 2 or not total:
        return None
    from scipy.special import stdtrit

    ratio = sum(part for part, _ in pairs) / total
    squares = sum((part - ratio * n) ** 2 for part, n in pairs)
    error = sqrt(clients / (clients - 1) * squares) / total
    if figure.root:
        error = error / (2 * sqrt(ratio)) if ratio else 0.0
    return float(stdtrit(clients - 1, (1 + LEVEL) / 2)) * error


def round_table(results: Results) -> Table:
    """Return the bytes and seconds of a round, means over all runs of methods that report rounds."""
    rows = [
        [
            Entry(label),
            Entry(_mean_of_runs(runs, bytes_a_round, human_size)),
            Entry(_mean_of_runs(runs, seconds_a_round, seconds)),
        ]
        for label, runs in _timed(results)
        if any(run.rounds for run in runs)
    ]
    caption = "Cost of a round, mean over all runs: bytes of a client that takes part, up and down; seconds of all."
    return Table(caption, [("a round", 2)], ["bytes a client", "seconds"], rows, "rounds")


def time_table(results: Results) -> Table:
    """Return the time that clients spend in a run, by purpose, means over clients and runs."""
    rows = []
    for label, runs in _timed(results):
        spans = [_mean_of_runs(runs, lambda run, span=span: run.timing.get(span), seconds) for span in SPANS]  # type: ignore[misc]
        rows.append([Entry(label), *map(Entry, spans), Entry(_mean_of_runs(runs, client_seconds, seconds))])
    caption = (
        "Seconds of a client in a run, mean over clients and runs: idle is waiting for the slowest of a step, which is "
        "not known of clients that train together."
    )
    return Table(caption, [("seconds a client", len(SPANS) + 1)], [*SPANS, "total"], rows, "time")


def _timed(results: Results) -> Iterator[tuple[str, list[Result]]]:
    for label in results.labels:
        if runs := [run for run in results.finished if run.label == label and run.timing]:
            yield label, runs


def _mean_of_runs(runs: Sequence[Result], of: Callable[[Result], float | None], write: Callable[[float], str]) -> str:
    return mean_of([value for run in runs if (value := of(run)) is not None], write)


def reach_tables(results: Results, metric: str) -> dict[Column, Table]:
    """Return a table for each setting in which a method has rounds."""
    found: dict[Column, Table] = {}
    for column, heading in headings(results.columns).items():
        runs = [run for run in results.finished if run.column == column and not run.reference]
        if any(run.rounds.get(metric) for run in runs) and (targets := _targets(runs, metric)):
            caption = f"What it takes to reach an accuracy: {heading}. {REACH_NOTE}"
            rows = [
                [Entry(label), *(Entry(text) for target in targets for text in _costs_to(own, metric, target))]
                for label in results.labels
                if (own := [run for run in runs if run.label == label])
            ]
            spans = [(f"{target} %", 3) for target in targets]
            heads = ["rounds", "bytes a client", "CPU seconds"] * len(targets)
            found[column] = Table(caption, spans, heads, rows, f"reach-{len(found) + 1}")
    return found


def _targets(runs: Sequence[Result], metric: str) -> list[int]:
    """Return the highest round accuracies in % that any method reaches, lowest first."""
    best = max((at_round(run, metric, best=True) or 0.0 for run in runs), default=0.0)
    top = REACH_STEP * floor(best / REACH_STEP)
    return [target for target in range(top - (MOST_REACHED - 1) * REACH_STEP, top + 1, REACH_STEP) if target > 0]


def _costs_to(runs: Sequence[Result], metric: str, target: float) -> list[str]:
    """Return rounds, bytes and CPU seconds until the accuracy is reached, means of the seeds that reach it."""
    reached = [(run, number) for run in runs if (number := rounds_to(run, metric, target)) is not None]
    if not reached:
        return [NOTHING] * 3

    def part(of: Callable[[Result], float | None], write: Callable[[float], str]) -> str:
        spent = [whole * number / round_count(run) for run, number in reached if (whole := of(run))]
        return write(fmean(spent)) if len(spent) == len(reached) else NOTHING

    some = f" ({len(reached)} of {len(runs)} seeds)" if len(reached) < len(runs) else ""
    rounds = f"{fmean(number for _, number in reached):.3g}{some}"
    return [rounds, part(lambda run: run.bytes_per_client, human_size), part(lambda run: run.cpu, seconds)]


def site_tables(validation: Validation | None, units: Mapping[str, str]) -> list[Table]:
    """Return a table for each numeric outcome, or one for the classes; empty if no parties were left out."""
    if validation is None:
        return []
    return [_site_table(validation, target, units.get(target, "")) for target in validation.errors]


def tables_by_column(results: Results) -> dict[Column, list[Table]]:
    """Return the tables of each setting, by the first run that has them: methods send the same moments."""
    found: dict[Column, list[Table]] = {}
    names = headings(results.columns)
    for run in results.finished:
        if run.column not in found and (tables := site_tables(run.judged.validation, run.judged.outcomes)):
            place = sum(map(len, found.values()))
            found[run.column] = [
                replace(one, caption=f"{names[run.column]}: {one.caption}", name=f"parties-{place + i}")
                for i, one in enumerate(tables, start=1)
            ]
    return found


def _site_table(validation: Validation, target: str, unit: str) -> Table:
    errors = validation.errors[target]
    lists = {which: _site_errors(errors[which], target) for which in WHICH}
    r2 = errors["left_out"].get("r2", [None] * len(validation.names))
    strange = _strange(errors["left_out"].get("mse", ()), r2)
    rows = [
        [
            Entry(name),
            Entry(f"{n:,}"),
            *(Entry(_figure(lists[which][place])) for which in WHICH),
            Entry(_figure(r2[place])),
            Entry(STRANGE if strange[place] else ""),
        ]
        for place, (name, n) in enumerate(zip(validation.names, validation.samples, strict=True))
    ]
    what = f"RMSE of {target}" + (f" in {unit}" if unit else "") if target else "Brier score"
    caption = f"{what} at each party, by the model of its own samples, of all, and of all the others."
    heads = ["samples", "its own", "all", "without it", "R² without it", ""]
    return Table(caption, [("", 1), ("model of", 3), ("", 2)], heads, rows)


def _site_errors(measures: Mapping[str, Sequence[float | None]], target: str) -> Sequence[float | None]:
    if not target:
        return measures["brier"]
    return [None if value is None else sqrt(value) for value in measures["mse"]]


def _strange(errors: Sequence[float | None], r2: Sequence[float | None]) -> list[bool]:
    """Return for each party whether others predict it badly: worse than its mean, or far worse than other parties."""
    known = [value for value in errors if value is not None]
    usual = median(known) if known else 0.0
    return [
        (share is not None and share < 0) or (len(known) > 2 and value is not None and value > FAR_OFF * usual)
        for value, share in zip(errors, r2, strict=True)
    ]


def _figure(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"
