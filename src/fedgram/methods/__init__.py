"""Methods: one file each, reading like its paper's algorithm. `base` says what a method is."""

from fedgram.methods.afl import AFL
from fedgram.methods.apfl import APFL
from fedgram.methods.fedacnnl import FedACnnL
from fedgram.methods.fedgram import FedGram
from fedgram.methods.fedhip import FedHiP
from fedgram.methods.local import Local
from fedgram.methods.pfedacnnl import PFedACnnL
from fedgram.methods.registry import register, registry

__all__ = ["AFL", "APFL", "FedACnnL", "FedGram", "FedHiP", "Local", "PFedACnnL", "register", "registry"]
