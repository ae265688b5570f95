"""Judging models by the clients' own test samples: what clients say of them, and of how many samples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgram.core.errors import FedgramError
from fedgram.evaluation import Calibration, Evaluation
from fedgram.models import Model
from fedgram.numeric_evaluation import NumericEvaluation, as_errors

if TYPE_CHECKING:
    from fedgram.protocol.clients import Clients, Step


class _Said(NamedTuple):
    values: dict[str, Any]
    tested: dict[str, int]
    failed: dict[str, str]


def count_right(clients: "Clients", step: "Step", models: Mapping[str, Model | None]) -> Evaluation | None:
    """Return how many test samples of clients their models get right, and how sure they are; None if nobody has any."""
    said = _ask(clients, step, models)
    if said is None:
        return None
    known = {name: Calibration.of_sums(sums) for name, sums in said.values.items() if isinstance(sums, dict)}
    correct = {name: known[name].correct if name in known else count for name, count in said.values.items()}
    return Evaluation(correct, said.tested, said.failed, known)


def sum_up_errors(clients: "Clients", step: "Step") -> NumericEvaluation | None:
    """Return the errors of the clients' models in numeric outcomes; None if no client has test samples."""
    said, names = _ask(clients, step, dict.fromkeys(clients.present)), clients.agreement.outcomes
    if said is None:
        return None
    errors = {client: as_errors(sums, said.tested[client], names) for client, sums in said.values.items()}
    return NumericEvaluation(errors, said.tested, said.failed)


def _ask(clients: "Clients", step: "Step", models: Mapping[str, Model | None]) -> _Said | None:
    """Ask those that have test samples; one that fails is listed, and stays with the run."""
    able = {name: model for name, model in models.items() if clients.tested[name]}
    if not able:
        return None
    failures: dict[str, FedgramError] = {}
    answers = clients.ask(step, per_client=able, counted=False, failures=failures)
    values = {reply.client: reply.value for reply in answers if reply.value is not None}
    tested = {name: clients.tested[name] if name in values else 0 for name in clients.present}
    return _Said(values, tested, {name: str(error) for name, error in failures.items()})
