"""Networks trained by gradients: built-in ones or any torch module, as one vector of numbers, and the one SGD loop."""

from fedgram.nets.factories import Factory, admit
from fedgram.nets.layers import Module, Shape, Tensor, Vector
from fedgram.nets.network import net_for, read_network
from fedgram.nets.sgd import PLAIN, Hooks, Now, Plan, pull, train
from fedgram.nets.trained_net import TrainedNet, outputs
from fedgram.nets.vector import Net

__all__ = [
    "PLAIN",
    "Factory",
    "Hooks",
    "Module",
    "Net",
    "Now",
    "Plan",
    "Shape",
    "Tensor",
    "TrainedNet",
    "Vector",
    "admit",
    "net_for",
    "outputs",
    "pull",
    "read_network",
    "train",
]
