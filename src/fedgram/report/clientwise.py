"""What the page holds of single clients: their figures, who has which classes, who takes how much of whom."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedgram.experiments.results import Column, Result, Results

# Numbers about single clients that a page may hold; beyond that, bytes are given as a mean and then details go.
MOST_DETAILS = 300_000
# Entries of all matrices together; of those beyond, the page says only that they are in the results.
MOST_ENTRIES = 200_000


def details(chosen: dict[tuple[int, int], Result]) -> list[dict[str, Any]]:
    """Return single clients' figures: accuracies in tenths of a percent, and bytes."""
    wanted = {place: run for place, run in chosen.items() if len(run.tested) > 1 and any(run.tested)}
    accuracies = sum(len(run.tested) for run in wanted.values())
    listed = accuracies + sum(len(run.up) * 2 for run in wanted.values()) <= MOST_DETAILS
    found: list[dict[str, Any]] = []
    spent = 0
    for (method, column), run in wanted.items():
        spent += len(run.tested)
        if spent > MOST_DETAILS:
            break
        accuracy = [None if value is None else round(1000 * value) for value in run.by_client]
        up, down = _shortest(run.up, listed), _shortest(run.down, listed)
        found.append({"m": method, "c": column, "accuracy": accuracy, "up": up, "down": down})
    return found


def _shortest(counts: Sequence[int], listed: bool) -> int | list[int] | None:
    if not counts:
        return None
    return list(counts) if listed and len(set(counts)) > 1 else round(fmean(counts))


def spread(results: Results, column: Column, seed: int) -> dict[str, Any] | None:
    """Return who has how many samples of which class."""
    for known in results.spreads:
        if known.column == column and known.seed == seed:
            return {"names": known.names, "classes": known.classes, "counts": known.counts}
    return None


def matrices(chosen: dict[tuple[int, int], Result]) -> list[dict[str, Any]]:
    """Return the matrices that methods left, with the range of colours; without values where there are too many."""
    found: list[dict[str, Any]] = []
    spent = 0
    for (method, column), run in chosen.items():
        for name, matrix in run.matrices.items():
            about = {"m": method, "c": column, "name": name, "clients": matrix.clients or None}
            spent += len(matrix.values) * len(matrix.values[0])
            fits = {"values": matrix.values, "range": matrix.range} if spent <= MOST_ENTRIES else {}
            found.append(about | fits)
    return found
