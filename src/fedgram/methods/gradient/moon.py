"""MOON: a sample's features are drawn to those of the global model, and away from those of the client's last one."""

from dataclasses import dataclass

from fedgram.core.schema import NotNegative, Positive
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.gradient_method import Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class MOON(FedAvg):
    """MOON — Li, He & Song 2021, (3): FedAvg with a contrast of features added to each client's loss.

    The term is μ · mean(-log(e^{s(z, z_g)/τ} / (e^{s(z, z_g)/τ} + e^{s(z, z_p)/τ}))), with the cosine s, features z of
    the model in training, z_g of the global model that the client was sent, and z_p of the client's own model as its
    last training left it (before the first one: the first weights). The paper tunes μ between 0.1 and 10.

    z is the input of the last layer. The authors put two more layers below it, in all methods that they compare: give
    such a network for the same setting. Without layers below the last, or with μ = 0, MOON is FedAvg.

    Parameters
    ----------
    mu
        μ, the strength of the contrast.
    tau
        τ, its temperature.

    """

    remembers = True

    mu: NotNegative = 1.0
    tau: Positive = 0.5

    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the weights after SGD with the contrast; remember them for the next time."""
        net = self.net_of(client)
        carried = {"global": global_weights, "previous": client.state["own"]}
        if self.mu > 0 and net.base.stop > net.buffers:
            trained = yield from self.descend(client, global_weights, Hooks(term=self._contrast), carried=carried)
        else:
            trained = yield from self.descend(client, global_weights)
        self.remember(client, trained)
        return trained

    def _contrast(self, now: Now) -> Tensor:
        """Return μ · softplus((s(z, z_p) - s(z, z_g))/τ), which is the term above: the mean over each batch."""
        from torch.nn.functional import cosine_similarity, softplus

        alike = [cosine_similarity(now.features, now.said_by(name)[0], dim=1) for name in ("previous", "global")]
        each = softplus((alike[0] - alike[1]) / self.tau)
        return self.mu * (each * now.share).sum(1)
