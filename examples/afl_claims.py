"""AFL's own claims on real digits: its Figure 2, Table 2 and Table 3.

Run it with `python examples/afl_claims.py`. Accuracies are on one fifth of the digits, held back from everybody.
"""

import warnings

import numpy as np
from rich.console import Console
from rich.table import Table

import fedgram as fg
from fedgram.data import digits
from fedgram.data.spread import spread

warnings.simplefilter("ignore", fg.errors.RankDeficient)  # some pixels of the digits are always white

DATA = digits()
ORDER = np.random.default_rng(0).permutation(len(DATA))
TEST, TRAIN = ORDER[: len(DATA) // 5], ORDER[len(DATA) // 5 :]
JOINT = np.linalg.pinv(DATA.x[TRAIN]) @ np.eye(10)[DATA.y[TRAIN]]


def train(method: fg.Method, partition: str, clients: int) -> tuple[str, str]:
    """Return the accuracy, and how far the weights are from the joint least-squares solution."""
    data = fg.Dataset("digits", DATA.x[TRAIN], DATA.y[TRAIN], DATA.classes, DATA.fingerprint)
    parts = spread(data, partition, clients=clients, seed=0)
    weights = method.fit(fg.make_clients(data, parts, test_fraction=0), classes=data.classes).model.weights
    right = (DATA.x[TEST] @ weights).argmax(axis=1) == DATA.y[TEST]
    return f"{right.mean():.2%}", f"{np.abs(weights - JOINT).max() / np.abs(JOINT).max():.0e}"


def invariance(title: str, settings: list[tuple[str, int]]) -> Table:
    table = Table(
        "partition", "clients", "accuracy", "distance to the joint solution", title=title, title_justify="left"
    )
    for partition, clients in settings:
        table.add_row(partition, f"{clients:,}", *train(fg.AFL(), partition, clients))
    return table


def ablation() -> Table:
    """Without removing the regularization intermediary, γ counts once per client and hurts more, the more there are."""
    gammas = (0.0, 0.1, 1.0, 10.0, 100.0)
    title = "Ablation without | with RI, Dirichlet(0.1) (Table 3)"
    table = Table("clients", *(f"γ = {gamma:g}" for gamma in gammas), title=title, title_justify="left")
    for clients in (100, 500, 1000):
        pairs = (
            [train(fg.AFL(gamma=gamma, ri=ri), "dirichlet:0.1", clients)[0] for ri in (False, True)] for gamma in gammas
        )
        table.add_row(f"{clients:,}", *(" | ".join(pair) for pair in pairs))
    return table


def main() -> None:
    console = Console()
    console.print(invariance("Any number of clients (Figure 2)", [("dirichlet:0.1", k) for k in (100, 500, 1000)]))
    skews = [f"dirichlet:{alpha}" for alpha in (0.005, 0.01, 0.1, 1)]
    console.print(invariance("Any heterogeneity (Table 2)", [(how, 100) for how in [*skews, "shards:2", "iid"]]))
    console.print(ablation())


if __name__ == "__main__":
    main()
