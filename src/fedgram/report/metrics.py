"""Figures of a run: metrics, by which methods are compared, and measures of cost such as bytes and seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import floor, isnan, log10, nan
from typing import TypeAlias

from fedgram.core.errors import UnknownName
from fedgram.evaluation import Errors
from fedgram.experiments.results import METRICS, Result, Results

DIGITS = 4  # of figures that may be of any size
Pairs: TypeAlias = Sequence[tuple[float, float]]
Values: TypeAlias = Sequence[float | None]
_ERRORS = {
    "rmse": ("RMSE", "root of the mean squared error over all test samples"),
    "mae": ("MAE", "mean absolute error over all test samples"),
    "r2": ("R²", "share of the variance of all test samples that is explained"),
    "client_rmse": ("client mean RMSE", "mean of the clients' RMSE"),
}
SPANS = ("computing", "idle", "communication")  # of a client's time


@dataclass(frozen=True)
class Metric:
    """A figure of a run.

    `value` and `clients` (of each client) are as recorded; `factor` converts them to the unit shown. The value is the
    ratio of two sums over clients, or its root with `root`; `pairs` has each client's parts of both sums, for the
    interval. `paired` says that methods can be compared by the clients' figures, since the value is made of them.
    """

    key: str
    short: str
    about: str
    name: str
    value: Callable[[Result], float | None]
    clients: Callable[[Result], Values]
    pairs: Callable[[Result], Pairs] = lambda _: ()
    factor: float = 1.0
    unit: str = ""
    decimals: int | None = 4  # None: as many as make four digits
    lower: bool = False  # whether less is better
    root: bool = False
    paired: bool = True

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} in {self.unit}" if self.unit else self.name

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a share of samples that are right, in %."""
        return self.key in METRICS

    def shown(self, run: Result) -> float | None:
        """Return a run's figure as it is shown."""
        value = self.value(run)
        return None if value is None else self.factor * value

    def places(self, value: float) -> int:
        """Return the number of decimals of a figure."""
        if self.decimals is not None:
            return self.decimals
        return max(0, DIGITS - 1 - floor(log10(abs(value)))) if value else DIGITS - 1

    def say(self, value: float) -> str:
        """Write a figure with its unit."""
        return f"{value:.{self.places(value)}f}" + (f" {self.unit}" if self.unit else "")


def _accuracy(key: str) -> Metric:
    def pairs(run: Result) -> Pairs:
        known = [(float(right), float(n)) for right, n in zip(run.correct, run.tested, strict=False) if n]
        match key:
            case "client_mean":
                return [(right / n, 1.0) for right, n in known]
            case "pooled":
                return known
        return ()  # the worst tenth, and the best round, are chosen by their own accuracies

    return Metric(
        key,
        key.replace("_", " "),
        METRICS[key],
        "accuracy",
        lambda run: run.accuracy.get(key),
        lambda run: run.by_client,
        pairs,
        factor=100.0,
        unit="%",
        decimals=2,
        paired=key in ("client_mean", "pooled"),
    )


def _brier_of_clients(run: Result) -> Values:
    return [total / n if n else None for total, n in zip(run.judged.squared, run.tested, strict=False)]


PROBABILITIES = {
    "brier": Metric(
        "brier",
        "Brier score",
        "mean squared distance of the probabilities from what happened",
        "Brier score",
        lambda run: run.judged.probabilities.get("brier"),
        _brier_of_clients,
        lambda run: [(total, float(n)) for total, n in zip(run.judged.squared, run.tested, strict=False) if n],
        lower=True,
    ),
    "calibration_error": Metric(
        "calibration_error",
        "calibration error",
        "how far confidence and accuracy are apart, in ten ranges of confidence",
        "calibration error",
        lambda run: run.judged.probabilities.get("calibration_error"),
        lambda run: run.judged.calibration_errors,
        lower=True,
        paired=False,
    ),
}
# Shown beside the chosen metric.
BESIDE = (*PROBABILITIES, "rmse", "mae", "r2")


def _errors_of(run: Result, outcome: str) -> Sequence[Errors | None]:
    return run.judged.clients.get(outcome or next(iter(run.judged.outcomes), ""), ())


