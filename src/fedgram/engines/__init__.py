"""Engines carry a method's messages. They know no concrete method."""

from fedgram.engines.inprocess import InProcess
from fedgram.methods.base import engines

engines["inprocess"] = InProcess

__all__ = ["InProcess"]
