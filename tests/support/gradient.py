"""Shared helpers for tests of gradient methods."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.randomness import generator
from fedgram.methods.gradient.gradient_method import GradientMethod
from fedgram.nets import outputs
from fedgram.protocol.method import step

SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "lr": 0.05}
GRADIENT = [name for name in fg.registry if issubclass(fg.registry[name], GradientMethod)]


def fit(method, clients=None, **options):
    return method.fit(some_clients() if clients is None else clients, classes=CLASSES, **options)


def equal_clients():
    """Return clients with as many samples each."""
    return [replace(client, x=client.x[:20], y=client.y[:20]) for client in some_clients() if len(client.x) >= 20]


def alone(method, name):
    [client] = [client for client in some_clients() if client.name == name]
    return fit(method, [client]).personal[name].vector


def vectors(fitted):
    return np.stack([fitted.personal[name].vector for name in sorted(fitted.personal)])


def plain_sgd(client, vector, method, name="client-0"):
    """Return a linear model after the method's local training, written out with numpy in double precision."""
    weights, rng = vector.astype(np.float64), generator(0, "gradient", "train", 0, name)
    velocity = np.zeros_like(weights)
    for _ in range(method.epochs):
        order = rng.permutation(len(client.y))
        for start in range(0, len(order), method.batch):
            batch = order[start : start + method.batch]
            x, y = client.x[batch].astype(np.float64), np.eye(CLASSES)[client.y[batch]]
            scores = x @ weights[:-CLASSES].reshape(CLASSES, -1).T + weights[-CLASSES:]
            likely = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (likely / likely.sum(axis=1, keepdims=True) - y) / len(batch)
            velocity = method.momentum * velocity + np.append((error.T @ x).ravel(), error.sum(axis=0))
            weights = weights - method.lr * velocity
    return weights


def first_weights():
    """Return what every method begins with: the server draws it from the seed."""
    return fit(fg.FedAvg(**SETTINGS | {"rounds": 1, "lr": 1e-30})).model.vector


def loss(method, side, vector):
    scores = np.concatenate([block for _, block in outputs(method.net_of(side), vector, side.x)])
    return torch.nn.functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(side.y)).item()


def mean_features(method, fitted, clients):
    """Return each client's mean features under its own model."""
    found = []
    for client in clients:
        model = fitted.personal[client.name]
        found.append(np.concatenate([z for z, _ in outputs(model.net, model.vector, client.x)]).mean(axis=0))
    return np.stack(found)


def performing(method, perform, name="train"):
    """Return the method with a step that is done by `perform(usual, clients, *payloads)`."""

    def performed(self, clients, *payloads):
        return perform(partial(getattr(type(method), name), self), clients, *payloads)

    performed.__name__ = name  # the request of a step
    changed = {"name": method.name, name: step(batched=True)(performed)}
    return type(type(method).__name__, (type(method),), changed)(**method.settings())


def breaking(method, who, number):
    """Return the method with clients that fail in a round."""

    def perform(usual, clients, *payloads):
        if any(client.name in who and client.round == number for client in clients):
            raise RuntimeError("broken")
        return usual(clients, *payloads)

    return performing(method, perform)


def watched(method):
    """Return the method, and two dicts by round and client that a run fills: messages to clients, and replies."""
    sent, heard = {}, {}

    def perform(usual, clients, payloads):
        replies = usual(clients, payloads)
        for client, payload, reply in zip(clients, payloads, replies, strict=True):
            sent[client.round, client.name] = payload
            heard[client.round, client.name] = reply
        return replies

    return performing(method, perform), sent, heard


def image_clients():
    """Return the clients with digits as grey images of 16 × 16."""

    def images(x):
        return x.reshape(-1, 8, 8).repeat(2, 1).repeat(2, 2)

    return [replace(client, x=images(client.x), x_test=images(client.x_test)) for client in some_clients()]
