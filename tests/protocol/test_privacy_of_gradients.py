"""Messages of gradient methods, as docs/guides/privacy.md lists them: these fields, these shapes, and no others."""

from math import ceil

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core import wire
from fedgram.engines.inprocess import InProcess, Room
from fedgram.protocol import session

NETWORK = "mlp:8"
QUICK = {"network": NETWORK, "rounds": 2, "epochs": 1, "batch": 32}
NOISE, HIDDEN = 4, 6  # of FedGen's generator

# Sizes by letter: p numbers of the network, b of its base, h of its head, w features, c classes, K clients, k classes
# that the client has, s of all clients together, u that one of them has.
WEIGHTS = "float32 p"
SUMS = {"classes": "int32 k", "counts": "int32 k", "h": "float32 k w", "sums": "float32 k w"}
# By method the fields that each step sends down and up in the last round, without the steps of every run.
CROSSES = {
    "fedas": {"train": ("float32 b", {"base": "float32 b", "weight": "number"})},
    "fedpcl": {"train": ({"known": "bool K c", "means": "float32 s w"}, {"known": "bool c", "means": "float32 k w"})},
    "fedselect": {"train": (WEIGHTS, {"shared": WEIGHTS, "mask": "uint8 bits"})},
    "apple": {"settle": ({"place": "number", "p": "float32 K"}, None), "train": ("float32 K p", WEIGHTS)},
    "pfedhn": {"train": (WEIGHTS, WEIGHTS)},
    "pfedhn-pc": {"train": ("float32 b", "float32 b")},
    "pfedla": {"train": ({"layers": "bool layers", "mixed": WEIGHTS}, WEIGHTS)},
    "fedpac": {
        "train": (
            {"shared": WEIGHTS, "prototypes": {"classes": "int32 u", "means": "float32 u w"}},
            {"shared": WEIGHTS, "variance": "number", "features": SUMS},
        )
    },
    "fedgh": {"train": ("float32 h", {"classes": "int32 k", "means": "float32 k w"})},
    "moon": {"train": (WEIGHTS, WEIGHTS)},
    "fedgen": {
        "count": (None, "int64 c"),
        "train": ({"weights": WEIGHTS, "generator": "float32 generator", "labels": "int64 c"}, WEIGHTS),
    },
    "fedntd": {"train": (WEIGHTS, WEIGHTS)},
    "feddisco": {"differ": (None, "number"), "train": (WEIGHTS, WEIGHTS)},
    "feddisco-pooled": {"count": (None, "int64 c"), "train": (WEIGHTS, WEIGHTS)},
    "fedzo": {"train": (WEIGHTS, WEIGHTS)},
    "baffle": {
        "train": ({"weights": WEIGHTS, "seed": "number"}, {"changes": "float32 directions", "buffers": "float32 0"})
    },
    "pfedzo": {"train": (WEIGHTS, WEIGHTS)},
    "scaffold": {"train": ({"weights": WEIGHTS, "control": WEIGHTS}, {"weights": WEIGHTS, "control": WEIGHTS})},
    "fednova": {"train": (WEIGHTS, WEIGHTS)},
    "fedrep": {"train": ("float32 b", "float32 b")},
    "fedbabu": {"train": ("float32 b", "float32 b"), "finish": ("float32 b", None)},
    "fedbn": {"train": (WEIGHTS, WEIGHTS), "adopt": (WEIGHTS, None)},
}
SETTINGS = {
    "fedselect": {"every": 1},
    "pfedhn-pc": {"partial": True},
    "feddisco-pooled": {"target": "pooled"},
    "fedgen": {"noise": NOISE, "hidden": HIDDEN},
    "baffle": {"directions": 5},
}
EVERY_RUN = {"hello", "evaluate", "receive"}
FIRST_WEIGHTS = {"fedas", "fedpcl", "fedselect", "apple", "pfedhn", "pfedla", "fedpac", "fedgh", "moon", "pfedzo"}
FIRST_WEIGHTS |= {"fedrep", "fedbabu", "fedbn"}


class Tapped(Room):
    """The room of a run, and the last payloads that crossed each way, by step and client."""

    def __init__(self, *args):
        super().__init__(*args)
        self.crossed = {}

    def exchange(self, step, requests):
        requests = list(requests)
        answers = list(super().exchange(step, requests))
        down = {name: wire.decode(request)["payload"] for name, request in requests}
        up = {name: wire.decode(answer) for name, answer in answers}
        self.crossed[step] = {name: (down[name], up[name]) for name in down}
        return iter(answers)


def form(payload):
    """Return fields, types and shapes of a payload."""
    if isinstance(payload, dict):
        return {name: form(value) for name, value in payload.items()}
    if isinstance(payload, np.ndarray) and payload.shape:
        return payload.dtype.name, payload.shape
    return None if payload is None else "number"


def wanted(spec, sizes):
    """Return the form that a specification stands for."""
    if isinstance(spec, dict):
        return {name: wanted(value, sizes) for name, value in spec.items()}
    if spec in (None, "number"):
        return spec
    dtype, *letters = spec.split()
    return dtype, tuple(sizes[letter] for letter in letters)


@pytest.mark.parametrize("row", CROSSES)
def test_what_crosses_is_what_the_guide_says(row):
    name, clients = row.split("-")[0], some_clients()
    method = fg.registry[name](**QUICK | SETTINGS.get(row, {}))
    net = method.net(clients[0].x.shape[1:], CLASSES)
    room = Tapped(method, clients, InProcess())
    with room:
        session.run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    own = {client.name: len(np.unique(client.y)) for client in clients}
    sizes = {
        "p": net.size,
        "b": net.base.stop,
        "h": net.head.stop - net.head.start,
        "w": net.features,
        "c": CLASSES,
        "K": len(clients),
        "s": sum(own.values()),
        "u": len({label for client in clients for label in client.y}),
        "bits": ceil(net.size / 8),
        "layers": len(net.layer_slices),
        "generator": (NOISE + CLASSES + 1) * HIDDEN + (HIDDEN + 1) * net.features,
        "directions": 5,
        "0": 0,
    }
    ready = {"ready": (WEIGHTS if name in FIRST_WEIGHTS else None, None)}
    asked = {step: by_client for step, by_client in room.crossed.items() if step not in EVERY_RUN and by_client}
    assert asked.keys() == (ready | CROSSES[row]).keys()
    for step, (down, up) in (ready | CROSSES[row]).items():
        assert asked[step].keys() == own.keys()
        for client, (sent, replied) in asked[step].items():
            mine = sizes | {"k": own[client]}
            assert form(sent) == wanted(down, mine), f"{step}, down to {client}"
            assert form(replied) == wanted(up, mine), f"{step}, up from {client}"
