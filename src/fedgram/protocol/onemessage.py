"""Methods that publish, and among them those of one message: moments go up, something published comes down."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.blocks import as_blocks
from fedgram.core.columns import Columns, difference
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.core.labels import Classes
from fedgram.data.client import Client
from fedgram.models import Model
from fedgram.moments.accumulate import check_finite
from fedgram.moments.basis import Basis
from fedgram.moments.kind import described
from fedgram.moments.moments import Moments
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.pool import Pool

LARGEST = 1e100  # what sums of products of features can still be made of


@dataclass(frozen=True, kw_only=True)
class Publishing(Method):
    """Base of methods whose server publishes a message from which any client can make its own model."""

    def reveals(self, published: Any) -> str:
        """Say what of the pooled moments can be computed from what is published, "" for nothing."""
        return ""

    @step
    def personalize(self, client: ClientSide, published: Any) -> None:
        """Keep the client's own model; a method without personal ones is never asked."""
        raise TypeError(f"{type(self).__name__} must define personalize(self, client, published)")

    def model_for(self, published: Any, client: Client, *, member: bool = False, basis: Basis | None = None) -> Model:
        """Return the model of a client that needs nothing but what was published.

        `member` says whether its samples are in the total that was published from.
        """
        if client.features != published.features:
            raise Mismatch(
                f"client {client.name!r} has {described(client.features)}, not {described(published.features)}"
            )
        made = basis is not None and basis.centre is None
        columns: Columns = () if made else getattr(published, "columns", ())
        if columns and (unlike := difference(client.columns, columns)):
            raise Mismatch(f"client {client.name!r} {unlike}")
        if not len(client.x):
            raise InvalidData(f"client {client.name!r} has no samples to make a model of its own from")
        for block in as_blocks(client.x):
            check_finite(block)
            if np.abs(block).max() > LARGEST:
                raise InvalidData(f"client {client.name!r} has features too large to be squared: rescale them")
        side = ClientSide(client, classes=published.classes, columns=columns, member=member, basis=basis)
        self.personalize(side, published)
        if side.model is None:
            raise TypeError(f"{type(self).__name__}.personalize must call client.keep(model)")
        return side.model


@dataclass(frozen=True, kw_only=True)
class OneMessage(Publishing):
    """Base of methods of one message: a subclass says what is published, and what a client makes of it.

    What is published depends on the pooled moments alone. So clients can join and leave afterwards (`fit.add`,
    `fit.remove`), and a client that was never there gets a model of its own (`model_for`).
    """

    finds_columns = True

    # server
    def serve(self, clients: Clients) -> Model:
        """Add up, publish, and let every client personalize."""
        published = self.publish(clients.pool(self.summarize))
        if self.personal:
            if revealed := self.reveals(published):
                clients.warn_of_two(revealed)
            clients.each(self.personalize, published)
        return self.global_model(published)

    def publish(self, pool: Pool) -> Any:
        """Return the message to all clients."""
        raise TypeError(f"{type(self).__name__} must define publish(self, pool)")

    def global_model(self, published: Any) -> Model:
        """Return the global model in what was published, by default that itself."""
        return published  # type: ignore[no-any-return]

    # client
    @step
    def summarize(self, client: ClientSide) -> Moments:
        """Return X_kᵀX_k and X_kᵀY_k."""
        return client.moments()

    @step
    def personalize(self, client: ClientSide, published: Any) -> None:
        """Keep the client's own model; a method without personal ones is never asked."""
        client.keep(self.global_model(published))

    def summary(
        self, client: Client, classes: Classes, columns: Columns = (), *, basis: Basis | None = None
    ) -> Moments:
        """Return what the client would send to others who have agreed on these classes and columns.

        `basis` says what they subtract from columns that are far from zero.
        """
        return self.summarize(ClientSide(client, classes=classes, columns=columns, basis=basis))
