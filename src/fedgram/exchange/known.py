"""The way to parties who answer by files: what the store knows is their reply, all else must be asked for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedgram.core import wire
from fedgram.core.errors import InvalidParameter
from fedgram.exchange.rounds import step_of
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.channel import Channel
from fedgram.protocol.clients import Clients
from fedgram.protocol.method import Method
from fedgram.protocol.pool import Pool
from fedgram.protocol.quorum import Quorum
from fedgram.protocol.timing import Spent

ALL = "all parties"


class Unanswered(Exception):
    """A method asks for a sum that the store does not have: `payload` is what all parties are to be sent."""

    def __init__(self, payload: Any) -> None:
        super().__init__()
        self.payload = payload


class KnownSums:
    """The transport of a method by files: one client stands for all parties, and its replies are their sums.

    The total gives moments and sums of columns, and `said` the replies to the rounds that are closed, one after the
    other. `published` is what parties are sent to personalize from; they do it by themselves, with their own tables.
    """

    engine = "files"
    names: Sequence[str] = (ALL,)
    trusted = True  # each part of a sum was checked when it joined
    client_seconds = 0.0
    spent: Mapping[str, Spent] = MappingProxyType({})
    carried: Mapping[str, int] = MappingProxyType({})

    def __init__(self, method: Method, pool: Pool, said: Iterable[bytes]) -> None:
        self.published: Any = None
        self._asked, self._pool, self._said = step_of(method.name).name, pool, iter(said)

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield the sum that answers a step; raise `Unanswered` where that is the next round."""
        for name, request in requests:
            yield name, self._reply(step, request)

    def _reply(self, step: str, request: bytes) -> bytes:
        payload, total = wire.decode(request)["payload"], self._pool.sent
        if step == self._asked:
            said = next(self._said, None)
            if said is None:
                raise Unanswered(payload)
            return said
        if step == "personalize":
            self.published = payload
            return wire.encode(None)
        if step == "summarize":
            return wire.encode(total)
        if step == "column_sums":
            return wire.encode({"sums": total.cross.sum(axis=1), "squares": total.squares, "n": total.n})
        raise InvalidParameter(f"step {step!r} cannot be answered by files: only {self._asked!r} is asked for")


def clients_of(method: Method, pool: Pool, transport: KnownSums) -> Clients:
    """Return the clients of a run by files, as a method's `serve` takes them."""
    kind = pool.sent.kind
    samples = {ALL: pool.sent.n}
    agreement = Agreement(
        kind.classes,
        (kind.dimension,),
        kind.features,
        kind.columns,
        samples=samples,
        tested={ALL: 0},  # test samples are with the parties
        recipe=pool.recipe,
    )
    clients = Clients(method, agreement, Channel(transport, method), Quorum(transport.names))
    if not method.finds_columns:
        clients.settle()
    return clients
