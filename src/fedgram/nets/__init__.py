"""Small networks trained by gradients: layers, a network as one vector of numbers, and the one local SGD loop."""

from fedgram.nets.model import TrainedNet, outputs
from fedgram.nets.network import Net, net_for, read_network
from fedgram.nets.sgd import PLAIN, Hooks, Now, Plan, pull, train

__all__ = ["PLAIN", "Hooks", "Net", "Now", "Plan", "TrainedNet", "net_for", "outputs", "pull", "read_network", "train"]
