"""What test samples say of a run beyond accuracy: errors of numeric outcomes, probabilities, parties left out.

Written down here, and read again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Self

from fedgram.evaluation import BINS, Calibration, Evaluation
from fedgram.experiments.fields import count, each, maybe, number, table, text
from fedgram.numeric_evaluation import Errors, NumericEvaluation
from fedgram.protocol.reporting import scores

SUMS = ("squared", "absolute", "total", "spread")  # of numeric outcomes, as in `Errors`
WHICH = ("own", "pooled", "left_out")  # models that parties are predicted by


@dataclass(frozen=True)
class Validation:
    """Errors at each party of three models: of its own samples, of all, of all but it; or in `left_out` why not.

    `errors` are by numeric outcome, or for classes under the name "", then by model, then by measure, a list each.
    """

    names: Sequence[str] = ()
    samples: Sequence[int] = ()
    errors: Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]] = field(default_factory=dict)
    left_out: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read what a run's record says under "validation"."""
        names = maybe(each(text), record, "names") or []
        samples = maybe(each(count), record, "samples") or []
        errors = table(_models, record, "errors")
        models = [model for by_model in errors.values() for model in by_model.values()]
        lengths = {len(samples), *(len(values) for model in models for values in model.values())}
        if lengths - {len(names)}:
            raise ValueError(f"validation has lists that are not of its {len(names)} parties")
        for target, by_model in errors.items():
            wanted = {"mse", "r2", *(() if target else ("brier",))}
            if not all(wanted <= model.keys() for model in by_model.values()):
                raise ValueError(f"validation must have {', '.join(sorted(wanted))} for each model")
        return cls(names, samples, errors, maybe(text, record, "left_out") or "")


@dataclass(frozen=True)
class Judged:
    """What a run's record holds of it.

    `outcomes` are the numeric ones with their units, `errors` those over all test samples, `clients` those of each
    client, None without test samples. `probabilities` are over all test samples, `squared` and `calibration_errors`
    those of each client.
    """

    outcomes: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clients: Mapping[str, Sequence[Errors | None]] = field(default_factory=dict)
    probabilities: Mapping[str, float] = field(default_factory=dict)
    squared: Sequence[float] = ()
    calibration_errors: Sequence[float | None] = ()
    reliability: Calibration | None = None
    validation: Validation | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any], tested: Sequence[int]) -> Self:
        """Read a run's record; `tested` are the clients' numbers of test samples."""
        sums = table(_sums, record, "error_sums")
        squared = maybe(each(number), record, "squared") or []
        calibration = maybe(each(_maybe_number), record, "calibration_errors") or []
        lengths = {len(values) for parts in sums.values() for values in parts.values()}
        if (lengths | {len(squared), len(calibration)}) - {0, len(tested)}:
            raise ValueError(f"sums of test samples are not those of {len(tested)} clients")
        return cls(
            outcomes=table(text, record, "outcomes"),
            errors=table(_figures, record, "errors"),
            clients={name: _errors(parts, tested) for name, parts in sums.items()},
            probabilities=table(number, record, "probabilities"),
            squared=squared,
            calibration_errors=calibration,
            reliability=maybe(_reliability, record, "reliability"),
            validation=maybe(_validation, record, "validation"),
        )


def recorded(
    evaluation: Evaluation | NumericEvaluation | None, names: Sequence[str], units: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a record holds of an evaluation, in the order of the clients; a client that was lost has zeros."""
    outcomes = {"outcomes": dict(units)} if units else {}
    if evaluation is None or not any(evaluation.tested.values()):
        return {"untested": len(names), **outcomes}
    judges = list(names) if set(evaluation.tested) <= set(names) else list(evaluation.tested)
    tested = [evaluation.tested.get(name, 0) for name in judges]
    known = {"tested": tested, "untested": evaluation.untested, **outcomes, **scores(evaluation)}
    if isinstance(evaluation, NumericEvaluation):
        return known | {"error_sums": {name: _listed(evaluation, name, judges) for name in evaluation.pooled}}
    known["correct"] = [evaluation.correct.get(name, 0) for name in judges]
    if evaluation.probabilities is not None:
        by_client = [evaluation.calibration.get(name) for name in judges]
        known["squared"] = [0.0 if found is None else found.squared for found in by_client]
        known["calibration_errors"] = [None if found is None else _or_none(found.error) for found in by_client]
        sums = asdict(evaluation.probabilities)
        known["reliability"] = {name: list(part) if isinstance(part, tuple) else part for name, part in sums.items()}
    return known


def _listed(evaluation: NumericEvaluation, outcome: str, judges: Sequence[str]) -> dict[str, list[float]]:
    nothing = Errors(0, 0.0, 0.0, 0.0, 0.0)
    found = [evaluation.by_client.get(name, {}).get(outcome, nothing) for name in judges]
    return {part: [getattr(errors, part) for errors in found] for part in SUMS}


def _errors(parts: Mapping[str, Sequence[float]], tested: Sequence[int]) -> list[Errors | None]:
    rows = zip(tested, *(parts[name] for name in SUMS), strict=True)
    return [Errors(n, *sums) if n else None for n, *sums in rows]


def _or_none(value: float) -> float | None:
    return value if isfinite(value) else None


def _maybe_number(name: str, value: Any) -> float | None:
    return None if value is None else number(name, value)


def _table_of(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table")
    return value


def _figures(name: str, value: Any) -> dict[str, float]:
    return table(number, {name: value}, name)


def _sums(name: str, value: Any) -> dict[str, list[float]]:
    found = table(each(number), {name: value}, name)
    if found.keys() != set(SUMS):
        raise ValueError(f"{name} must have {', '.join(SUMS)}")
    return found


def _models(name: str, value: Any) -> dict[str, dict[str, list[float | None]]]:
    found = table(lambda which, item: table(each(_maybe_number), {which: item}, which), {name: value}, name)
    if found.keys() != set(WHICH):
        raise ValueError(f"{name} must have {', '.join(WHICH)}")
    return found


def _reliability(name: str, value: Any) -> Calibration:
    fields = _table_of(name, value)
    parts = {part: each(count)(part, fields.get(part)) for part in ("samples", "right")}
    confidence = each(number)("confidence", fields.get("confidence"))
    if {len(confidence), *map(len, parts.values())} != {BINS}:
        raise ValueError(f"{name} must have {BINS} ranges of confidence")
    return Calibration.of_sums({**parts, "confidence": confidence, "squared": number("squared", fields.get("squared"))})


def _validation(name: str, value: Any) -> Validation:
    return Validation.of(_table_of(name, value))
