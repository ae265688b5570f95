"""Tables of what a round costs, and of how clients spend their time."""

from collections.abc import Callable, Iterator, Sequence

from fedgram.experiments.results import Result, Results
from fedgram.report.measures import SPANS, bytes_a_round, client_seconds, seconds_a_round
from fedgram.report.tables import Entry, Table, mean_of, seconds, size


def round_table(results: Results) -> Table:
    """Return the bytes and seconds of a round, means over all runs of methods that report rounds."""
    rows = [
        [
            Entry(label),
            Entry(_mean(runs, bytes_a_round, size)),
            Entry(_mean(runs, seconds_a_round, seconds)),
        ]
        for label, runs in _timed(results)
        if any(run.rounds for run in runs)
    ]
    caption = "Cost of a round, mean over all runs: bytes of a client that takes part, up and down; seconds of all."
    return Table(caption, [("a round", 2)], ["bytes a client", "seconds"], rows)


def time_table(results: Results) -> Table:
    """Return how clients spend their time in a run, means over clients and runs."""
    rows = []
    for label, runs in _timed(results):
        spans = [_mean(runs, lambda run, span=span: run.timing.get(span), seconds) for span in SPANS]  # type: ignore[misc]
        rows.append([Entry(label), *map(Entry, spans), Entry(_mean(runs, client_seconds, seconds))])
    caption = (
        "Seconds of a client in a run, mean over clients and runs: idle is waiting for the slowest of a step, which is "
        "not known of clients that train together."
    )
    return Table(caption, [("seconds a client", len(SPANS) + 1)], [*SPANS, "total"], rows)


def _timed(results: Results) -> Iterator[tuple[str, list[Result]]]:
    for label in results.labels:
        if runs := [run for run in results.finished if run.label == label and run.timing]:
            yield label, runs


def _mean(runs: Sequence[Result], of: Callable[[Result], float | None], write: Callable[[float], str]) -> str:
    return mean_of([value for run in runs if (value := of(run)) is not None], write)
