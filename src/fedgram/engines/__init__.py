"""Engines carry a method's messages. They know no concrete method."""

from typing import Any

from fedgram.core.extras import needing
from fedgram.engines.inprocess import InProcess
from fedgram.protocol.method import Engine, engines


def flower_simulation(**options: Any) -> Engine:
    """Return the engine `flower-sim`. Flower and Ray are imported here, by those who use them."""
    with needing("flower", "the engine flower-sim"):
        from fedgram.engines.flower.simulation import FlowerSimulation
    return FlowerSimulation(**options)


engines["inprocess"] = InProcess
engines["flower-sim"] = flower_simulation

__all__ = ["InProcess"]
