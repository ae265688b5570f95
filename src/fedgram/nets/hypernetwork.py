"""The part that networks which generate weights, or weights of mixtures, have in common."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def trunk(clients: int, embedding: int, hidden: int, depth: int) -> list["nn.Module"]:
    """Return layers from a client's place to its hidden values: its embedding, a layer, and `depth` more behind ReLU.

    Call it within `seeded`.
    """
    from torch import nn

    more = [layer for _ in range(depth) for layer in (nn.ReLU(), nn.Linear(hidden, hidden))]
    return [nn.Embedding(clients, embedding), nn.Linear(embedding, hidden), *more]
