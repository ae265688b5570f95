"""No tuning is needed: no automatic setting is much worse than a ridge chosen by leave-one-out.

Real CIFAR-10 features, from 100 to 10,000 samples in all, with and without label skew. Marked slow: half an hour on one
core. `python -m pytest -m slow -s tests/methods/test_no_tuning.py` prints the accuracies, too.
"""

import warnings
from functools import cache
from typing import Literal, get_args, get_type_hints

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import FedgramError, RankDeficient
from fedgram.features import load_features

SEEDS, CLIENTS, TESTED, SLACK = range(5), 10, 8_000, 0.02
METHODS = {
    "local": fg.Local(),
    "fedhip": fg.FedHiP(),
    "apfl": fg.APFL(),
    "fedgram": fg.FedGram(),
    "fedlogit": fg.FedLogit(),
}
# Automatic choices there are a ridge for each layer, and the groups, in networks of their own; a ridge on
# features says nothing about it.
ELSEWHERE = {"fedacnnl", "pfedacnnl"}


def test_no_method_with_automatic_settings_is_forgotten():
    automatic = {
        name
        for name, method in fg.registry.items()
        # Among its numbers; "auto" as a network says nothing about tuning.
        if any(
            Literal["auto"] in get_args(hint) and str not in get_args(hint) for hint in get_type_hints(method).values()
        )
    }
    assert automatic == METHODS.keys() | ELSEWHERE


@cache
def cifar10():
    try:
        return load_features("cifar10", backbone="lite0:96", own_test=True)
    except FedgramError as error:
        pytest.skip(f"CIFAR-10 features are neither in the cache nor to be had: {error}")


def spread(n, alpha, seed):
    """Return clients with n training samples in all, and 8,000 of the same distributions to test on."""
    data, rng = cifar10(), np.random.default_rng([seed, n])
    drawn = rng.permutation(len(data.y))[: n + TESTED]
    clients = []
    for k, part in enumerate(
        fg.partition.dirichlet(data.y[drawn], clients=CLIENTS, alpha=alpha, seed=seed, min_size=2)
    ):
        train, test = np.split(drawn[rng.permutation(part)], [max(1, round(len(part) * n / len(drawn)))])
        clients.append(fg.Client(f"client-{k}", data.x[train], data.y[train], data.x[test], data.y[test]))
    return clients


def ridge(x, y):
    """Return the weights and the intercept of a ridge regression whose ridge has the least leave-one-out error."""
    x, targets = x.astype(float), np.eye(10)[y]
    mean, frequencies = x.mean(axis=0), targets.mean(axis=0)
    rows, left = x - mean, targets - frequencies
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    u, s, vt = u[:, s > 1e-8 * s[0]], s[s > 1e-8 * s[0]], vt[s > 1e-8 * s[0]]
    best, chosen = np.inf, np.zeros((x.shape[1], 10))
    for value in np.geomspace(1e-5, 1e3, 41) * (s**2).mean() if len(s) else ():
        shrink = s**2 / (s**2 + value)
        leverage = 1 / len(x) + (u**2) @ shrink
        error = (((left - u @ (shrink[:, None] * (u.T @ left))) / (1 - leverage)[:, None]) ** 2).mean()
        if error < best:
            best, chosen = error, vt.T @ ((s / (s**2 + value))[:, None] * (u.T @ left))
    return chosen, frequencies - mean @ chosen


def accuracy(model, x, y):
    weights, intercept = model
    return ((x @ weights + intercept).argmax(axis=1) == y).mean()


def accuracies(n, alpha, seed):
    """Return the clients' mean accuracy by method, and that of the models for all on the standard test set."""
    data, clients = cifar10(), spread(n, alpha, seed)
    pooled = ridge(np.concatenate([c.x for c in clients]), np.concatenate([c.y for c in clients]))
    own = {"ridge": np.mean([accuracy(pooled, c.x_test, c.y_test) for c in clients])}
    own["own ridge"] = np.mean([accuracy(ridge(c.x, c.y), c.x_test, c.y_test) for c in clients])
    standard = {"ridge": accuracy(pooled, data.x_test, data.y_test)}
    for name, method in METHODS.items():
        fit = method.fit(clients, classes=10)
        own[name] = fit.evaluation.client_mean
        if fit.model is not None:
            standard[name] = (fit.model.predict(data.x_test) == data.y_test).mean()
    return own, standard


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [100.0, 0.1], ids=["alike", "skewed"])
@pytest.mark.parametrize("n", [100, 300, 1_000, 3_000, 10_000])
def test_never_far_below_the_better_of_local_and_global_ridge(n, alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        runs = [accuracies(n, alpha, seed) for seed in SEEDS]
    own, standard = ({name: np.mean([run[i][name] for run in runs]) for name in runs[0][i]} for i in range(2))
    for title, means in (("own", own), ("standard", standard)):
        print(f"n={n} alpha={alpha} {title:8}", *(f"{name} {100 * mean:.2f}" for name, mean in means.items()))
    bar = max(own["ridge"], own["own ridge"])
    for name in METHODS:
        # Training alone cannot be as good as the pooled ridge; it is measured against its own kind.
        assert own[name] >= (own["own ridge"] if name == "local" else bar) - SLACK, name
    for name in standard:
        assert standard[name] >= standard["ridge"] - SLACK, name
