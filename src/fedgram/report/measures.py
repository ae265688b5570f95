"""What a table can show of a run: accuracies, bytes, seconds, and what it took to reach an accuracy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedgram.experiments.results import METRICS, Result

MB, KIB = 1e6, 1024
SPANS = ("computing", "idle", "communication")  # of a client's time


@dataclass(frozen=True)
class Measure:
    """A figure of a run, and what it is in words; `of` also takes the accuracy in % that is to be reached."""

    about: str
    of: Callable[[Result, float], float | None]


def at_round(run: Result, metric: str, *, best: bool = False) -> float | None:
    """Return a run's accuracy in % at its end, or in its best round; a method without rounds has only the one."""
    if metric not in run.accuracy:
        return None
    rounds = run.rounds.get(metric, ())
    return 100 * max((run.accuracy[metric], *rounds) if best else (run.accuracy[metric],))


def rounds_to(run: Result, metric: str, reach: float) -> int | None:
    """Return how many rounds it took to reach an accuracy in %; 1 for a method of one message, None if never."""
    curve = run.rounds.get(metric) or [run.accuracy.get(metric, 0.0)]
    return next((number for number, value in enumerate(curve, start=1) if 100 * value >= reach), None)


def share_to(run: Result, metric: str, reach: float) -> float | None:
    """Return the share of its rounds that a run needed to reach an accuracy: all its rounds cost the same."""
    needed = rounds_to(run, metric, reach)
    return None if needed is None else needed / round_count(run)


def round_count(run: Result) -> int:
    """Return how many rounds a run had; 1 without any."""
    return max(map(len, run.rounds.values()), default=1) or 1


def _traffic(run: Result) -> float | None:
    return None if run.bytes_per_client is None else run.bytes_per_client / MB


def _mean(counts: Sequence[int]) -> float | None:
    return sum(counts) / len(counts) / MB if counts else None


def _part(of: Callable[[Result], float | None]) -> Callable[[Result, float], float | None]:
    """Return what a run had spent, of something, when it reached an accuracy."""

    def spent(run: Result, reach: float) -> float | None:
        share, whole = share_to(run, "client_mean", reach), of(run)
        return None if share is None or whole is None else share * whole

    return spent


def _rounds_to(run: Result, reach: float) -> float | None:
    return rounds_to(run, "client_mean", reach)


def bytes_a_round(run: Result) -> float | None:
    """Return the bytes of a client, up and down, in a round in which it was asked."""
    if run.bytes_per_client is None:
        return None
    # Where nobody has counted, all clients took part in all rounds.
    return run.bytes_per_client / (run.timing.get("asked") or round_count(run))


def seconds_a_round(run: Result) -> float | None:
    """Return the seconds of a round, without evaluations."""
    return None if run.seconds is None else run.seconds / round_count(run)


def _a_round(run: Result, _: float) -> float | None:
    found = bytes_a_round(run)
    return None if found is None else found / KIB


def _cpu_a_round(run: Result, _: float) -> float | None:
    return None if run.cpu is None else run.cpu / round_count(run)


def client_seconds(run: Result) -> float | None:
    """Return the seconds of a client in a run, whether it computes, waits or has a message under way.

    They are not known where clients train together, because the wait is not.
    """
    return sum(run.timing[span] for span in SPANS) if run.timing.keys() >= set(SPANS) else None


def _client_seconds_a_round(run: Result, _: float) -> float | None:
    total, asked = client_seconds(run), run.timing.get("asked")
    return total / asked if total is not None and asked else None


def _span(name: str) -> Callable[[Result, float], float | None]:
    return lambda run, _: run.timing.get(name)


def _accuracy(metric: str) -> Callable[[Result, float], float | None]:
    return lambda run, _: at_round(run, metric)


MEASURES = {
    **{metric: Measure(f"{about} in %", _accuracy(metric)) for metric, about in METRICS.items()},
    "up": Measure("MB a client sends", lambda run, _: _mean(run.up)),
    "down": Measure("MB a client receives", lambda run, _: _mean(run.down)),
    "traffic": Measure("MB a client sends and receives", lambda run, _: _traffic(run)),
    "kib_a_round": Measure("KiB a client sends and receives in a round that it takes part in", _a_round),
    "client_seconds": Measure("seconds of a client", lambda run, _: client_seconds(run)),
    "client_seconds_a_round": Measure("seconds of a client in a round", _client_seconds_a_round),
    "computing": Measure("seconds that a client computes", _span("computing")),
    "idle": Measure("seconds that a client waits for the slowest", _span("idle")),
    "communication": Measure("seconds that messages of a client are under way", _span("communication")),
    "cpu": Measure("CPU seconds of all clients and the server", lambda run, _: run.cpu),
    "cpu_a_round": Measure("CPU seconds of all clients and the server in a round", _cpu_a_round),
    "rounds_to": Measure("rounds to reach the accuracy", _rounds_to),
    "traffic_to": Measure("MB a client sends and receives to reach the accuracy", _part(_traffic)),
    "cpu_to": Measure("CPU seconds to reach the accuracy", _part(lambda run: run.cpu)),
}
