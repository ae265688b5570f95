"""What an engine supplies to a run: a way to the clients and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedgram.core.wire import Payload


class Reply(NamedTuple):
    """A client's reply to a step."""

    client: str
    value: Payload


class Transport(Protocol):
    """What an engine supplies: a way to bytes' other end.

    `exchange` yields each client's reply, or the error it met. An engine on one machine yields in the order of the
    requests, so that sums are bit-identical; others may yield as replies arrive. Replies from where `trusted` is
    False get every check.
    """

    engine: str
    names: Sequence[str]
    trusted: bool

    @property
    def client_seconds(self) -> float:
        """CPU time that clients have spent on steps; in this process where it is `trusted`."""
        ...

    @property
    def carried(self) -> Mapping[str, int]:
        """Bytes `up` and `down` as the engine itself counts them, empty if it does not."""
        ...

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Deliver requests, yield replies."""
        ...
