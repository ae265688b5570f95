"""Every client for itself: what federation has to beat."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram.heads import adapt
from fedgram.heads.leastsquares import classifier, own_classifier
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.parameters import NotNegative
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Local — a ridge per client on its own samples; nothing is sent, and there is no global model.

    This is what a client can do alone; the reference line at the other end is the centralised solution. "auto" takes
    the ridge of least leave-one-out error on the client's own samples, exactly and without refitting. The ridge does
    not shrink the intercept.
    """

    personal = True

    ridge: NotNegative | Literal["auto"] = "auto"
    intercept: bool = True

    def serve(self, clients: Clients) -> None:
        """Let every client train alone."""
        for _ in clients.call(self.train):
            pass

    @step
    def train(self, client: ClientSide) -> None:
        """Keep the ridge solution of the client's own samples."""
        moments, own = client.moments(), None
        if self.ridge == "auto":
            targets = np.eye(len(client.classes))[client.y]
            own = adapt.own_ridge(client.x.astype(np.float64), targets, intercept=self.intercept)
        if own is not None:
            client.keep(own_classifier(moments, own, client.y, intercept=self.intercept))
        else:
            ridge = 1.0 if self.ridge == "auto" else self.ridge
            client.keep(classifier(moments, ridge, intercept=self.intercept))
