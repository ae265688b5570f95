"""BAFFLE: clients send how their loss changes in directions that the server knows, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import TrainedNet
from fedgram.nets.estimates import MOST_SEEDS, check_probing, gaussians, pass_once, weighted_mean
from fedgram.nets.layers import Vector, as_numbers
from fedgram.nets.stacked import around
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Learnt, Question

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@register
@dataclass(frozen=True, kw_only=True)
class BAFFLE(GradientMethod):
    """BAFFLE — Feng et al. 2024: the server steps along (1/K) Σ_k (ΔL_k/σ²) δ_k, of which clients send the ΔL_k alone.

    The server sends the weights and a seed, from which all draw the same K `directions` δ_k ~ N(0, σ²I). A client
    replies with ΔL_k = L(w + δ_k) - L(w) of its next batch (`central`: ½[L(w + δ_k) - L(w - δ_k)]), and with running
    means if there are any. The server steps with the mean of the ΔL_k by samples; if a number of the estimate exceeds
    `clip`, all are scaled down. The model is a moving average of the weights that keeps `ema` of itself (at first less:
    (1 + t)/(10 + t)). A round is one step on one batch; `epochs` and `local_steps` have no effect. It is FedSGD with
    many directions, a small σ, SGD, and neither clip nor ema.
    """

    quick = MappingProxyType({"rounds": 20, "lr": 0.05, "ema": 0.5})

    rounds: int = 1000
    local_steps: int | None = 1
    batch: int = 32
    momentum: float = 0.0
    weight_decay: float = 5e-4
    directions: int = 100
    sigma: float = 1e-4
    central: bool = False
    optimizer: Literal["adam", "sgd"] = "adam"
    clip: float | None = 0.3
    ema: float = 0.995

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        check_probing(self.directions, self.sigma, "sigma")
        if not 0 <= self.ema < 1:
            raise InvalidParameter(f"ema must be at least 0 and less than 1, got {self.ema}")
        if self.clip is not None and not self.clip > 0:
            raise InvalidParameter(f"clip must be a number > 0, or None, got {self.clip}")

    def fewest_samples(self, n: int) -> int:
        """Return of how few of a client's n samples a reply may be made: the last batch may be a short one."""
        return min(n, n % self.batch or self.batch)

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the moving average of the global weights."""
        net, global_weights = self.begin(clients)  # which says what to install where torch is missing
        import torch

        weights, model = torch.from_numpy(global_weights[net.buffers :].astype(np.float64)), global_weights
        optimizer = self._optimizer(weights)
        for number in clients.rounds_of(self.rounds):
            seed = int(clients.rng.integers(MOST_SEEDS))
            means = clients.mean(self.train, {"weights": global_weights, "seed": seed}, to=self.asked(clients))
            derivatives = means["changes"].astype(np.float64) / self.sigma  # δ_k is σ times a standard Gaussian
            weights.grad = torch.from_numpy(weighted_mean(derivatives, seed, len(weights)))
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(weights, self.clip, norm_type=float("inf"))
            optimizer.step()
            global_weights = np.concatenate([means["buffers"], weights.numpy()], dtype=np.float32)
            kept = min(self.ema, (1 + number) / (10 + number))
            model = (global_weights + kept * (model - global_weights)).astype(np.float32)
            model[: net.buffers] = means["buffers"]
            clients.report(number, self.model(clients, model))
        return self.model(clients, model)

    def _optimizer(self, weights: "Tensor") -> "Optimizer":
        from torch.optim import SGD, Adam

        if self.optimizer == "sgd":
            return SGD([weights], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return Adam([weights], lr=self.lr, betas=(0.9, 0.99), weight_decay=self.weight_decay)

    # client
    @step(batched=True, reply=lambda method, question: method.reply_to(question))
    def train(self, clients: Sequence[ClientSide], sent: Sequence[dict[str, Any]]) -> list[dict[str, Vector]]:
        """Return how the loss of the next batch changes in each direction, and the running means."""
        found = [self._look_around(client, **one) for client, one in zip(clients, sent, strict=True)]
        # Only now that nothing can fail any more: a step that is repeated must begin with the same batch.
        for client, (_, left) in zip(clients, found, strict=True):
            client.state["left"] = left
        return [reply for reply, _ in found]

    def reply_to(self, question: Question) -> dict[str, Learnt]:
        """Return what a client's reply must be; a loss changes in proportion to the length of the step."""
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
