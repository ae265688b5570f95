"""What an engine supplies to a run: a way to the clients and back; and what crosses it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from fedgram.core.wire import Payload
from fedgram.protocol.timing import Spent

# Called as a step begins and as replies arrive: the step, the round, how many replies are there, and how many were
# asked for.
Progress: TypeAlias = Callable[[str, int, int, int], None]


class Reply(NamedTuple):
    """A client's reply to a step."""

    client: str
    value: Payload


@dataclass
class Traffic:
    """Bytes that really crossed between server and clients; evaluation is not counted."""

    by_client: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, client: str, *, up: int = 0, down: int = 0) -> None:
        """Add to a client's account."""
        account = self.by_client.setdefault(client, {"up": 0, "down": 0})
        account["up"] += up
        account["down"] += down

    @property
    def up(self) -> int:
        """Bytes from all clients to the server."""
        return sum(account["up"] for account in self.by_client.values())

    @property
    def down(self) -> int:
        """Bytes from the server to all clients."""
        return sum(account["down"] for account in self.by_client.values())


class Transport(Protocol):
    """Delivers request bytes to clients and yields their replies.

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
    def spent(self) -> Mapping[str, Spent]:
        """What the replies of the latest exchange took, by client; empty if the engine does not measure it."""
        ...

    @property
    def carried(self) -> Mapping[str, int]:
        """Bytes `up` and `down` as the engine itself counts them, empty if it does not."""
        ...

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Deliver requests, yield replies."""
        ...
