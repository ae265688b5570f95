"""Which methods are personal: their models are each client's own, and not to be set against one global model."""

from fedgram.experiments.results import Result
from fedgram.protocol.registry import registry


def is_personal(run: Result) -> bool | None:
    """Say whether a run's method gives each client its own model; None where nobody here knows the method."""
    if run.reference:
        return False
    return registry[run.method].personal if run.method in registry else None
