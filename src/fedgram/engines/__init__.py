"""Engines carry a method's messages. They know no concrete method."""

from typing import Any

from fedgram.core.errors import MissingExtra
from fedgram.engines.inprocess import InProcess
from fedgram.protocol.method import Engine, engines


def flower_simulation(**options: Any) -> Engine:
    """Return the engine `flower-sim`. Flower and Ray are imported here, by those who use them."""
    try:
        from fedgram.engines.flower.simulation import FlowerSimulation
    except ImportError as error:
        raise MissingExtra(
            f"the engine flower-sim needs the 'flower' extra ({error.name} is missing): pip install 'fedgram[flower]'"
        ) from error
    return FlowerSimulation(**options)


engines["inprocess"] = InProcess
engines["flower-sim"] = flower_simulation

__all__ = ["InProcess"]
