"""The amount of a network's work, by which threads are chosen."""

import pytest

from fedgram.nets.factories import admit
from fedgram.nets.network import net_for

torch = pytest.importorskip("torch")


def make_lenet5(shape, classes):
    nn = torch.nn
    maps = nn.Sequential(nn.Conv2d(shape[0], 6, 5), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(maps, nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes))


CONVOLUTIONS = 28 * 28 * 6 * 3 * 25 + 10 * 10 * 16 * 6 * 25
LENET5 = CONVOLUTIONS + 400 * 120 + 120 * 84 + 84 * 10


@pytest.mark.parametrize(
    ("network", "shape", "multiplications"),
    [
        ("linear", (64,), 640),
        ("mlp:32:16", (64,), 64 * 32 + 32 * 16 + 160),
        ("lenet5", (32, 32, 3), LENET5),
        (make_lenet5, (32, 32, 3), LENET5),
        ("cnn", (28, 28), 26 * 26 * 32 * 9 + 11 * 11 * 64 * 32 * 9 + 64 * 25 * 128 + 1280),
    ],
)
def test_multiplications_of_a_sample(network, shape, multiplications):
    assert net_for(admit(network), shape, 10).multiplications == multiplications
