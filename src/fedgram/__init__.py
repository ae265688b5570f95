"""fedgram: federated learning in one message.

Each party sends one summary of its data; everyone gets back an exact global model and a personal one.
"""

from typing import TYPE_CHECKING, Any

from fedgram import engines, methods
from fedgram.core import errors
from fedgram.data import partition
from fedgram.data.client import Client, make_clients
from fedgram.data.dataset import Dataset
from fedgram.engines import InProcess
from fedgram.evaluation import Evaluation
from fedgram.models import LinearModel, Model
from fedgram.moments.drift import drift
from fedgram.moments.moments import Moments
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.fit import Fit, load
from fedgram.protocol.method import Method, step
from fedgram.protocol.registry import register, registry

if TYPE_CHECKING:
    from fedgram.exchange.store.study_store import Store

    # For editors and type checkers: a method's file is read when it is asked for. A test compares this with the folder.
    from fedgram.methods.analytic.afl import AFL
    from fedgram.methods.analytic.apfl import APFL
    from fedgram.methods.analytic.fedgram import FedGram
    from fedgram.methods.analytic.fedhip import FedHiP
    from fedgram.methods.analytic.fedlogit import FedLogit
    from fedgram.methods.analytic.local import Local
    from fedgram.methods.gradient.alone import Alone
    from fedgram.methods.gradient.apple import APPLE
    from fedgram.methods.gradient.baffle import BAFFLE
    from fedgram.methods.gradient.ditto import Ditto
    from fedgram.methods.gradient.fedala import FedALA
    from fedgram.methods.gradient.fedamp import FedAMP
    from fedgram.methods.gradient.fedapa import FedAPA
    from fedgram.methods.gradient.fedas import FedAS
    from fedgram.methods.gradient.fedavg import FedAvg
    from fedgram.methods.gradient.fedbabu import FedBABU
    from fedgram.methods.gradient.fedbn import FedBN
    from fedgram.methods.gradient.feddbe import FedDBE
    from fedgram.methods.gradient.feddisco import FedDisco
    from fedgram.methods.gradient.feddyn import FedDyn
    from fedgram.methods.gradient.fedgen import FedGen
    from fedgram.methods.gradient.fedgh import FedGH
    from fedgram.methods.gradient.fednova import FedNova
    from fedgram.methods.gradient.fedntd import FedNTD
    from fedgram.methods.gradient.fedpac import FedPAC
    from fedgram.methods.gradient.fedpcl import FedPCL
    from fedgram.methods.gradient.fedper import FedPer
    from fedgram.methods.gradient.fedphp import FedPHP
    from fedgram.methods.gradient.fedproto import FedProto
    from fedgram.methods.gradient.fedprox import FedProx
    from fedgram.methods.gradient.fedrep import FedRep
    from fedgram.methods.gradient.fedselect import FedSelect
    from fedgram.methods.gradient.fedzo import FedZO
    from fedgram.methods.gradient.finetuning import FedAvgFT, FedProxFT
    from fedgram.methods.gradient.moon import MOON
    from fedgram.methods.gradient.pfedhn import PFedHN
    from fedgram.methods.gradient.pfedla import PFedLA
    from fedgram.methods.gradient.pfedme import PFedMe
    from fedgram.methods.gradient.pfedzo import PFedZO
    from fedgram.methods.gradient.scaffold import SCAFFOLD
    from fedgram.methods.layerwise.fedacnnl import FedACnnL
    from fedgram.methods.layerwise.pfedacnnl import PFedACnnL
else:

    def __getattr__(name: str) -> Any:
        """Return a method by the name of its class, as in `fedgram.AFL`, or the store of exchanged files."""
        if name == "Store":  # few need it, and it imports much
            from fedgram.exchange.store.study_store import Store

            return Store
        # Methods alone begin with a capital letter; importing a submodule asks for its name here first.
        found = registry.class_named(name) if name[:1].isupper() else None
        if found is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return found

    def __dir__() -> list[str]:
        return sorted({*__all__, "data", *(name for name in globals() if name.startswith("__"))})


__version__ = "0.1.0"

__all__ = [
    "AFL",
    "APFL",
    "APPLE",
    "BAFFLE",
    "MOON",
    "SCAFFOLD",
    "Alone",
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
    "FedAS",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedBN",
    "FedDBE",
    "FedDisco",
    "FedDyn",
    "FedGH",
    "FedGen",
    "FedGram",
    "FedHiP",
    "FedLogit",
    "FedNTD",
    "FedNova",
    "FedPAC",
    "FedPCL",
    "FedPHP",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedProxFT",
    "FedRep",
    "FedSelect",
    "FedZO",
    "Fit",
    "InProcess",
    "LinearModel",
    "Local",
    "Method",
    "Model",
    "Moments",
    "PFedACnnL",
    "PFedHN",
    "PFedLA",
    "PFedMe",
    "PFedZO",
    "Store",
    "drift",
    "engines",
    "errors",
    "load",
    "make_clients",
    "methods",
    "partition",
    "register",
    "registry",
    "step",
]
