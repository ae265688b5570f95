"""Base classes of methods that publish a message, and of methods of one message: moments up, publication down."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, as_blocks
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns, difference
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.data.client import Client
from fedgram.models import Model
from fedgram.moments.accumulate import check_finite
from fedgram.moments.basis import Basis, with_truth
from fedgram.moments.moments import Moments, described
from fedgram.moments.targets import Targets
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.comparison import EACH, Comparison, How, Score, compared, score
from fedgram.protocol.method import Method, step
from fedgram.protocol.pool import Pool

LARGEST = 1e100  # largest absolute value of a feature whose products can still be summed


@dataclass(frozen=True, kw_only=True)
class Publishing(Method):
    """Base of methods whose server publishes a message from which any client can make its own model."""

    left_out_alone: ClassVar[int] = EACH  # most rows of a client that are left out one by one to compare models

    def reveals(self, published: Any) -> str:
        """Return the part of the pooled moments that the published message reveals, "" for nothing."""
        return ""

    @step
    def personalize(self, client: ClientSide, published: Any) -> None:
        """Keep the client's own model; a method without personal ones is never asked."""
        raise TypeError(f"{type(self).__name__} must define personalize(self, client, published)")

    def global_model(self, published: Any) -> Model:
        """Return the global model in the published message, by default the message itself."""
        return published  # type: ignore[no-any-return]

    def without(self, published: Any, client: ClientSide) -> Any | None:
        """Return the published message as it would be without a member's samples; None if that cannot be computed."""
        return None

    def left_out_changes(self, published: Any, client: ClientSide) -> tuple[Array, Array] | None:
        """Return the changes of samples' scores (n, c), each if the sample had not been a member's; None if unknown.

        The first are of the published scores that personal models are made of, the second of the global model's.
        """
        return None

    def model_for(
        self,
        published: Any,
        client: Client,
        *,
        member: bool = False,
        basis: Basis | None = None,
        targets: Targets | None = None,
    ) -> Model:
        """Return a client's own model, made from the published message alone.

        `member` says whether the client's samples are in the total behind that message. `targets` are those of the run,
        if they are neither classes nor numbers.
        """
        side = self._side(published, client, member=member, basis=basis, targets=targets)
        self.personalize(side, published)
        return _kept(self, side)

    def compare(
        self,
        published: Any,
        client: Client,
        *,
        member: bool = False,
        basis: Basis | None = None,
        targets: Targets | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Comparison:
        """Return the errors of the client's own model and of the global model on its rows, which neither has seen.

        Rows are left out in turn. The own model is made anew from the other rows, and the left-out rows are removed
        from the global model as far as the published message allows.

        Parameters
        ----------
        published, client, member, basis, targets
            As in `model_for`.
        progress
            Function that is called with each number of rows that are done.

        """
        whole = self._side(published, client, member=member, basis=basis, targets=targets)
        names, n = whole.targets.names, whole.n
        if not names and not whole.targets.has_classes:
            raise InvalidParameter("targets: expected classes or numeric outcomes to compare models by, got others")
        lacking: Classes = ()
        if not names:
            had = np.sum([np.bincount(y, minlength=len(whole.classes)) for y in whole.y_blocks], axis=0)
            elsewhere = getattr(published, "present", np.ones(len(whole.classes), dtype=bool))
            lacking = tuple(label for label, some in zip(whole.classes, elsewhere & (had == 0), strict=True) if some)
        none = np.zeros((len(names), len(names)))
        apart = whole.targets.as_outcomes(none + np.eye(len(names))) - whole.targets.as_outcomes(none)
        units = dict(zip(names, apart.diagonal().tolist(), strict=True))

        def judged(group: npt.NDArray[np.intp]) -> tuple[How, Score, Score]:
            chosen = np.zeros(n, dtype=bool)
            chosen[group] = True
            rows, rest = (
                ClientSide(
                    whole.data.some(mask),
                    classes=whole.classes,
                    member=member,
                    basis=basis,
                    targets=targets,
                )
                for mask in (chosen, ~chosen)
            )
            return self._judged(published, rows, rest)

        report, each = progress or (lambda added: None), self.left_out_alone
        count = n if self.personal else 0
        return compared(count, judged, report, each=each, lacking=lacking, personal=self.personal, units=units)

    def _judged(self, published: Any, rows: ClientSide, rest: ClientSide) -> tuple[How, Score, Score]:
        """Return the sums of some rows by the own model of the rest, and by the global model without them."""
        how: How = "new"
        changes: tuple[Array | float, Array | float] = 0.0, 0.0
        if rows.member:
            reduced, known = self.without(published, rows), self.left_out_changes(published, rows)
            how = "removed" if reduced is not None else "corrected" if known is not None else "seen"
            published = published if reduced is None else reduced
            changes = known if how == "corrected" and known is not None else changes
        self.personalize(rest, published)
        models = _kept(self, rest), rest.of_the_data(self.global_model(published))
        [(x, truth)] = with_truth(np.asarray(rows.data.x), rows.y, rows.basis)
        names = rows.targets.names
        own, shared = (
            score(model.scores(x), truth, names, change)
            for model, change in zip(models, (rest.share * changes[0], changes[1]), strict=True)
        )
        return how, own, shared

    def _side(
        self, published: Any, client: Client, *, member: bool, basis: Basis | None, targets: Targets | None
    ) -> ClientSide:
        """Return the client as steps see it; raise for data that do not fit the published message."""
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
        classes = published.classes if targets is None else targets.classes
        return ClientSide(client, classes=classes, columns=columns, member=member, basis=basis, targets=targets)


def _kept(method: Publishing, side: ClientSide) -> Model:
    if side.model is None:
        raise TypeError(f"{type(method).__name__}.personalize must call client.keep(model)")
    return side.model


@dataclass(frozen=True, kw_only=True)
class OneMessage(Publishing):
    """Base of methods of one message: a subclass defines `publish`, and `personalize` if it has personal models.

    The published message depends on the pooled moments alone. So clients can join and leave afterwards (`fit.add`,
    `fit.remove`), and a client that took no part can get a model of its own (`model_for`).
    """

    finds_columns = True
    adds = True

    # server
    def serve(self, clients: Clients) -> Model:
        """Return the global model, after pooling moments, publishing, and letting every client personalize."""
        published = self.publish(clients.pool(self.summarize))
        if self.personal:
            if revealed := self.reveals(published):
                clients.warn_of_two(revealed)
            clients.each(self.personalize, published)
        return self.global_model(published)

    def publish(self, pool: Pool) -> Any:
        """Return the message to all clients."""
        raise TypeError(f"{type(self).__name__} must define publish(self, pool)")

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
        """Return the moments that the client would send under these classes and columns.

        `basis` has the centre that clients subtract from columns far from zero.
        """
        return self.summarize(ClientSide(client, classes=classes, columns=columns, basis=basis))
