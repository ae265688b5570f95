"""Which methods are personal: their models are each client's own, and not to be set against one global model."""

from fedgram.experiments.results import Result
from fedgram.protocol.registry import registry


def is_personal(run: Result) -> bool | None:
    """Say whether a run's method gives each client its own model; None where nobody knows."""
    if run.reference:
        return False
    if run.personal is not None:
        return run.personal
    return registry[run.method].personal if run.method in registry else None
