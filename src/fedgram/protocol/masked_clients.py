"""The server's side of a run on secure sums: it asks clients for steps, and sees the sum of their replies alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from fedgram.core.errors import FedgramError, InvalidParameter
from fedgram.core.hashing import hash_bytes
from fedgram.core.wire import Payload
from fedgram.evaluation import Evaluation, Summed
from fedgram.models import Model
from fedgram.moments.moments import Moments
from fedgram.protocol import replies
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.channel import Channel
from fedgram.protocol.clients import Clients, Step
from fedgram.protocol.masking import PERCENT, kind_of, layout_of_evaluation, performance, weighed
from fedgram.protocol.method import Method
from fedgram.protocol.pool import Pool
from fedgram.protocol.quorum import Quorum
from fedgram.protocol.reply_layouts import Layout, layout_of, size_of, value_of
from fedgram.protocol.transport import Reply
from fedgram.secure.secure_sums import Collected, Coordinator

T = TypeVar("T")


class MaskedClients(Clients):
    """The clients of a secure run, whose replies can only be added up.

    Parameters
    ----------
    method, agreement, channel, quorum, seed
        As for `Clients`.
    coordinator
        The coordinator of the secure sums.

    """

    def __init__(
        self,
        method: Method,
        agreement: Agreement,
        channel: Channel,
        quorum: Quorum,
        coordinator: Coordinator,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(method, agreement, channel, quorum, seed=seed)
        self._coordinator = coordinator
        roster = coordinator.roster
        self.note(
            "secure",
            {
                "witnesses": len(roster.witnesses),
                "needed": roster.answers_needed,
                "minimum_parties": roster.minimum_parties,
            },
        )

    @property
    def samples(self) -> Mapping[str, int]:
        """Raise: a client's number of samples is its own in a secure run."""
        raise _hidden("how many samples each client has")

    @property
    def tested(self) -> Mapping[str, int]:
        """Raise: a client's number of test samples is its own in a secure run."""
        raise _hidden("how many test samples each client has")

    def ask(self, step: Step, payload: Payload = None, **options: Any) -> Iterator[Reply]:
        """Yield the replies to a step that only tells clients something."""
        if replies.expected(type(self._method), step.__name__) is not None:  # type: ignore[arg-type]
            raise _hidden(f"each client's reply to {step.__name__!r}")
        return super().ask(step, payload, **options)

    def sum(self, step: Callable[..., T], payload: Payload = None, *, validate: bool = False, **options: Any) -> T:
        """Return the sum of the replies; what is known of single clients, which `validate` asks for, is left out."""
        total = self._total(step, payload, options)
        return cast("T", self._seen(total) if isinstance(total, Moments) else total)

    def pool(self, step: Callable[..., Moments]) -> Pool:
        """Return the pooled moments, without a record of what each client contributed."""
        total = self._total(step, None, {})
        if not isinstance(total, Moments):
            raise InvalidParameter(f"step {step.__name__!r} must reply with moments, got a {type(total).__name__}")
        return self._pooled(total, None)

    def mean(
        self,
        step: Step,
        payload: Payload = None,
        *,
        weighted: bool = True,
        weights: Mapping[str, float] | None = None,
        heard: Callable[[str, Any], None] | None = None,
        **options: Any,
    ) -> Any:
        """Return the mean of the replies, weighted by numbers of samples, which clients multiply in."""
        if weights is not None or heard is not None:
            raise _hidden(f"each client's weight or reply to {step.__name__!r}")
        return self._total(step, payload, options, weighted=weighted, divided=True)

    def sample(self, share: float, *, up_to: float | None = None) -> list[str]:
        """Return all clients; a random share of them is refused, since sums over two shares would show some clients."""
        if share < 1:
            raise InvalidParameter(f"the share of clients: expected 1 with secure sums, got {share}")
        return self.names

    def evaluate(self, model: Model | None = None, *, per_client: Mapping[str, Model] | None = None) -> Evaluation:
        """Return the evaluation from sums over all clients with test samples; an empty one if these are too few.

        It is empty, too, for targets that are neither classes nor numeric outcomes.
        """
        if per_client is not None:
            raise _hidden("a model for each client to judge")
        able = [name for name in self.names if self.agreement.tested[name]]
        layout = layout_of_evaluation(self.targets)
        if layout is None or len(able) < self._coordinator.roster.minimum_parties:
            return Evaluation()
        collected = self._collected("evaluate", able, model, layout, counted=False)
        if len(collected.headers) < self._coordinator.roster.minimum_parties:  # the others have no model to judge
            return Evaluation()
        sums, weight = self._opened(collected, layout)
        untested = len(self.present) - len(collected.headers)
        mean = sums["accuracy"] / weight / PERCENT if "accuracy" in sums else None
        return Evaluation.of_sum(performance(self.targets, sums), Summed(weight, untested, mean))

    def _total(
        self,
        step: Step,
        payload: Payload,
        options: Mapping[str, Any],
        *,
        weighted: bool = False,
        divided: bool = False,
    ) -> Any:
        """Return the sum or the mean of all clients' replies."""
        name = step.__name__
        if options.get("per_client") is not None:
            raise _hidden(f"a payload of its own for each client in {name!r}")
        asked = options.get("to")
        if asked is not None and set(asked) != set(self.names):
            raise _hidden(f"a reply of some of the clients to {name!r}")
        question = self.agreement.question(self.names[0], payload, self.round)
        layout = layout_of(kind_of(self._method, name, question), question, f"reply to {name!r}")
        collected = self._collected(name, self.names, payload, layout, weighted=weighted)
        if not collected.headers:
            raise self._quorum.unanswered(during=f"step {name!r}")
        for client in collected.headers:
            self._count(client)
        return self._opened(collected, layout, divided=divided)[0]

    def _collected(
        self,
        step: str,
        names: Sequence[str],
        payload: Payload,
        layout: Layout,
        *,
        weighted: bool = False,
        counted: bool = True,
    ) -> Collected:
        """Return the masked replies of clients, added up."""
        count = size_of(weighed(layout))
        asked = {**self._coordinator.upcoming, "count": count, "weighted": weighted}
        request = self._channel.encoded(step, payload, self.agreement, self.round, secure=asked)
        collected = self._coordinator.collect(step, self.round, digest=hash_bytes([request]), count=count)
        failed = self._channel.collect(step, names, request, collected, round=self.round, counted=counted)
        if failed:
            self._quorum.lose(failed, during=f"step {step!r}")
        return collected

    def _opened(self, collected: Collected, layout: Layout, *, divided: bool = False) -> tuple[Any, int]:
        """Return the sum of the replies, or with `divided` their mean, and the sum of their weights."""
        total, count = self._coordinator.total(collected), collected.request.count
        weight = int(total.part(count - 1, count).wholes()[0])  # the last number of `weighed`
        return value_of(layout, total.part(0, count - 1), over=weight if divided else None), weight


def _hidden(what: str) -> FedgramError:
    return InvalidParameter(
        f"secure: expected a method whose server only adds replies up, got one that needs {what}; run it without secure"
    )
