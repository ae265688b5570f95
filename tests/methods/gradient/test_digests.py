"""Digests of the weights that every gradient method ends with: a change of the machinery changes none of them.

The file beside this one holds, for each method and network, a hash of all final vectors and three numbers that they
make. The hash is compared where numpy, torch and the processor are those of the recording, the numbers everywhere.
After a change that is meant to change results: `PYTHONPATH=tests python tests/methods/gradient/test_digests.py`.
"""

import json
import platform
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidParameter
from support import networks
from support.gradient import GRADIENT, image_clients

RECORDED = Path(__file__).with_name("digests.json")
NETWORKS = {"linear": "linear", "mlp": "mlp:12", "cnn": "cnn", "module": f"{networks.HERE}:Counting"}
FEW = {
    "fedzo": {"directions": 3, "lr": 1e-4},
    "pfedzo": {"directions": 3, "lr": 1e-4},
    "baffle": {"directions": 3, "rounds": 3},
}
SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "lr": 0.02, "participation": 0.7, "weight_decay": 1e-3}
FAR = 1e-3  # how far other processors' rounding takes the numbers


def machine():
    """Return the facts on which the bits of a matrix product depend."""
    return [np.__version__, torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability()]


def clients_for(network):
    if network == "cnn":
        return [fg.Client(c.name, c.x[:24], c.y[:24], c.x_test[:4], c.y_test[:4]) for c in image_clients()[:3]]
    return some_clients()


def found(name, network):
    """Return the hash and numbers of a method's final weights on a network."""
    settings = SETTINGS | FEW.get(name, {}) | {"network": NETWORKS[network]}
    if network == "cnn":
        settings |= {"rounds": 2, "epochs": 1}
    fitted = fg.registry[name](**settings).fit(clients_for(network), classes=CLASSES, seed=5)
    models = dict(sorted(fitted.personal.items())) | ({} if fitted.model is None else {"": fitted.model})
    numbers = np.concatenate([model.vector for model in models.values()])
    along = np.cos(np.arange(len(numbers)))
    sums = [float(np.abs(numbers).sum()), float(np.square(numbers, dtype=float).sum()), float(numbers @ along)]
    return {"sha256": sha256(numbers.tobytes()).hexdigest(), "numbers": sums}


def cases():
    """Yield the digests of methods by name and network, where these go together."""
    for name, network in product(GRADIENT, NETWORKS):
        with suppress(InvalidParameter):  # such as no layers below the last
            yield f"{name} on {network}", found(name, network)


RECORD = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"machine": [], "digests": {}}


@pytest.mark.parametrize(("name", "network"), [tuple(case.split(" on ")) for case in RECORD["digests"]])
def test_the_weights_are_those_that_were_recorded(name, network):
    got, want = found(name, network), RECORD["digests"][f"{name} on {network}"]
    np.testing.assert_allclose(got["numbers"], want["numbers"], rtol=FAR, atol=FAR)
    if machine() == RECORD["machine"]:
        assert got["sha256"] == want["sha256"]


def test_every_method_has_digests():
    assert {case.split(" on ")[0] for case in RECORD["digests"]} == set(GRADIENT)


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(digest)}" for case, digest in cases())
    RECORDED.write_text(f'{{"machine": {json.dumps(machine())},\n"digests": {{\n{lines}\n}}}}\n')
