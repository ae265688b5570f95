"""Transport between a server and its clients, which an engine supplies, with the bytes and seconds that it takes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from fedgram.core.wire import Payload

# Called as a step begins and as replies arrive: the step, the round, how many replies are there, and how many were
# asked for.
Progress: TypeAlias = Callable[[str, int, int, int], None]


class Reply(NamedTuple):
    """A client's reply to a step."""

    client: str
    value: Payload


@dataclass
class Traffic:
    """Counts of the bytes sent between server and clients, without evaluations."""

    by_client: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, client: str, *, up: int = 0, down: int = 0) -> None:
        """Add bytes to a client's counts."""
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
    """A transport, which delivers request bytes to clients and yields their replies.

    `exchange` yields each client's reply, or the error it met. An engine on one machine yields in the order of the
    requests, so that sums are bit-identical; others may yield as replies arrive. Replies get every check
    unless the transport is `trusted`.
    """

    engine: str
    names: Sequence[str]
    trusted: bool

    @property
    def client_seconds(self) -> float:
        """CPU time that clients have spent on steps; if `trusted`, in this process."""
        ...

    @property
    def spent(self) -> "Mapping[str, Spent]":
        """Seconds of the latest exchange, by client; empty if the engine does not measure them."""
        ...

    @property
    def carried(self) -> Mapping[str, int]:
        """Bytes `up` and `down` as the engine itself counts them, empty if it does not."""
        ...

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield the replies to requests, after delivering these."""
        ...


SPANS = ("computing", "communication", "idle")


class Spent(NamedTuple):
    """Seconds that a client took for one step: for the computing alone, and from the request to the reply.

    If clients perform a step together, only their time together is measured: `computing` is a client's share of it, and
    `elapsed` is None.
    """

    computing: float
    elapsed: float | None


@dataclass
class Timing:
    """The sums of each client's time, in wall-clock seconds.

    `communication` is the time from request to reply less `computing`, and 0 in one process. `idle` is the time from a
    client's own reply to the last one of the same step; clients that performed a step together do not have it. `asked`
    counts the rounds in which a client took part.
    """

    last: Mapping[str, float] = field(default_factory=dict)  # from request to reply, in the latest step
    _spans: dict[str, dict[str, float]] = field(default_factory=dict)
    _rounds: dict[str, set[int]] = field(default_factory=dict)
    _together: bool = False  # whether clients performed some step together

    @property
    def by_client(self) -> dict[str, dict[str, float]]:
        """The seconds of each client whose time is known, and the rounds in which it took part."""
        measured = [span for span in SPANS if span != "idle" or not self._together]
        return {
            client: {span: spans[span] for span in measured} | {"asked": len(self._rounds.get(client, ()))}
            for client, spans in self._spans.items()
        }

    def took_part(self, client: str, round: int) -> None:
        """Count a round in which a client's reply entered the result."""
        self._rounds.setdefault(client, set()).add(round)

    def add(self, spent: Mapping[str, Spent]) -> None:
        """Add the times of a finished step."""
        self.last = {client: times.elapsed for client, times in spent.items() if times.elapsed is not None}
        self._together |= len(self.last) < len(spent)
        slowest = max(self.last.values(), default=0.0)
        for client, (computing, elapsed) in spent.items():
            account = self._spans.setdefault(client, dict.fromkeys(SPANS, 0.0))
            account["computing"] += computing
            if elapsed is not None:
                account["communication"] += elapsed - computing
                account["idle"] += slowest - elapsed

    def taken_apart(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        rounds = {client: sorted(known) for client, known in self._rounds.items()}
        return {"spans": self._spans, "rounds": rounds, "together": self._together}

    def put_together(self, parts: Mapping[str, Any]) -> None:
        """Restore the sums that `taken_apart` returned."""
        self._spans.update(parts["spans"])
        self._rounds.update({client: set(rounds) for client, rounds in parts["rounds"].items()})
        self._together = parts["together"]

    @staticmethod
    def summary(by_client: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the means over clients of `asked` and of the spans that all of them have; {} without clients."""
        accounts = list(by_client.values())
        known = [name for name in (*SPANS, "asked") if accounts and all(name in account for account in accounts)]
        return {name: sum(account[name] for account in accounts) / len(accounts) for name in known}
