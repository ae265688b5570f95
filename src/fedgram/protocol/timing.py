"""How clients spend the time of a run, as the server sees it: computing, communicating, and waiting for the slowest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SPANS = ("computing", "communication", "idle")


class Spent(NamedTuple):
    """Seconds that a client took for one step: for the computing alone, and from the request to the reply.

    `elapsed` is None where clients perform a step together: only the time of all of them is measured, `computing` is a
    client's share of it, and when a client alone would have replied is not known.
    """

    computing: float
    elapsed: float | None


@dataclass
class Timing:
    """Adds up the time of each client, in seconds of the clock on the wall.

    `communication` is what remains of the time from request to reply; in one process there is none. `idle` is the time
    from a client's own reply to the last one of the same step. It is measured or left out: clients that performed a
    step together have none. `asked` counts the rounds in which a client took part.
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
        """Add a step that is over."""
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
        """Return all that was added up, as plain values."""
        rounds = {client: sorted(known) for client, known in self._rounds.items()}
        return {"spans": self._spans, "rounds": rounds, "together": self._together}

    def put_together(self, parts: Mapping[str, Any]) -> None:
        """Go on from what `taken_apart` returned."""
        self._spans.update(parts["spans"])
        self._rounds.update({client: set(rounds) for client, rounds in parts["rounds"].items()})
        self._together = parts["together"]

    @staticmethod
    def summary(by_client: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the mean over clients of each span that is known and of `asked`; empty if nothing is."""
        accounts = list(by_client.values())
        known = [name for name in (*SPANS, "asked") if accounts and all(name in account for account in accounts)]
        return {name: sum(account[name] for account in accounts) / len(accounts) for name in known}
