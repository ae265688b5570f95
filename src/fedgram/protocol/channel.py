"""The channel to the clients: requests are encoded and counted, replies counted, decoded and checked."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median_low
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from fedgram.core import wire
from fedgram.core.classes import shorten
from fedgram.core.errors import FedgramError, RefusedMessage
from fedgram.core.wire import Payload
from fedgram.models import sent_columns
from fedgram.protocol import replies
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.replies import Size
from fedgram.protocol.transport import Progress, Reply, Timing, Traffic, Transport

if TYPE_CHECKING:
    from fedgram.protocol.method import Method
    from fedgram.secure.secure_sums import Collected

T = TypeVar("T")
Task: TypeAlias = tuple[str, Payload]  # a client's name and payload


FEWEST = 3  # replies that are needed for a median to compare with
LAST = 99  # latest replies whose sizes are remembered

Sized: TypeAlias = tuple[Reply, Mapping[str, Size]]  # a reply, and the sizes of its parts


class Peers:
    """The sizes of the latest replies of a run, by step and part: a reply that is far larger than most is refused.

    A server cannot know how large the weights of a trained network may be: that depends on samples that it does not
    see. But clients that begin at the same weights and train in the same way end with numbers of about the same size.
    So a reply is refused if its largest number is more than `Size.times` that of the median reply. Medians below 1
    count as 1.

    The first three replies to a step are held back until they can be compared. Later ones are compared at once, with
    those before them in this round and in earlier ones, so the server never has to keep them. A client that sends
    too large numbers can shift the median only together with others; fewer than three replies are not compared.
    """

    def __init__(self) -> None:
        self._latest: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=LAST))

    def passing(self, step: str, replies: Iterable[Sized], failed: dict[str, FedgramError]) -> Iterator[Reply]:
        """Yield the replies to a step except those far larger than most, whose errors are added to `failed`."""
        held: list[Sized] = []
        for reply, sizes in replies:
            held.append((reply, sizes))
            for where, size in sizes.items():
                self._latest[step, where].append(size.largest)
            if all(len(self._latest[step, where]) >= FEWEST for where in sizes):
                yield from self._compared(step, held, failed)
                held = []
        yield from self._compared(step, held, failed)

    def _compared(self, step: str, held: Iterable[Sized], failed: dict[str, FedgramError]) -> Iterator[Reply]:
        """Yield the replies that are not too large, and forget the sizes of the others."""
        passed, refused = [], []
        for reply, sizes in held:
            errors = [error for where, size in sizes.items() if (error := self._error(step, where, size)) is not None]
            if errors:
                failed[reply.client] = errors[0]
                refused.append(sizes)
            else:
                passed.append(reply)
        for sizes in refused:
            for where, size in sizes.items():
                with suppress(ValueError):  # it may have left the latest already
                    self._latest[step, where].remove(size.largest)
        yield from passed

    def _error(self, step: str, where: str, size: Size) -> RefusedMessage | None:
        latest = self._latest[step, where]
        usual = max(median_low(latest), 1.0)
        if len(latest) < FEWEST or size.largest <= size.times * usual:
            return None
        return RefusedMessage(
            f"{where} must be at most {size.times:.3g} times as large as most clients' replies to this step, "
            f"got {size.largest / usual:.3g} times; its samples may have other units, or its training has diverged"
        )


class Channel:
    """Carries the steps of one method over an engine's transport, and counts bytes and seconds.

    A reply that cannot be decoded, is not what its step declares, or is far larger than those of other clients, counts
    as a failure of its sender.
    """

    def __init__(
        self, transport: Transport, method: "Method", *, seed: int = 0, progress: Progress | None = None
    ) -> None:
        self.transport = transport
        self.traffic = Traffic()
        self.timing = Timing()
        self._method, self._seed, self._progress = method, seed, progress
        self._peers = Peers()

    def ask(
        self,
        step: str,
        tasks: Sequence[Task],
        agreement: Agreement,
        failed: dict[str, FedgramError],
        *,
        round: int = 0,
        counted: bool = True,
    ) -> Iterator[Reply]:
        """Yield the clients' replies to a step as they come; errors of clients are added to `failed`.

        Without `counted`, as for an evaluation, the step is left out of traffic and timing.
        """
        checked = self._checked(step, tasks, agreement, failed, round, counted=counted)
        yield from self._peers.passing(step, checked, failed)
        if counted:
            replied = {client: times for client, times in self.transport.spent.items() if client not in failed}
            self.timing.add(replied)

    def collect(
        self, step: str, names: Sequence[str], request: bytes, collected: "Collected", *, round: int, counted: bool
    ) -> dict[str, FedgramError]:
        """Add the clients' masked replies to a request to `collected`, and return the errors of the others."""
        failed: dict[str, FedgramError] = {}

        def read(client: str, answer: bytes) -> None:
            found = wire.decode(answer, sender=client, sealed=not self.transport.trusted)
            if found is None:  # nothing to add
                return
            upload = found.get("upload") if isinstance(found, dict) and len(found) == 1 else None
            if not isinstance(upload, np.ndarray) or upload.dtype != np.uint8:
                raise RefusedMessage(f"reply: expected a masked one, got {type(found).__name__}")
            collected.add(client, upload.tobytes())

        if counted:
            for name in names:
                self.traffic.count(name, down=len(request))
        requests = ((name, request) for name in names)
        for _ in self._exchanged(step, requests, read, failed, round, counted=counted, total=len(names)):
            pass
        if counted:
            self.timing.add({client: times for client, times in self.transport.spent.items() if client not in failed})
        return failed

    def _checked(
        self,
        step: str,
        tasks: Sequence[Task],
        agreement: Agreement,
        failed: dict[str, FedgramError],
        round: int,
        *,
        counted: bool,
    ) -> Iterator[Sized]:
        """Yield the replies that are what the step declares, with the sizes of their parts."""
        expected: Any = replies.expected(type(self._method), step)  # type: ignore[arg-type]
        sent = dict(tasks)

        def read(client: str, answer: bytes) -> Sized:
            value = wire.decode(answer, sender=None if self.transport.trusted else client, finite=True)
            question = agreement.question(client, sent[client], round)
            replies.check(value, expected(self._method, question) if callable(expected) else expected, question)
            return Reply(client, value), question.sizes

        requests = self._requests(step, tasks, agreement, round, counted=counted)
        return self._exchanged(step, requests, read, failed, round, counted=counted, total=len(tasks))

    def _exchanged(
        self,
        step: str,
        requests: Iterable[tuple[str, bytes]],
        read: Callable[[str, bytes], T],
        failed: dict[str, FedgramError],
        round: int,
        *,
        counted: bool,
        total: int,
    ) -> Iterator[T]:
        """Yield the replies to requests as `read` makes them of a client's name and bytes; errors go into `failed`."""
        if self._progress is not None:
            self._progress(step, round, 0, total)  # the first reply may take long
        for done, (client, answer) in enumerate(self.transport.exchange(step, requests), start=1):
            try:
                if isinstance(answer, Exception):
                    raise answer
                if counted:
                    self.traffic.count(client, up=len(answer))
                found = read(client, answer)
            except FedgramError as error:
                failed[client] = error
            else:
                yield found
            if self._progress is not None:
                self._progress(step, round, done - len(failed), total)

    def _requests(
        self, step: str, tasks: Sequence[Task], agreement: Agreement, round: int, *, counted: bool
    ) -> Iterator[tuple[str, bytes]]:
        last, request = object(), b""
        for name, payload in tasks:
            if payload is not last:  # a payload that is the same for all is encoded once
                last, request = payload, self.encoded(step, payload, agreement, round)
            if counted:
                self.traffic.count(name, down=len(request))
            yield name, request

    def encoded(self, step: str, payload: Payload, agreement: Agreement, round: int, **more: Payload) -> bytes:
        """Return a request; `more` are further fields that clients read."""
        classes = shorten(agreement.classes) if agreement.classes else None
        envelope = {"step": step, "round": round, "seed": self._seed, "classes": classes}
        envelope |= sent_columns(agreement.columns)
        envelope |= {} if agreement.basis is None else {"basis": agreement.basis}
        envelope |= {} if agreement.declared is None else {"targets": agreement.declared}
        # Messages inside this process cannot be damaged on the way.
        return wire.encode(envelope | more | {"payload": payload}, sealed=not self.transport.trusted)
