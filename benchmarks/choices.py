"""Choices that methods make for each client, against the same choice for all clients: the loss by choosing, in points.

The rules were made on other data: seeds 10 to 15, and the other half of the type families. About an hour of CPU
time after the features are extracted. `python -m benchmarks.choices 6000` uses 6,000 images of CIFAR-10 only.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import fedgram as fg
from benchmarks.measure import Results
from fedgram.data.dataset import Dataset
from fedgram.data.partition import BY_GROUP, client_names, spread
from fedgram.features import load_features
from fedgram.heads.head import personal_model
from fedgram.methods.analytic.fedgram import OVERCONFIDENT
from fedgram.methods.analytic.fedlogit import CALIBRATED
from fedgram.models import Model

SEEDS, CLIENTS, IMAGES, BACKBONE = (0, 1, 2), 50, 20_000, "lite0:96"
LABELS = ("dirichlet:0.1", "dirichlet:0.5", "dirichlet:1")
NETWORK = "dnn"
BOUND = 0.5  # points
Accuracies = dict[str, float]


def settings(images: int | None) -> Iterator[tuple[str, Dataset, str, tuple[int, ...]]]:
    """Yield a title, a data set, a partition and seeds; with a number of images, CIFAR-10 alone."""
    some = images or IMAGES
    photos = load_features("cifar10", backbone=BACKBONE, samples=some)
    for partition in LABELS:
        yield f"CIFAR-10, {some:,} images", photos, partition, SEEDS
    if images is None:
        letters = _half_of_families(own_test=False)
        for partition in LABELS:
            yield "typefaces", letters, partition, SEEDS
        yield "typefaces", _half_of_families(own_test=True), BY_GROUP, SEEDS[:1]


def _half_of_families(*, own_test: bool) -> Dataset:
    """Return the letters of every second type family, from the second on."""
    data = load_features("typefaces", backbone=BACKBONE, own_test=own_test)
    families, parts = np.unique(data.groups)[1::2], ("", "_test")[: 1 + own_test]
    rows = {part: np.isin(getattr(data, f"groups{part}"), families) for part in parts}
    return replace(data, **{name + p: getattr(data, name + p)[rows[p]] for p in parts for name in ("x", "y", "groups")})


def measure(data: Dataset, partition: str, seed: int) -> Iterator[tuple[str, Accuracies]]:
    """Yield for each method the mean of the clients' accuracies: as chosen, and with the same choice for all."""
    parts = spread(data, partition, clients=CLIENTS, seed=seed)
    held_back = 0.0 if partition == BY_GROUP else 0.2
    names = client_names(data, partition, len(parts))
    clients = fg.make_clients(data, parts, test_fraction=held_back, seed=seed, names=names)

    def mean(model_of: Callable[[fg.Client], Model]) -> float:
        tested = [client for client in clients if len(client.y_test)]
        return float(np.mean([(model_of(client).predict(client.x_test) == client.y_test).mean() for client in tested]))

    def fitted(method: fg.Method) -> tuple[Any, Accuracies]:
        fit = method.fit(clients, classes=len(data.classes), seed=seed)
        found = {"chosen": mean(lambda client: fit.personal[client.name])}
        return fit, found if fit.model is None else found | {"global": mean(lambda client: fit.model)}

    alone = {"alone": fitted(fg.Local())[1]["chosen"]}
    _, found = fitted(fg.FedHiP())
    others = {"never alone": fg.FedHiP(alone=False), "α = 20": fg.FedHiP(alpha=20.0)}
    yield "FedHiP", found | alone | {what: fitted(method)[1]["chosen"] for what, method in others.items()}
    fit, found = fitted(fg.APFL())
    for lam in (0.3, 1.0):
        found[f"λ = {lam:g}"] = mean(lambda client, fit=fit, lam=lam: replace(fit.personal[client.name], lam=lam))
    yield "APFL", found | alone
    for method, expected in ((fg.FedGram(), OVERCONFIDENT), (fg.FedLogit(), CALIBRATED)):
        fit, found = fitted(method)
        how = {"temperature": expected, "member": True, "refine": False}
        found["not refined"] = mean(lambda q, fit=fit, how=how: personal_model(fit.published, q.x, q.y, **how).model)
        yield type(method).__name__, found | alone
    # For networks: the common network, a pull to it as in the paper, almost no pull, and a pull to a group's network.
    _, found = fitted(fg.PFedACnnL(network=NETWORK))
    networks = {"global": {"personalize": False}, "ε = 2500": {"epsilon": 2500.0}, "ε = 0.01": {"epsilon": 0.01}}
    networks["groups by labels"] = {"groups": "auto"}
    for what, changes in networks.items():
        found[what] = fitted(fg.PFedACnnL(network=NETWORK, **changes))[1]["chosen"]
    yield f"pFedACnnL, {NETWORK}", found


def main(images: int | None = None) -> None:
    for title, data, partition, seeds in settings(images):
        runs = [dict(measure(data, partition, seed)) for seed in seeds]
        results = Results(f"{title}, {partition}, seeds {', '.join(map(str, seeds))}: mean of clients' accuracies, %")
        for method in runs[0]:
            means = {what: 100 * np.mean([run[method][what] for run in runs]) for what in runs[0][method]}
            chosen = means.pop("chosen")
            results.note(f"{method}: chosen", f"{chosen:.2f}")
            for what, accuracy in means.items():
                results.note(f"  {what}", f"{accuracy:.2f}")
            results.at_most("  points below the best of these", max(means.values()) - chosen, BOUND)
        results.show()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
