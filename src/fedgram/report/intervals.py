"""How far an accuracy may be off: 95 % intervals from the clients of one run."""

from math import sqrt

from fedgram.experiments.results import Result

LEVEL = 0.95


def half_width(run: Result, metric: str) -> float | None:
    """Return half of the interval around a run's accuracy, as a share; None where its clients do not tell.

    The clients are taken as a sample of all clients there could be. Of the mean over clients this is the t interval;
    the accuracy over all samples is a ratio of two sums over clients, with the usual variance of such a ratio.
    """
    known = [(right, n) for right, n in zip(run.correct, run.tested, strict=False) if n]
    match metric:
        case "client_mean":
            pairs = [(right / n, 1.0) for right, n in known]
        case "pooled":
            pairs = [(float(right), float(n)) for right, n in known]
        case _:
            return None  # the worst tenth is chosen by its own accuracies
    clients = len(pairs)
    if clients < 2:
        return None
    from scipy.special import stdtrit

    total = sum(n for _, n in pairs)
    accuracy = sum(right for right, _ in pairs) / total
    squares = sum((right - accuracy * n) ** 2 for right, n in pairs)
    error = sqrt(clients / (clients - 1) * squares) / total
    return float(stdtrit(clients - 1, (1 + LEVEL) / 2)) * error
