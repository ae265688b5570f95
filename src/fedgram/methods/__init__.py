"""Methods: one file each, reading like its paper's algorithm. `base` says what a method is."""

from fedgram.methods.analytic.afl import AFL
from fedgram.methods.analytic.apfl import APFL
from fedgram.methods.analytic.fedgram import FedGram
from fedgram.methods.analytic.fedhip import FedHiP
from fedgram.methods.analytic.fedlogit import FedLogit
from fedgram.methods.analytic.local import Local
from fedgram.methods.gradient.ditto import Ditto
from fedgram.methods.gradient.fedala import FedALA
from fedgram.methods.gradient.fedamp import FedAMP
from fedgram.methods.gradient.fedapa import FedAPA
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.feddbe import FedDBE
from fedgram.methods.gradient.feddyn import FedDyn
from fedgram.methods.gradient.fedphp import FedPHP
from fedgram.methods.gradient.fedproto import FedProto
from fedgram.methods.gradient.fedprox import FedProx
from fedgram.methods.gradient.finetuning import FedAvgFT, FedProxFT
from fedgram.methods.gradient.pfedme import PFedMe
from fedgram.methods.layerwise.fedacnnl import FedACnnL
from fedgram.methods.layerwise.pfedacnnl import PFedACnnL
from fedgram.protocol.registry import register, registry

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
