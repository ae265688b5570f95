"""Local training of one client, and the same written out with autograd in double precision."""

import numpy as np
import torch

from fedgram.checks import CLASSES
from fedgram.protocol.clientside import ClientSide

# Every batch is the client's whole data, so that the order of samples does not matter.
WHOLE = {"batch": 1000, "momentum": 0.0, "lr": 0.1}


def side_of(client, *, round=1, classes=CLASSES, **state):
    """Return a client as a step sees it, with some state."""
    side = ClientSide(client, classes=tuple(range(classes)))
    side.enter("gradient", {"classes": None, "round": round, "seed": 0, "step": "train"})
    side.state.update(state)
    return side


def outputs_of(net, vector, x):
    """Return features (n, width) and scores (n, c) by a vector, in double precision; gradients flow to a tensor."""
    numbers = torch.as_tensor(vector).double().unsqueeze(0)
    buffers, weights = numbers[:, : net.buffers], numbers[:, net.buffers :]
    features, scores = net.forward(net.parts(weights), buffers, net.prepare(torch.from_numpy(x).double().unsqueeze(0)))
    return features[0].t(), scores[0].t()


def by_hand(method, side, start, steps, term):
    """Return the vector after some steps on the whole data, down the cross entropy and a term of the method.

    `term(features, scores, y, vector)` returns the added loss.
    """
    net, y = method.net_of(side), torch.from_numpy(side.y)
    vector = torch.from_numpy(np.array(start, dtype=np.float64))
    for _ in range(steps):
        vector.requires_grad_()
        features, scores = outputs_of(net, vector, side.x)
        loss = torch.nn.functional.cross_entropy(scores, y) + term(features, scores, y, vector)
        [gradient] = torch.autograd.grad(loss, vector)
        vector = vector.detach() - method.lr * gradient
    return vector.numpy()
