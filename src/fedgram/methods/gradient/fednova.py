"""FedNova: clients that take more steps do not count for more."""

from dataclasses import dataclass

import numpy as np

from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """FedNova — Wang et al. 2020, Section 4: the server averages changes per step, then goes as far as usual.

    Client k goes from x to y_k by gradients with the weights a_k. So d_k = (x - y_k)/‖a_k‖₁ is the learning rate times
    their weighted mean. Then x ← x - τ_eff Σ p_k d_k with p_k = n_k/Σn, and τ_eff = Σ p_k ‖a_k‖₁ as in the authors'
    program. Without momentum ‖a_k‖₁ is the number of steps; with momentum m, τ steps count
    (τ - m(1 - m^τ)/(1 - m))/(1 - m). FedAvg weighs changes by p_k alone, so that with `epochs` a client with more
    batches moves the model more than its share of the samples. Running means have the weights p_k/‖a_k‖₁. If all take
    as many steps (`local_steps`), it is FedAvg to the bit. The paper's momentum at the server is `server` = "momentum".
    """

    adds = False

    def __post_init__(self) -> None:
        """Raise if a value makes no sense."""
        super().__post_init__()
        self.check_sgd("the length of its steps, ‖a‖₁, is known for SGD only")

    # server
    def average(self, clients: Clients, global_weights: Vector) -> Vector:
        """Return x - τ_eff Σ p_k d_k for the clients that are asked and reply."""
        asked, heard = self.asked(clients), []
        lengths = {name: self.steps_length(clients.samples[name]) for name in asked}  # ‖a_k‖₁
        usual = max(lengths.values())
        weights = {name: clients.samples[name] * (usual / lengths[name]) for name in asked}
        mean: Vector = clients.mean(
            self.train, global_weights, to=asked, weights=weights, heard=lambda name, _: heard.append(name)
        )
        n = np.array([clients.samples[name] for name in sorted(heard)], dtype=np.float64)
        ratio = np.array([lengths[name] for name in sorted(heard)]) / usual
        # The mean is Σ (p_k/‖a_k‖₁) y_k over the sum of these weights: x goes τ_eff times that sum of the way to it.
        way = float((n @ ratio) / n.sum() * (n @ (1 / ratio)) / n.sum())
        if way == 1:
            return mean
        moved = (global_weights + way * (mean.astype(np.float64) - global_weights)).astype(np.float32)
        buffers = self.net(clients.shape, len(clients.classes)).buffers
        moved[:buffers] = mean[:buffers]
        return moved
