"""The time that Flower's simulation adds to a message: bytes of moments up and down, against one process."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedgram as fg
from fedgram.engines.flower.simulation import FlowerSimulation

SETTINGS = ((512, 10), (512, 100), (2048, 10), (2048, 100), (8192, 2))
seconds: dict[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class Post(fg.Method):
    """Sends as many bytes as the packed moments of d features, first up, then down, without any computation."""

    d: int

    def serve(self, clients: fg.Clients) -> None:
        """Time both ways."""
        count = len(clients.names)
        for step, payload in ((self.up, None), (self.down, self.packed())):
            started = perf_counter()
            for _ in clients.call(step, payload):
                pass
            seconds[step.__name__] = (perf_counter() - started) / count

    def packed(self) -> Any:
        """Return an array of the size of packed moments."""
        return np.zeros(self.d * (self.d + 1) // 2)

    @fg.step
    def up(self, client: fg.ClientSide) -> Any:
        """Send an array."""
        return self.packed()

    @fg.step
    def down(self, client: fg.ClientSide, payload: Any) -> None:
        """Receive an array."""


def measured(d: int, clients: list[fg.Client], engine: Any) -> dict[str, float]:
    """Return the milliseconds that a message takes each way."""
    Post(d=d).fit(clients, engine=engine)
    return {way: 1000 * value for way, value in seconds.items()}


def main() -> None:
    table = Table(
        "d", "clients", "MB a message", "up, in process", "up, Flower", "down, in process", "down, Flower",
        title="Milliseconds per message", title_justify="left",
    )  # fmt: skip
    with FlowerSimulation(nodes=max(count for _, count in SETTINGS)) as engine:
        for d, count in SETTINGS:
            clients = [fg.Client(f"client-{k}", np.eye(2), [0, 1]) for k in range(count)]
            measured(1, clients, engine)  # starts the simulation
            here, there = measured(d, clients, "inprocess"), measured(d, clients, engine)
            figures = [f"{times[way]:.1f}" for way in ("up", "down") for times in (here, there)]
            table.add_row(f"{d:,}", str(count), f"{4 * d * (d + 1) / 1e6:.1f}", *figures)
    Console(width=110).print(table)
