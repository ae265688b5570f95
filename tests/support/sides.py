"""A client's side of a gradient method, for single steps; and the messages of a round."""

from dataclasses import replace

import torch

from fedgram.checks import CLASSES, some_clients
from fedgram.protocol.clientside import ClientSide
from support.gradient import fit


def side_of(client, own, number=0, classes=CLASSES):
    """Return a client as a step sees it in a round, with a vector of its own."""
    side = ClientSide(client, classes=tuple(range(classes)))
    side.enter("gradient", {"classes": None, "round": number, "seed": 0, "step": "train"})
    side.state["own"] = own
    return side


def tensors(client):
    """Return a client's samples in double precision, and its labels."""
    return torch.from_numpy(client.x).double(), torch.from_numpy(client.y)


def layers(net, vector):
    """Return base and head of a perceptron as torch modules in double precision."""
    module = net.module(vector).double()
    return module[:-1], module[-1]


def stepped(module, loss, lr):
    """Return the module's numbers in one row after a step of gradient descent."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    moved = [(p - lr * g).detach().flatten() for p, g in zip(parameters, gradients, strict=True)]
    return torch.cat(moved).numpy()


def bytes_of_a_round(method):
    """Return the bytes of clients in a round after the first, up and down: {client: {way: bytes}}."""
    few, many = (fit(replace(method, rounds=rounds)).traffic.by_client for rounds in (2, 4))
    return {
        client.name: {way: (many[client.name][way] - few[client.name][way]) / 2 for way in ("up", "down")}
        for client in some_clients()
    }
