"""Tables in the papers' layout: methods × (clients × α), mean ± standard deviation over seeds, the best two marked."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fedgram.experiments.results import Column, Result, Results
from fedgram.report.intervals import half_width
from fedgram.report.metrics import Metric, beside, metric_in, metric_of

BEST, SECOND = 1, 2
TRIVIAL = "†"  # after a figure that predicting the client's most frequent class nearly has, too
NEAR = 0.5  # points above that line which do not count
TRIVIAL_NOTE = (
    f"{TRIVIAL} is at most {NEAR} points above what a client has that always predicts its own most frequent class."
)
USUAL = metric_of("client_mean")
NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """One method's figures in one column, a value per seed as it is shown; with one seed, an interval from clients."""

    values: Sequence[float] = ()
    failed: int = 0
    interval: float | None = None
    metric: Metric = USUAL

    @cached_property
    def mean(self) -> float | None:
        """Their mean, rounded as it is shown, so that what looks equal ranks equal."""
        return round(mean := fmean(self.values), self.metric.places(mean)) if self.values else None

    @cached_property
    def deviation(self) -> float | None:
        """Their sample standard deviation; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def half(self) -> float | None:
        """What stands after ±: the standard deviation over seeds, or with one seed half the clients' interval."""
        half = self.interval if self.deviation is None else self.deviation
        return None if half is None else round(half, self.metric.places(self.mean or 0.0))

    @property
    def low(self) -> float:
        """The lower end of what ± spans."""
        return (self.mean or 0) - (self.half or 0)

    @property
    def high(self) -> float:
        """The upper end of what ± spans."""
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
    """Text ready for any format: a head of spans over a head of columns over rows. The first column names the row."""

    caption: str
    spans: Sequence[tuple[str, int]]
    heads: Sequence[str]
    rows: Sequence[Sequence[Entry]]

    def split(self) -> "list[Table]":
        """Return one table per span, for where the whole is too wide."""
        parts, at = [], 1
        for text, width in self.spans:
            rows = [[row[0], *row[at : at + width]] for row in self.rows]
            caption = self.caption if at == 1 else ""
            parts.append(Table(caption, [(text, width)], self.heads[at - 1 : at - 1 + width], rows))
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
    """Say whether nothing can be told from seeds."""
    return len({run.seed for run in results.runs}) == 1


def ranks(results: Results, found: dict[tuple[str, Column], Cell]) -> dict[tuple[str, Column], int]:
    """Return who is best and second in each column; the reference takes no part."""
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


def marks(results: Results, found: dict[tuple[str, Column], Cell]) -> dict[tuple[str, Column], int]:
    """Return what is bold (1) and underlined (2).

    The best of a column is bold only if its ± range does not overlap that of the second; otherwise both are underlined.
    """
    ranked = ranks(results, found)
    return {
        place: rank if rank != BEST or _stands_out(place, ranked, found) else SECOND for place, rank in ranked.items()
    }


def _stands_out(
    best: tuple[str, Column], ranked: dict[tuple[str, Column], int], found: dict[tuple[str, Column], Cell]
) -> bool:
    others = [place for place in ranked if place[1] == best[1] and place != best]
    highest = min(ranked[place] for place in others)
    next_ones = [found[place] for place in others if ranked[place] == highest]
    if found[best].metric.lower:
        return all(found[best].high <= other.low for other in next_ones)
    return all(found[best].low >= other.high for other in next_ones)


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
    """Return the table that a paper prints."""
    columns, found = results.columns, cells(results, metric)
    rank, marked = marks(results, found), trivial(results, found)
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
    return Table(accuracy_caption(results, metric), spans, [column.spread for column in columns], rows)


