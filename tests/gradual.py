"""Methods and a watcher for tests of experiments: one that needs rounds, one that breaks, one that is interrupted."""

from dataclasses import dataclass

import numpy as np

import fedgram as fg


@dataclass(frozen=True, kw_only=True)
class Gradual(fg.Method):
    """Gradient descent on the squared error, one step a round."""

    rounds: int = 5
    rate: float = 0.05

    def serve(self, clients):
        model = None
        for number in clients.rounds_of(self.rounds):
            mean = clients.mean(self.gradient, model)
            weights = np.zeros_like(mean) if model is None else model.weights
            model = fg.LinearModel(weights - self.rate * mean, clients.classes)
            clients.report(number, model)
        return model

    @fg.step
    def gradient(self, client, model=None):
        weights = np.zeros((client.x.shape[1], len(client.classes))) if model is None else model.weights
        return client.x.T @ (client.x @ weights - np.eye(len(client.classes))[client.y]) / len(client.x)


@dataclass(frozen=True, kw_only=True)
class Fragile(fg.AFL):
    """AFL that breaks, as bad code does."""

    def serve(self, clients):
        raise ZeroDivisionError("no such thing")


@dataclass(frozen=True, kw_only=True)
class Stopped(fg.AFL):
    """AFL during which somebody presses Ctrl-C."""

    def serve(self, clients):
        raise KeyboardInterrupt


class Nobody:
    """A watcher who does not look."""

    def prepares(self, setting):
        pass

    def starts(self, run):
        pass

    def steps(self, run, round, step, done, total):
        pass

    def ends(self, run, record):
        pass
