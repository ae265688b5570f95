"""Networks that generate weights for clients, or how much of each client to mix in. Make them within `seeded`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def trunk(clients: int, embedding: int, hidden: int, depth: int) -> list["nn.Module"]:
    """Return layers from a client's place to hidden values: its embedding, a layer, and `depth` more behind ReLU."""
    from torch import nn

    more = [layer for _ in range(depth) for layer in (nn.ReLU(), nn.Linear(hidden, hidden))]
    return [nn.Embedding(clients, embedding), nn.Linear(embedding, hidden), *more]


def mixer(clients: int, layers: int, hidden: int) -> "nn.Module":
    """Return a network with one embedding that gives a number ≥ 0 for each layer and client, (layers, clients).

    At first they are positive, and about the same for all clients.
    """
    from torch import nn

    last = nn.Linear(hidden, layers * clients)
    nn.init.uniform_(last.weight, 0, 1)
    nn.init.zeros_(last.bias)
    out = [last, nn.Unflatten(-1, (layers, clients)), nn.ReLU()]
    return nn.Sequential(*trunk(1, hidden, hidden, depth=2), nn.ReLU(), *out)
