"""How far a figure may be off: 95 % intervals from the clients of one run."""

from math import sqrt

from fedgram.experiments.results import Result
from fedgram.report.metrics import metric_of

LEVEL = 0.95


def half_width(run: Result, metric: str) -> float | None:
    """Return half of the interval around a run's figure, as recorded (a share); None where its clients do not tell.

    The clients are taken as a sample of all clients there could be. Of the mean over clients this is the t interval; a
    figure over all samples is a ratio of two sums over clients, with the usual variance of such a ratio. That of a root
    follows from its derivative.
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
