"""What it takes to reach an accuracy: rounds, bytes and CPU time, by method, for one setting at a time."""

from collections.abc import Callable, Sequence
from math import floor
from statistics import fmean

from fedgram.experiments.results import Column, Result, Results
from fedgram.report.measures import at_round, round_count, rounds_to
from fedgram.report.tables import NOTHING, Entry, Table, headings, seconds, size

STEP, MOST = 5, 3  # in %, and how many accuracies a table has

NOTE = (
    "All rounds of a run count as equally costly. Where not all seeds reach an accuracy, figures are means of those "
    f"that do; {NOTHING} is never reached."
)


def reach_tables(results: Results, metric: str) -> dict[Column, Table]:
    """Return a table for each setting in which a method has rounds."""
    found = {}
    for column, heading in headings(results.columns).items():
        runs = [run for run in results.finished if run.column == column and not run.reference]
        if any(run.rounds.get(metric) for run in runs) and (targets := _targets(runs, metric)):
            caption = f"What it takes to reach an accuracy: {heading}. {NOTE}"
            rows = [
                [Entry(label), *(Entry(text) for target in targets for text in _costs(own, metric, target))]
                for label in results.labels
                if (own := [run for run in runs if run.label == label])
            ]
            spans = [(f"{target} %", 3) for target in targets]
            found[column] = Table(caption, spans, ["rounds", "bytes a client", "CPU seconds"] * len(targets), rows)
    return found


def _targets(runs: Sequence[Result], metric: str) -> list[int]:
    """Return the highest round accuracies in % that any method reaches, lowest first."""
    best = max((at_round(run, metric, best=True) or 0.0 for run in runs), default=0.0)
    top = STEP * floor(best / STEP)
    return [target for target in range(top - (MOST - 1) * STEP, top + 1, STEP) if target > 0]


def _costs(runs: Sequence[Result], metric: str, target: float) -> list[str]:
    """Return rounds, bytes and CPU seconds until the accuracy is reached, means of the seeds that reach it."""
    reached = [(run, number) for run in runs if (number := rounds_to(run, metric, target)) is not None]
    if not reached:
        return [NOTHING] * 3

    def part(of: Callable[[Result], float | None], write: Callable[[float], str]) -> str:
        spent = [whole * number / round_count(run) for run, number in reached if (whole := of(run))]
        return write(fmean(spent)) if len(spent) == len(reached) else NOTHING

    some = f" ({len(reached)} of {len(runs)} seeds)" if len(reached) < len(runs) else ""
    rounds = f"{fmean(number for _, number in reached):.3g}{some}"
    return [rounds, part(lambda run: run.bytes_per_client, size), part(lambda run: run.cpu, seconds)]
