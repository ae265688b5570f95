"""pFedLA: for each client a small network at the server learns how much of every client to mix in, layer by layer."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.core.schema import Count, Natural, NotNegative
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.methods.gradient.pfedhn import trunk
from fedgram.nets import Module, Net, Tensor, Vector
from fedgram.nets.factories import seeded
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register

Flags: TypeAlias = npt.NDArray[np.bool_]
TINY = 1e-30  # less than any sum of weights that counts


@register
@dataclass(frozen=True, kw_only=True)
class PFedLA(OwnModels):
    """pFedLA — Ma et al. 2022, Algorithm 1: client i trains from a mixture of all clients, layer by layer.

    The mixture is θ̄_i^l = Σ_j α_ij^l θ_j^l. A network of the client's own at the server, with an embedding v_i as its
    input, gives the weights α_i^l, which sum to 1 in each layer l. After training, the client's change Δ_i moves that
    network's parameters ψ_i by η (∂θ̄_i/∂(ψ_i, v_i))ᵀΔ_i; the inner products ⟨θ_j^l, Δ_i^l⟩ are enough for it.
    `retained` layers, those with the largest α_ii^l, stay as the client has them and are not sent to it (HeurpFedLA);
    with all of them each client trains alone. Running means are mixed by the mean of α_i over the layers. The
    result has this mean in fit.notes["aggregation weights"], a row for each client.

    Parameters
    ----------
    server_lr
        η, the learning rate of the hypernetworks.
    hidden
        The width of their layers.
    retained
        k, how many layers a client keeps as they are (HeurpFedLA).

    """

    server_lr: NotNegative = 0.005
    hidden: Count = 100
    retained: Natural = 0

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        layers, listed = net.layer_slices, clients.names
        if self.retained > len(layers):
            raise InvalidParameter(f"{net.network!r} has {len(layers)} layers to be retained, got {self.retained}")
        places = {name: place for place, name in enumerate(sorted(listed))}
        with seeded(clients.rng):
            networks = {name: mixer(len(places), len(layers), self.hidden) for name in places}
        known, eye = np.tile(first, (len(places), 1)), np.eye(len(places), dtype=np.float32)  # θ, and e_i
        for number in clients.rounds_of(self.rounds):
            here = np.isin(list(places), clients.names)  # lost clients are in no mixture any more
            mixed, sent = {}, {}
            for name in self.asked(clients):
                alpha = weights(networks[name], eye[places[name]], here).detach().numpy()
                by_own = np.argsort(-alpha[:, places[name]], kind="stable")
                alpha[by_own[: self.retained]] = eye[places[name]]
                mixed[name] = mixture(net, alpha, known)  # θ̄_i
                given = np.isin(np.arange(len(layers)), by_own[self.retained :])
                sent[name] = {"layers": given, "mixed": mixed[name][net.numbers_of(given)]}
            trained: dict[str, Any] = dict(clients.call(self.train, per_client=sent))
            for name, own in trained.items():
                change = own - mixed[name]  # Δ_i
                products = np.stack([known[:, part] @ change[part] for part in layers])  # ⟨θ_j^l, Δ_i^l⟩
                products *= sent[name]["layers"][:, None]  # what is retained does not depend on ψ_i
                learn(networks[name], eye[places[name]], here, products, self.server_lr)
            for name, own in trained.items():
                known[places[name]] = own
            clients.report(number)
        found = [weights(networks[name], eye[place], here).mean(0).detach().numpy() for name, place in places.items()]
        order = [places[name] for name in listed]
        clients.note("aggregation weights", np.stack(found)[np.ix_(order, order)])

    # client
    @training_step(reply=lambda method, question: method.vector_of(question))
    def train(self, client: ClientSide, sent: dict[str, Any]) -> Training[Vector]:
        """Return the weights after SGD from the mixture; layers that were not sent are the client's own."""
        start = np.array(client.state["own"])
        start[self.net_of(client).numbers_of(sent["layers"])] = sent["mixed"]
        own = yield from self.descend(client, start)
        self.take(client, own)
        return own


def mixer(clients: int, layers: int, hidden: int) -> Module:
    """Return a network with one embedding that gives a number ≥ 0 for each layer and client, (layers, clients).

    At first they are positive, and about the same for all clients.
    """
    from torch import nn

    last = nn.Linear(hidden, layers * clients)
    nn.init.uniform_(last.weight, 0, 1)
    nn.init.zeros_(last.bias)
    out = [last, nn.Unflatten(-1, (layers, clients)), nn.ReLU()]
    return nn.Sequential(*trunk(1, hidden, hidden, depth=2), nn.ReLU(), *out)


def weights(network: Module, own: Vector, here: Flags) -> Tensor:
    """Return α_i (layers, clients), which sums to 1 in each layer; where all are 0, the client's own alone."""
    import torch

    found = network(torch.tensor(0)) * torch.from_numpy(here)
    total = found.sum(1, keepdim=True)
    return torch.where(total > 0, found / total.clamp(min=TINY), torch.from_numpy(own))


def learn(network: Module, own: Vector, here: Flags, products: Vector, lr: float) -> None:
    """Step by η (∂θ̄_i/∂(ψ_i, v_i))ᵀΔ_i, which is η Σ_jl ⟨θ_j^l, Δ_i^l⟩ ∂α_ij^l/∂(ψ_i, v_i)."""
    import torch

    alpha, parameters = weights(network, own, here), list(network.parameters())
    climbed = torch.autograd.grad(alpha, parameters, torch.from_numpy(products))
    with torch.no_grad():
        for parameter, gradient in zip(parameters, climbed, strict=True):
            parameter.add_(gradient, alpha=lr)


def mixture(net: Net, alpha: Vector, known: Vector) -> Vector:
    """Return Σ_j α_j^l θ_j^l, layer by layer; running means by the mean of α over the layers."""
    means = alpha.mean(axis=0) @ known[:, : net.buffers]
    return np.concatenate([means, *(row @ known[:, part] for row, part in zip(alpha, net.layer_slices, strict=True))])
