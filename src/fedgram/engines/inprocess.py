"""The default engine: all clients in this process. Everything still goes through `wire`."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from time import process_time, thread_time
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from fedgram import wire
from fedgram.data.client import Client
from fedgram.engines import session
from fedgram.errors import ClientFailed, InvalidParameter
from fedgram.labels import Label
from fedgram.methods.base import Method, Require
from fedgram.methods.clients import Progress
from fedgram.methods.clientside import ClientSide, explain, perform
from fedgram.methods.fit import Fit

T = TypeVar("T")
Answer: TypeAlias = tuple[str, bytes | Exception]


@dataclass(frozen=True)
class InProcess:
    """Run a method with all clients in this process.

    `workers` threads perform steps at once; replies are taken in the order of the clients, so the result is
    bit-identical for any number of them. A batched step gets at most `batch` clients at a time.
    """

    workers: int = 1
    batch: int = 64

    def __post_init__(self) -> None:
        if self.workers < 1 or self.batch < 1:
            raise InvalidParameter(f"workers and batch must be at least 1, got {self.workers} and {self.batch}")

    def run(
        self,
        method: Method,
        clients: Sequence[Client],
        *,
        classes: int | Iterable[Label] | None = None,
        seed: int = 0,
        require: Require = "all",
        progress: Progress | None = None,
    ) -> Fit:
        """Run the method from hello to evaluation; the fit also holds the clients' personal models."""
        with ThreadPoolExecutor(self.workers) as pool:
            room = Room(method, clients, pool if self.workers > 1 else None, self)
            fit = session.run(method, room, classes=classes, seed=seed, require=require, progress=progress)
        return replace(fit, personal=room.personal_models())


class Room:
    """The transport of this engine: the clients' sides, and the way to them."""

    engine = "inprocess"
    trusted = True
    carried: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self, method: Method, clients: Sequence[Client], pool: ThreadPoolExecutor | None, engine: InProcess
    ) -> None:
        self.names: Sequence[str] = session.unique_names(clients)
        self.sides = {client.name: ClientSide(client) for client in clients}
        self.client_seconds = 0.0
        # With one worker, BLAS' own threads count; with several, only each worker's own time can be told apart.
        self._clock = process_time if pool is None else thread_time
        self._counting = Lock()
        self._method, self._pool, self._engine = method, pool, engine

    def personal_models(self) -> dict[str, Any]:
        """Return the personal models that clients keep."""
        return {name: side.model for name, side in self.sides.items() if side.personal}

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[Answer]:
        """Perform a step at each client and yield the replies in order, with bounded work under way."""
        size = self._engine.batch if self._method.steps().get(step) else 1
        groups = _groups(self._deliver(requests), size)
        if self._pool is None:
            for group in groups:
                yield from self._answer(group)
            return
        under_way: deque[Future[list[Answer]]] = deque()
        try:
            for group in groups:
                under_way.append(self._pool.submit(self._answer, group))
                if len(under_way) >= 2 * self._engine.workers:
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    def _deliver(self, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[ClientSide, dict[str, Any]]]:
        """Decode requests; what is sent to all is decoded once, since payloads cannot be changed."""
        last, opened = None, {}
        for name, request in requests:
            if request is not last:
                last, opened = request, wire.decode(request)
            yield self.sides[name], opened

    def _answer(self, group: list[tuple[ClientSide, dict[str, Any]]]) -> list[Answer]:
        started = self._clock()
        sides, requests = zip(*group, strict=True)
        try:
            replies = perform(self._method, sides, requests)
            return [(side.name, wire.encode(reply, sealed=False)) for side, reply in zip(sides, replies, strict=True)]
        except Exception as error:
            if len(group) > 1:  # find out whose fault it was; the others must not suffer for it
                return [answer for item in group for answer in self._answer([item])]
            failure = ClientFailed(explain(error))
            failure.__cause__ = error
            return [(sides[0].name, failure)]
        finally:
            with self._counting:
                self.client_seconds += self._clock() - started


def _groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while group := list(islice(items, size)):
        yield group
