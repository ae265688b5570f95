"""The default engine: all clients in this process. Everything still goes through `wire`."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from numbers import Integral
from pathlib import Path
from threading import Lock
from time import perf_counter, process_time, thread_time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

import numpy as np

from fedgram.core import wire
from fedgram.core.classes import Label
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.core.hashing import hash_array, hash_json
from fedgram.core.threads import Limit, begin_worker, end_workers, one_thread_each, worth_a_worker
from fedgram.data.client import Client
from fedgram.moments.targets import Targets
from fedgram.protocol import session
from fedgram.protocol.clientside import ClientSide, explain, perform
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method, Require
from fedgram.protocol.transport import Progress, Spent

if TYPE_CHECKING:
    from fedgram.studies.study import Study

T = TypeVar("T")
Answer: TypeAlias = tuple[str, bytes | Exception]
Group: TypeAlias = list[tuple[ClientSide, dict[str, Any]]]


@dataclass(frozen=True)
class InProcess:
    """Engine that runs a method with all clients in this process.

    Parameters
    ----------
    workers
        The number of threads that perform steps at once. Replies are taken in the order of the clients, so the result
        is bit-identical for any number. "auto" takes as many as BLAS may have threads, for steps that are worth it.
    batch
        The most clients in a batched step at a time. Such a step has threads of its own, and "auto" adds none.
    threads
        The number of threads of BLAS and torch inside a step. "auto" chooses by the clients' sizes. It takes
        one thread if steps are small, or if no client has more than the mean share of a worker. Otherwise it takes
        one worker with all threads of the environment. Another number may change the last bits of a result.
    checkpoint
        A file in which a long run that can be interrupted (of FedACnnL, after each layer) saves its state. If the file
        exists, the same run goes on from it.

    """

    workers: int | Literal["auto"] = "auto"
    batch: int = 64
    threads: int | Literal["auto"] = "auto"
    checkpoint: str | Path | None = None

    def __post_init__(self) -> None:
        for what in ("workers", "batch", "threads"):
            value = getattr(self, what)
            if what != "batch" and value == "auto":
                continue
            if not isinstance(value, Integral) or value < 1:
                raise InvalidParameter(f"{what} must be at least 1, got {value!r}")

    def run(
        self,
        method: Method,
        clients: Sequence[Client],
        *,
        classes: int | Iterable[Label] | Targets | None = None,
        seed: int = 0,
        require: Require = "all",
        progress: Progress | None = None,
        study: "Study | None" = None,
    ) -> Fit:
        """Run the method from hello to evaluation; the fit also holds the clients' personal models."""
        with Room(method, clients, self, study) as room:
            fit = session.run(
                method,
                room,
                classes=classes,
                seed=seed,
                require=require,
                progress=progress,
                study=study,
                checkpoint=(Path(self.checkpoint), lambda: _fingerprint(clients), room.remembers)
                if self.checkpoint
                else None,
            )
        return replace(fit, personal=room.personal_models())


