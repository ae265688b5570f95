"""Methods: one file each, reading like its paper's algorithm. `base` says what a method is."""

from fedgram.methods.afl import AFL
from fedgram.methods.apfl import APFL
from fedgram.methods.ditto import Ditto
from fedgram.methods.fedacnnl import FedACnnL
from fedgram.methods.fedala import FedALA
from fedgram.methods.fedamp import FedAMP
from fedgram.methods.fedapa import FedAPA
from fedgram.methods.fedavg import FedAvg
from fedgram.methods.feddbe import FedDBE
from fedgram.methods.feddyn import FedDyn
from fedgram.methods.fedgram import FedGram
from fedgram.methods.fedhip import FedHiP
from fedgram.methods.fedlogit import FedLogit
from fedgram.methods.fedphp import FedPHP
from fedgram.methods.fedproto import FedProto
from fedgram.methods.fedprox import FedProx
from fedgram.methods.finetuning import FedAvgFT, FedProxFT
from fedgram.methods.local import Local
from fedgram.methods.pfedacnnl import PFedACnnL
from fedgram.methods.pfedme import PFedMe
from fedgram.methods.registry import register, registry

__all__ = [
    "AFL",
    "APFL",
    "Ditto",
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
    "Local",
    "PFedACnnL",
    "PFedMe",
    "register",
    "registry",
]