def accuracy_caption(results: Results, metric: str) -> str:
    """Say what the numbers are."""
    seeds = len({run.seed for run in results.runs})
    features = ", ".join(dict.fromkeys(about(column) for column in results.columns))
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if any(cell.interval is not None for cell in cells(results, metric).values()):
        over += ", ± half of a 95 % t interval over the clients"
    common = all(column.has_common_test for column in results.columns)
    figure = metric_in(results, metric)
    kind = "on a common test set" if common else figure.about
    better = "; lower is better" if figure.lower else ""
    note = f" {TRIVIAL_NOTE}" if trivial(results, cells(results, metric)) else ""
    return f"{capitalised(figure.title)} ({kind}) of {features}; {over}{better}.{note}"


def capitalised(text: str) -> str:
    """Return a text with a capital letter first, and the others as they are."""
    return text[:1].upper() + text[1:]


def beside_table(results: Results, metric: str) -> Table:
    """Return the figures that a reader wants to see beside one: other errors of the same outcome, or probabilities."""
    columns, others = results.columns, [metric_in(results, key) for key in beside(results, metric)]
    found = [cells(results, other.key) for other in others]
    ranked = [marks(results, known) for known in found]
    pairs = list(zip(found, ranked, strict=True))

    def entry(place: tuple[str, Column], known: Mapping[tuple[str, Column], Cell], rank: Mapping[Any, int]) -> Entry:
        return Entry(str(known.get(place, Cell())), rank.get(place, 0))

    rows = [
        [Entry(label), *(entry((label, column), *pair) for column in columns for pair in pairs)]
        for label in results.labels
        if others
    ]
    names = [other.short for other in others]
    caption = f"{capitalised(', '.join(other.title for other in others))} over all test samples."
    spans = [(heading, len(others)) for heading in headings(columns).values()]
    return Table(caption, spans, names * len(columns), rows)


def about(column: Column) -> str:
    """Say what the features are."""
    backbone = f" through {column.backbone}" if column.backbone else ""
    return column.data + backbone + (f" with shift {column.shift}" if column.shift else "")


def span_texts(columns: Sequence[Column]) -> list[str]:
    """Return the heading above each column: the number of clients, with whatever else differs."""
    texts = []
    for column in columns:
        parts = [
            words for name, words in column.details.items() if len({getattr(other, name) for other in columns}) > 1
        ]
        texts.append(", ".join(part for part in (*parts, column.crowd) if part))
    return texts


def headings(columns: Sequence[Column]) -> dict[Column, str]:
    """Return each column in words, with all that tells it from the others."""
    texts = zip(columns, span_texts(columns), strict=True)
    return {column: ", ".join(part for part in (text, column.spread) if part) for column, text in texts}


def cost_table(results: Results) -> Table:
    """Return what each method sends and computes, means over all its runs."""
    rows = []
    for label in results.labels:
        runs = [run for run in results.finished if run.label == label and not run.reference]
        if runs:
            rows.append([Entry(label), *map(Entry, _costs(runs))])
    spans = [("bytes a client", 2), ("CPU seconds", 2), ("", 1)]
    return Table("Cost of a run, mean over all runs.", spans, ["up", "down", "clients", "server", "peak memory"], rows)


def _costs(runs: Sequence[Result]) -> list[str]:
    return [
        mean_of([sum(run.up) / len(run.up) for run in runs if run.up], size),
        mean_of([sum(run.down) / len(run.down) for run in runs if run.down], size),
        mean_of([run.cpu_seconds["clients"] for run in runs if "clients" in run.cpu_seconds], seconds),
        mean_of([run.cpu_seconds["server"] for run in runs if "server" in run.cpu_seconds], seconds),
        mean_of([run.peak_memory for run in runs if run.peak_memory], size),
    ]


def mean_of(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Write the mean of some values, or that there are none."""
    return write(fmean(values)) if values else NOTHING


def size(count: float) -> str:
    """Write a number of bytes.

    >>> size(512), size(20_480), size(3_500_000)
    ('512 B', '20.5 kB', '3.50 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if unit == "B" or count >= 10 else f"{count:.2f} {unit}"


def seconds(value: float) -> str:
    """Write a time with three significant digits.

    >>> seconds(0.01234), seconds(123.4)
    ('0.0123', '123')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
