"""fedgram: federated learning in one message.

Each party sends one summary of its data; everyone gets back an exact global model and a personal one.
"""

from fedgram import engines, errors
from fedgram.data import partition
from fedgram.data.client import Client, make_clients
from fedgram.data.dataset import Dataset
from fedgram.engines import InProcess
from fedgram.evaluation import Evaluation
from fedgram.methods import (
    AFL,
    APFL,
    Ditto,
    FedACnnL,
    FedALA,
    FedAMP,
    FedAPA,
    FedAvg,
    FedAvgFT,
    FedDBE,
    FedDyn,
    FedGram,
    FedHiP,
    FedLogit,
    FedPHP,
    FedProto,
    FedProx,
    FedProxFT,
    Local,
    PFedACnnL,
    PFedMe,
    register,
    registry,
)
from fedgram.methods.base import Method, step
from fedgram.methods.clients import Clients
from fedgram.methods.clientside import ClientSide
from fedgram.methods.fit import Fit, load
from fedgram.models import LinearModel, Model
from fedgram.moments import Moments

__version__ = "0.1.0"

__all__ = [
    "AFL",
    "APFL",
    "Client",
    "ClientSide",
    "Clients",
    "Dataset",
    "Ditto",
    "Evaluation",
    "FedACnnL",
    "FedALA",
    "FedAMP",
    "FedAPA",
    "FedAvg",
    "FedAvgFT",
    "FedDBE",
    "FedDyn",
    "FedGram",
    "FedHiP",
    "FedLogit",
    "FedPHP",
    "FedProto",
    "FedProx",
    "FedProxFT",
    "Fit",
    "InProcess",
    "LinearModel",
    "Local",
    "Method",
    "Model",
    "Moments",
    "PFedACnnL",
    "PFedMe",
    "engines",
    "errors",
    "load",
    "make_clients",
    "partition",
    "register",
    "registry",
    "step",
]
