"""Networks trained by gradients: built-in ones or any torch module, as one vector of numbers, and the one SGD loop."""

from fedgram.nets.factories import Factory, admit
from fedgram.nets.model import TrainedNet, outputs
from fedgram.nets.network import net_for, read_network
from fedgram.nets.sgd import PLAIN, Hooks, Now, Plan, pull, train
from fedgram.nets.vector import Net

__all__ = [
    "PLAIN",
    "Factory",
    "Hooks",
    "Net",
    "Now",
    "Plan",
    "TrainedNet",
    "admit",
    "net_for",
    "outputs",
    "pull",
    "read_network",
    "train",
]
