"""BAFFLE: clients send how their loss changes in directions that the server knows, and nothing else."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.core.schema import BelowOne, Count, NotNegative, Positive
from fedgram.methods.gradient.gradient_method import GradientMethod, training_step
from fedgram.nets import TrainedNet, Vector
from fedgram.nets.estimates import MOST_SEEDS, around, gaussians, pass_once, weighted_mean
from fedgram.nets.layers import as_numbers
from fedgram.nets.optimizers import CLIENT_OPTIMIZERS, ClientOptimizer, as_text, read
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Learnt, Question


@register
@dataclass(frozen=True, kw_only=True)
class BAFFLE(GradientMethod):
    """BAFFLE — Feng et al. 2024: the server steps along (1/K) Σ_k (ΔL_k/σ²) δ_k, of which clients send the ΔL_k alone.

    The server sends the weights and a seed, from which all draw the same K `directions` δ_k ~ N(0, σ²I). A client
    replies with ΔL_k = L(w + δ_k) - L(w) of its next batch (`central`: ½[L(w + δ_k) - L(w - δ_k)]), and with running
    means if there are any. The server steps with the mean of the ΔL_k by samples; if a number of the estimate exceeds
    `clip`, all are scaled down. The model is a moving average of the weights that keeps `ema` of itself (at first less:
    (1 + t)/(10 + t)). A round is one step on one batch; `epochs` and `local_steps` have no effect. With many
    directions, a small σ, SGD, and neither clip nor ema, BAFFLE approaches FedSGD.

    Parameters
    ----------
    rounds
        T, the number of rounds, each a single step.
    local_steps
        No effect: a round is one step.
    batch
        The number of samples in a round's batch.
    momentum
        The momentum of the server, if its optimizer is SGD.
    weight_decay
        The share of the weights that is added to the estimate.
    directions
        K, the number of directions in a round.
    sigma
        σ, the standard deviation of the directions' numbers.
    central
        Whether ΔL_k is half the difference of the losses at w + δ_k and w - δ_k.
    optimizer
        The server's optimizer: "adam:β₁:β₂:ε" (β₂ is 0.99) or "sgd".
    clip
        The largest absolute value in an estimate; none turns clipping off.
    ema
        The share of its old value that the moving average of the weights keeps.

    """

    adds = True
    quick = MappingProxyType({"rounds": 20, "lr": 0.05, "ema": 0.5})

    rounds: Count = 1000
    local_steps: Count | None = 1
    batch: Count = 32
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 5e-4
    directions: Count = 100
    sigma: Positive = 1e-4
    central: bool = False
    optimizer: str | ClientOptimizer | None = "adam"
    clip: Positive | None = 0.3
    ema: BelowOne = 0.995

    def fewest_samples(self, n: int) -> int:
        """Return the smallest number of samples behind a reply of a client with n: its last batch may be short."""
        return min(n, n % self.batch or self.batch)

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the moving average of the global weights."""
        net, global_weights = self.begin(clients)  # which says what to install where torch is missing
        import torch

        weights, model = torch.from_numpy(global_weights[net.buffers :].astype(np.float64)), global_weights
        take = self._optimizer.begin(weights)
        for number in clients.rounds_of(self.rounds):
            seed = int(clients.rng.integers(MOST_SEEDS))
            means = clients.mean(self.train, {"weights": global_weights, "seed": seed}, to=self.asked(clients))
            derivatives = means["changes"].astype(np.float64) / self.sigma  # δ_k is σ times a standard Gaussian
            gradient = torch.from_numpy(weighted_mean(derivatives, seed, len(weights)))
            if self.clip is not None:
                gradient *= (self.clip / (gradient.abs().max() + 1e-6)).clamp(max=1.0)
            if self.weight_decay:
                gradient.add_(weights, alpha=self.weight_decay)
            take(weights, gradient, self.scheduled(self.lr, number))
            global_weights = np.concatenate([means["buffers"], weights.numpy()], dtype=np.float32)
            kept = min(self.ema, (1 + number) / (10 + number))
            model = (global_weights + kept * (model - global_weights)).astype(np.float32)
            model[: net.buffers] = means["buffers"]
            clients.report(number, self.model(clients, model))
        return self.model(clients, model)

    @property
    def _optimizer(self) -> ClientOptimizer:
        """The optimizer of the server's steps; in the paper Adam has β₂ = 0.99."""
        kinds, text = CLIENT_OPTIMIZERS, as_text(self.optimizer) or "adam"
        return read("optimizer", text, kinds, momentum=self.momentum, beta2=0.99)

    # client
    @training_step(reply=lambda method, question: method.reply_to(question))
    def train(self, client: ClientSide, sent: dict[str, Any]) -> dict[str, Vector]:
        """Return the change of the next batch's loss in each direction, and the running means."""
        reply, client.state["left"] = self._look_around(client, **sent)
        return reply

    def reply_to(self, question: Question) -> dict[str, Learnt]:
        """Return the rule for a client's reply; a loss changes in proportion to the length of the step."""
        changes = Learnt((self.directions,), unit=self.sigma)
        return {"changes": changes, "buffers": Learnt((self.net_for(question).buffers,))}

    def _look_around(self, client: ClientSide, weights: Vector, seed: int) -> tuple[dict[str, Vector], Any]:
        """Return the reply, and the samples that are left of this epoch."""
        import torch

        net = self.net_of(client)
        left = client.state.get("left", ())  # of this epoch
        left = left if len(left) else client.rng.permutation(len(client.y))
        batch, left = left[: self.batch], left[self.batch :]
        x = net.prepare(torch.from_numpy(as_numbers(client.x[batch])).unsqueeze(0))
        y = torch.from_numpy(client.y[batch]).unsqueeze(0)
        buffers, w = torch.from_numpy(weights[None].copy()).tensor_split([net.buffers], dim=1)
        with torch.no_grad(), net.training([client.rng]):
            losses = around(net, w, buffers, x, y, torch.full(y.shape, 1 / y.shape[1]))
            directions = gaussians(seed, self.directions, w.shape[1])
            changes = [losses.along(some, self.sigma, central=self.central) for some in directions]
            pass_once(net, w, buffers, x)
        if not np.isfinite(found := torch.cat(changes).float().numpy()).all():
            raise InvalidData(f"training diverged: take a smaller lr than {self.lr}, or scale the samples")
        return {"changes": found, "buffers": buffers[0].numpy()}, left
