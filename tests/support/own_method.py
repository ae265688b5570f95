"""A user's own method as text, to be written into files; it sends a message type of its own."""

import fedgram as fg

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedgram as fg
from fedgram.core import wire


@wire.register_message
@dataclass(frozen=True, eq=False)
class {name}Weights:
    values: object

    wire_name: ClassVar = "{lower}-weights"
    wire_version: ClassVar = 1
    wire_fields: ClassVar = {{"values": wire.Field("float64", ("d", "c"))}}

    def to_fields(self):
        return {{"values": self.values}}

    @classmethod
    def from_fields(cls, fields):
        return cls(**fields)

    def check(self):
        pass


@dataclass(frozen=True, kw_only=True)
class {name}(fg.Method):
    """{name} — the mean of the clients' ridge solutions, each with the same weight."""

    ridge: float = 1.0

    def serve(self, clients):
        total, count = 0, 0
        for reply in clients.call(self.train, {name}Weights(np.zeros((1, 1)))):
            total, count = total + reply.value.values, count + 1
        return fg.LinearModel(total / count, clients.classes)

    @fg.step
    def train(self, client, before):
        return {name}Weights(client.moments().solve(self.ridge))
'''


def forget_afterwards(monkeypatch):
    """Remove a test's registrations afterwards."""
    len(fg.registry)  # read our data
    monkeypatch.setattr(fg.registry, "_methods", dict(fg.registry._methods))


def write_method(path, name="Average"):
    """Write a method into a file, and return its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SOURCE.format(name=name, lower=name.lower()), encoding="utf-8")
    return str(path)
