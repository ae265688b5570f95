"""What it takes to reach an accuracy: rounds, bytes and CPU time, by method, for one setting at a time."""

from collections.abc import Callable, Sequence
from math import floor
from statistics import fmean

from fedgram.experiments.results import Column, Result, Results
from fedgram.report.measures import at_round, rounds_to, share_to
from fedgram.report.tables import NOTHING, Entry, Table, headings, seconds, size

STEP, MOST = 5, 3  # in %, and how many accuracies a table has


def reach_tables(results: Results, metric: str) -> dict[Column, Table]:
    """Return a table for each setting in which a method has rounds."""
    found = {}
    for column, heading in headings(results.columns).items():
        runs = [run for run in results.finished if run.column == column and not run.reference]
        if any(run.rounds.get(metric) for run in runs) and (targets := _targets(runs, metric)):
            caption = f"What it takes to reach an accuracy: {heading}. All rounds of a run count as equally costly."
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
    shares = [share_to(run, metric, target) for run in runs]
    rounds = [rounds_to(run, metric, target) for run in runs]

    def part(of: Callable[[Result], float | None], write: Callable[[float], str]) -> str:
        wholes = [of(run) for run in runs]
        spent = [share * whole for share, whole in zip(shares, wholes, strict=True) if share and whole]
        return write(fmean(spent)) if len(spent) == len(runs) else NOTHING

    counted = [number for number in rounds if number is not None]
    needed = f"{fmean(counted):.3g}" if len(counted) == len(runs) else NOTHING
    return [needed, part(lambda run: run.bytes_per_client, size), part(lambda run: run.cpu, seconds)]