class Room:
    """The transport of this engine: the clients' sides, and the way to them."""

    engine = "inprocess"
    trusted = True
    carried: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self, method: Method, clients: Sequence[Client], engine: InProcess, study: "Study | None" = None
    ) -> None:
        self.names: Sequence[str] = session.unique_names(clients)
        self.sides = {client.name: ClientSide(client, study=study) for client in clients}
        self.client_seconds = 0.0
        self.spent: dict[str, Spent] = {}
        self._method, self._engine = method, engine
        allowed = Limit.allowed()
        columns = max(prod(client.x.shape[1:]) for client in clients)
        narrow = one_thread_each([len(client.x) for client in clients], columns, allowed)
        self._threads = engine.threads if engine.threads != "auto" else 1 if narrow else None
        self._workers = engine.workers if engine.workers != "auto" else allowed if narrow else 1
        self._counting = Lock()
        self._seconds: defaultdict[str, float] = defaultdict(float)  # CPU time by step, over all clients
        self._performed: defaultdict[str, int] = defaultdict(int)
        self._limits: list[Limit] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is under way and give BLAS its threads back, even if the server has left an exchange unfinished."""
        if "_pool" in self.__dict__:
            self._pool.shutdown(cancel_futures=True)
            end_workers()
        for limit in self._limits:
            limit.release()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers, initializer=begin_worker)

    def personal_models(self) -> dict[str, Any]:
        """Return the personal models that clients keep."""
        return {name: side.model for name, side in self.sides.items() if side.personal}

    def remembers(self) -> bool:
        """Return whether any client has something in its state."""
        return any(side.state for side in self.sides.values())

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[Answer]:
        """Perform a step at each client and yield the replies in order, with bounded work under way."""
        self.spent = {}
        batched = bool(self._method.steps().get(step))
        groups = _groups(self._deliver(requests), self._engine.batch if batched else 1)
        # Batched steps choose their threads by themselves, unless the user asks for a number.
        asked = None if batched and self._engine.threads == "auto" else self._threads
        limit = None if asked is None else Limit(asked)
        if limit is not None:
            self._limits.append(limit)
        try:
            while not self._worth_threads(step, batched=batched):
                group = next(groups, None)
                if group is None:
                    return
                # Nothing else is under way: the time of other threads is that of BLAS and torch, and counts.
                yield from self._answer(step, group, thread_time if limit and limit.threads == 1 else process_time)
            yield from self._side_by_side(step, groups)
        finally:
            if limit is not None:
                limit.release()
                self._limits.remove(limit)

    def _worth_threads(self, step: str, *, batched: bool) -> bool:
        """Return whether clients should perform this step side by side, judged by the time it has taken so far."""
        if self._engine.workers != "auto":
            return self._workers > 1
        if batched or self._workers == 1:
            return False
        return worth_a_worker(self._seconds[step], self._performed[step])

    def _side_by_side(self, step: str, groups: Iterator[Group]) -> Iterator[Answer]:
        under_way: deque[Future[list[Answer]]] = deque()
        try:
            for group in groups:
                # Only each worker's own time can be told from the others'.
                under_way.append(self._pool.submit(self._answer, step, group, thread_time))
                if len(under_way) >= 2 * self._workers:
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

    def _answer(self, step: str, group: Group, clock: Callable[[], float]) -> list[Answer]:
        started, began = clock(), perf_counter()
        try:
            return self._replies(group)
        finally:
            with self._counting:
                spent = clock() - started
                self.client_seconds += spent
                self._seconds[step] += spent
                self._performed[step] += len(group)
                self._share_out(perf_counter() - began, [side for side, _ in group])

    def _share_out(self, seconds: float, sides: Sequence[ClientSide]) -> None:
        """Record each client's computing time; clients that train together share the time by their efforts."""
        efforts = [self._method.effort(side.n) for side in sides]
        total = sum(efforts)
        for side, effort in zip(sides, efforts, strict=True):
            part = seconds * (effort / total if total else 1 / len(sides))
            self.spent[side.name] = Spent(part, part if len(sides) == 1 else None)

    def _replies(self, group: Group) -> list[Answer]:
        sides, requests = zip(*group, strict=True)
        try:
            replies = perform(self._method, sides, requests)
            return [(side.name, wire.encode(reply, sealed=False)) for side, reply in zip(sides, replies, strict=True)]
        except Exception as error:
            if len(group) > 1:  # find out whose fault it was; the others must not suffer for it
                return [answer for item in group for answer in self._replies([item])]
            failure = ClientFailed(explain(error))
            failure.__cause__ = error
            return [(sides[0].name, failure)]


def _fingerprint(clients: Sequence[Client]) -> str:
    """Return one hash of all clients' names, samples and labels."""
    by_name = sorted(clients, key=lambda client: client.name)
    return hash_json(
        [[client.name, hash_array(np.asarray(client.x)), hash_json(client.y.tolist())] for client in by_name]
    )


def _groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while group := list(islice(items, size)):
        yield group
