"""Methods and a watcher for tests of experiments: a method of rounds, a method that breaks, and others."""

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
    """AFL that raises an error, as bad code does."""

    def serve(self, clients):
        raise ZeroDivisionError("no such thing")


@dataclass(frozen=True, kw_only=True)
class Modelless(fg.Local):
    """Training alone that does not say in its signature that it has no global model."""

    def serve(self, clients):
        return super().serve(clients)


@dataclass(frozen=True, kw_only=True)
class Stopped(fg.AFL):
    """AFL during which Ctrl-C is pressed."""

    def serve(self, clients):
        raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class Telling(fg.AFL):
    """AFL that leaves notes with two matrices: one of all clients, and one of other rows."""

    def serve(self, clients):
        weights = 0.9 * np.eye(len(clients.names))
        weights[0, 1], weights[2, -1] = 0.00123456, np.nan
        clients.note("weights", weights)
        clients.note("centres", np.arange(1, 7).reshape(2, 3))
        clients.note("large", np.eye(300))
        clients.note("remark", "none")
        return super().serve(clients)


class Nobody:
    """A watcher who does not look."""

    def prepares(self, scenario):
        pass

    def starts(self, run):
        pass

    def steps(self, run, step, round, done, total):
        pass

    def ends(self, run, record):
        pass
