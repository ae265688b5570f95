"""A method with a test's own steps, on a few small clients."""

from dataclasses import dataclass

import numpy as np

import fedgram as fg


def clients(count=4, d=3, n=6):
    rng = np.random.default_rng(0)
    return [fg.Client(f"c{k}", rng.normal(size=(n, d)), np.arange(n) % 2) for k in range(count)]


def model():
    return fg.LinearModel(np.eye(3, 2), (0, 1))


@dataclass(frozen=True, kw_only=True)
class Probe(fg.Method):
    """Records the inputs of steps and the server's replies."""

    def serve(self, clients):
        self.run(clients)
        return model()

    def run(self, clients):
        pass


def fit(method, parties=None, **options):
    return method.fit(parties if parties is not None else clients(), **{"classes": 2} | options)
