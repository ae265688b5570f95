"""How clients spend the time of a run, as the server sees it: computing, communicating, and waiting for the slowest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SPANS = ("computing", "communication", "idle")


class Spent(NamedTuple):
    """Seconds that a client took for one step: for the computing alone, and from the request to the reply."""

    computing: float
    elapsed: float


@dataclass
class Timing:
    """Adds up the time of each client, in seconds of the clock on the wall.

    `communication` is what remains of the time from request to reply; in one process there is none. `idle` is the time
    from a client's own reply to the last one of the same step. `asked` counts the rounds in which a client took part.
    """

    last: Mapping[str, float] = field(default_factory=dict)  # from request to reply, in the latest step
    _spans: dict[str, dict[str, float]] = field(default_factory=dict)
    _rounds: dict[str, set[int]] = field(default_factory=dict)

    @property
    def by_client(self) -> dict[str, dict[str, float]]:
        """The seconds of each client whose time is known, and the rounds in which it took part."""
        return {client: spans | {"asked": len(self._rounds.get(client, ()))} for client, spans in self._spans.items()}

    def took_part(self, client: str, round: int) -> None:
        """Count a round in which a client's reply entered the result."""
        self._rounds.setdefault(client, set()).add(round)

    def add(self, spent: Mapping[str, Spent]) -> None:
        """Add a step that is over."""
        self.last = {client: times.elapsed for client, times in spent.items()}
        slowest = max(self.last.values(), default=0.0)
        for client, (computing, elapsed) in spent.items():
            account = self._spans.setdefault(client, dict.fromkeys(SPANS, 0.0))
            for span, seconds in zip(SPANS, (computing, elapsed - computing, slowest - elapsed), strict=True):
                account[span] += seconds

    @staticmethod
    def summary(by_client: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the mean over clients of each span and of `asked`; empty if nothing is known."""
        if not by_client:
            return {}
        return {
            name: sum(account[name] for account in by_client.values()) / len(by_client) for name in (*SPANS, "asked")
        }