def _error_metric(key: str, kind: str, outcome: str) -> Metric:
    """Return a metric of a numeric outcome; "" is the first that a run has."""
    measure = "rmse" if kind == "client_rmse" else kind

    def clients(run: Result) -> Values:
        values = [nan if found is None else getattr(found, measure) for found in _errors_of(run, outcome)]
        return [None if isnan(value) else value for value in values]  # R² is not known where the outcome does not vary

    def value(run: Result) -> float | None:
        if kind == "client_rmse":
            known = [found for found in clients(run) if found is not None]
            return sum(known) / len(known) if known else None
        errors = run.judged.errors
        return errors.get(outcome or next(iter(errors), ""), {}).get(measure)

    def pairs(run: Result) -> Pairs:
        known = [found for found in _errors_of(run, outcome) if found is not None]
        match kind:
            case "client_rmse":
                return [(found.rmse, 1.0) for found in known]
            case "mae":
                return [(found.absolute, float(found.n)) for found in known]
            case "rmse":
                return [(found.squared, float(found.n)) for found in known]
        # Squares about the mean of all: where that lies makes no difference to first order.
        mean = sum(found.total for found in known) / max(sum(found.n for found in known), 1)
        return [(found.squared, found.spread + found.n * (found.total / found.n - mean) ** 2) for found in known]

    short, about = _ERRORS[kind]
    return Metric(
        key,
        short,
        about,
        short,
        value,
        clients,
        pairs,
        decimals=4 if kind == "r2" else None,
        lower=kind != "r2",
        root=kind == "rmse",
        paired=kind != "r2",  # of a client it is about that client's own mean
    )


@cache
def metric_of(key: str) -> Metric:
    """Return a metric by its key."""
    if key in METRICS:
        return _accuracy(key)
    if key in PROBABILITIES:
        return PROBABILITIES[key]
    kind, _, outcome = key.partition(":")
    if kind not in _ERRORS:
        raise UnknownName("metric", key, [*METRICS, *PROBABILITIES, *_ERRORS])
    return _error_metric(key, kind, outcome)


def metrics_of(results: Results) -> list[str]:
    """Return the keys of the metrics in the results; the first is the usual one."""
    runs = results.finished
    if not any(run.is_numeric for run in runs):
        known = [key for key, metric in PROBABILITIES.items() if any(metric.value(run) is not None for run in runs)]
        return [*METRICS, *known]
    if all(len(run.judged.outcomes) <= 1 for run in runs):
        return list(_ERRORS)
    outcomes = dict.fromkeys(name for run in runs for name in run.judged.outcomes)
    return [f"{kind}:{name}" for name in outcomes for kind in _ERRORS]


def chosen(results: Results, asked: str | None) -> str:
    """Return the key of the metric that was asked for: by default the usual one, and that of the first outcome."""
    known = metrics_of(results)
    if asked is None:
        return known[0]
    found = asked if asked in known else next((key for key in known if key.startswith(f"{asked}:")), None)
    if found is None:
        raise UnknownName("metric of these results", asked, known)
    return found


def metric_in(results: Results, key: str) -> Metric:
    """Return a metric with the outcome and the unit that the results say."""
    metric, (kind, _, outcome) = metric_of(key), key.partition(":")
    if kind not in _ERRORS:
        return metric
    told = {
        (name, unit)
        for run in results.finished
        for name, unit in list(run.judged.outcomes.items())[: None if outcome else 1]
        if name == outcome or not outcome
    }
    if len(told) != 1:
        return metric
    [(name, unit)] = told
    return replace(metric, name=f"{metric.name} of {name}", unit="" if kind == "r2" else unit)


def beside(results: Results, key: str) -> list[str]:
    """Return the other metrics that a reader wants to see together with one."""
    _, colon, outcome = key.partition(":")
    known = metrics_of(results)
    return [other for kind in BESIDE if (other := f"{kind}{colon}{outcome}") in known and other != key]


def at_round(run: Result, metric: str, *, best: bool = False) -> float | None:
    """Return a run's accuracy in % at its end, or in its best round; a method without rounds has only the one."""
    if metric not in run.accuracy:
        return None
    rounds = run.rounds.get(metric, ())
    return 100 * max((run.accuracy[metric], *rounds) if best else (run.accuracy[metric],))


def rounds_to(run: Result, metric: str, reach: float) -> int | None:
    """Return the number of rounds to reach an accuracy in %; 1 for a method of one message, None if never."""
    curve = run.rounds.get(metric) or [run.accuracy.get(metric, 0.0)]
    return next((number for number, value in enumerate(curve, start=1) if 100 * value >= reach), None)


def round_count(run: Result) -> int:
    """Return the number of rounds of a run; 1 for a run without rounds."""
    return max(map(len, run.rounds.values()), default=1) or 1


def bytes_a_round(run: Result) -> float | None:
    """Return the bytes of a client, up and down, in a round in which it was asked."""
    if run.bytes_per_client is None:
        return None
    # Without counts, all clients took part in all rounds.
    return run.bytes_per_client / (run.timing.get("asked") or round_count(run))


def seconds_a_round(run: Result) -> float | None:
    """Return the seconds of a round, without evaluations."""
    return None if run.seconds is None else run.seconds / round_count(run)


def client_seconds(run: Result) -> float | None:
    """Return the seconds of a client in a run, whether it computes, waits or has a message under way.

    They are not known where clients train together, because the wait is not.
    """
    return sum(run.timing[span] for span in SPANS) if run.timing.keys() >= set(SPANS) else None
