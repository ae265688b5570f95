"""Small networks trained by gradients: layers, a network as one vector of numbers, and the one local SGD loop."""

from fedgram.nets.model import TrainedNet, outputs
from fedgram.nets.network import Net, read_network
from fedgram.nets.sgd import Hooks, Now, Plan, pull, train

__all__ = ["Hooks", "Net", "Now", "Plan", "TrainedNet", "outputs", "pull", "read_network", "train"]
