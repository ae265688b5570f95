"""fedgram: federated learning in one message.

Each party sends one summary of its data; everyone gets back an exact global model and a personal one.
"""

from fedgram import engines
from fedgram.core import errors
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
from fedgram.models import LinearModel, Model
from fedgram.moments.moments import Moments
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.fit import Fit, load
from fedgram.protocol.method import Method, step

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
