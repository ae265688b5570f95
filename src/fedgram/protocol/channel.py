"""The way to the clients: requests are encoded and counted, replies counted, decoded and checked."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fedgram.core import wire
from fedgram.core.errors import FedgramError
from fedgram.core.labels import shorten
from fedgram.core.wire import Payload
from fedgram.models import sent_columns
from fedgram.protocol import replies
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.peers import Peers, Sized
from fedgram.protocol.timing import Timing
from fedgram.protocol.transport import Progress, Reply, Traffic, Transport

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

Task: TypeAlias = tuple[str, Payload]  # a client's name, and what it is sent


class Channel:
    """Carries the steps of one method over an engine's transport, and counts bytes and seconds.

    No reply gets past it that is not what its step declares, or that is far larger than those of the other clients:
    what cannot be decoded or fails a check is its sender's failure.
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
        """Ask clients for a step and yield their replies as they come; who fails is entered into `failed`.

        What is not `counted`, such as an evaluation, shows neither in the traffic nor in the timing.
        """
        checked = self._checked(step, tasks, agreement, failed, round, counted=counted)
        yield from self._peers.passing(step, checked, failed)
        if counted:
            replied = {client: times for client, times in self.transport.spent.items() if client not in failed}
            self.timing.add(replied)

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
        if self._progress is not None:
            self._progress(step, round, 0, len(tasks))  # the first reply may take long
        requests = self._requests(step, tasks, agreement, round, counted=counted)
        for done, (client, answer) in enumerate(self.transport.exchange(step, requests), start=1):
            try:
                if isinstance(answer, Exception):
                    raise answer
                if counted:
                    self.traffic.count(client, up=len(answer))
                value = wire.decode(answer, sender=None if self.transport.trusted else client, finite=True)
                question = agreement.question(client, sent[client], round)
                replies.check(value, expected(self._method, question) if callable(expected) else expected, question)
            except FedgramError as error:
                failed[client] = error
            else:
                yield Reply(client, value), question.sizes
            if self._progress is not None:
                self._progress(step, round, done - len(failed), len(tasks))

    def _requests(
        self, step: str, tasks: Sequence[Task], agreement: Agreement, round: int, *, counted: bool
    ) -> Iterator[tuple[str, bytes]]:
        classes = shorten(agreement.classes) if agreement.classes else None
        envelope = {"step": step, "round": round, "seed": self._seed, "classes": classes}
        envelope |= sent_columns(agreement.columns)
        envelope |= {} if agreement.basis is None else {"basis": agreement.basis}
        sealed = not self.transport.trusted  # what stays in this process cannot be damaged on the way
        last, request = object(), b""
        for name, payload in tasks:
            if payload is not last:  # what is the same for all is encoded once
                last, request = payload, wire.encode(envelope | {"payload": payload}, sealed=sealed)
            if counted:
                self.traffic.count(name, down=len(request))
            yield name, request
