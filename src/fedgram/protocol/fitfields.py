"""Whether the fields of a saved fit are what they must be: a wrong one is named when the file is read."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from fedgram.core.errors import RefusedMessage
from fedgram.evaluation import BINS
from fedgram.models import Model
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.protocol.recipe import Recipe
from fedgram.protocol.timing import SPANS

Check = Callable[[str, Any], None]
LARGEST = 1e300  # beyond, a whole number has no float


def _is(kind: str, test: Callable[[Any], bool]) -> Check:
    def check(name: str, value: Any) -> None:
        if not test(value):
            shown = f"{value!r}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
            raise RefusedMessage(f"field {name!r} of a fit must be {kind}, got {shown[:60]}")

    return check


def _each(check: Check) -> Check:
    def check_all(name: str, value: Any) -> None:
        _is("a list", lambda found: isinstance(found, list | tuple))(name, value)
        for place, item in enumerate(value):
            check(f"{name}/{place}", item)

    return check_all


def _table(check: Check) -> Check:
    def check_all(name: str, value: Any) -> None:
        _is("a table", lambda found: isinstance(found, Mapping))(name, value)
        for key, item in value.items():
            check(f"{name}/{key}", item)

    return check_all


def _has(parts: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    every = {**parts, **(optional or {})}

    def check(name: str, value: Any) -> None:
        _is("a table", lambda found: isinstance(found, Mapping))(name, value)
        if not parts.keys() <= value.keys() <= every.keys():
            raise RefusedMessage(f"field {name!r} of a fit must have {sorted(every)}, got {sorted(value)[:10]}")
        for part, item in value.items():
            every[part](f"{name}/{part}", item)

    return check


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _setting(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_setting, value))
    return value is None or isinstance(value, str | bool) or _number(value)


def _model(value: Any) -> bool:
    return isinstance(value, Model) and isinstance(value.features, str)


_TEXT = _is("text", lambda value: isinstance(value, str))
_NUMBER = _is("a number", _number)
_COUNT = _is("a whole number ≥ 0", lambda value: _number(value) and isinstance(value, int) and value >= 0)
_MODEL = _is("a model", _model)
_POSITIVE = _is("a number ≥ 0", lambda value: _number(value) and value >= 0)
_BINS = {"samples": _each(_COUNT), "right": _each(_COUNT), "confidence": _each(_POSITIVE)}
_COUNTS = _has(
    {"correct": _table(_COUNT), "tested": _table(_COUNT)},
    {"failed": _table(_TEXT), "calibration": _table(_has({"squared": _POSITIVE, **_BINS}))},
)


def _evaluation(name: str, value: Any) -> None:
    _COUNTS(name, value)
    for client, sums in value.get("calibration", {}).items():
        if {len(sums[part]) for part in _BINS} != {BINS} or sum(sums["samples"]) != value["tested"].get(client):
            raise RefusedMessage(
                f"field {name!r} of a fit: calibration of {client!r} must have {BINS} ranges with all its test samples"
            )
    for client, tested in value["tested"].items():
        if tested and not value["correct"].get(client, inf) <= tested:
            raise RefusedMessage(f"field {name!r} of a fit: {client!r} must have from 0 to {tested} correct samples")


_SUMS = _has({"n": _COUNT, "squared": _POSITIVE, "absolute": _POSITIVE, "total": _NUMBER, "spread": _POSITIVE})
_ALL_ERRORS = _has({"errors": _table(_table(_SUMS)), "tested": _table(_COUNT)}, {"failed": _table(_TEXT)})


def _errors(name: str, value: Any) -> None:
    _ALL_ERRORS(name, value)
    if len({tuple(sums) for sums in value["errors"].values()}) > 1:
        raise RefusedMessage(f"field {name!r} of a fit: clients must have errors of the same outcomes")
    for client, tested in value["tested"].items():
        errors = value["errors"].get(client, {})
        if tested and (not errors or any(sums["n"] != tested for sums in errors.values())):
            raise RefusedMessage(f"field {name!r} of a fit: {client!r} must have errors of {tested} samples")


_CHECKS: dict[str, Check] = {
    "model": _or_none(_MODEL),
    "method": _TEXT,
    "settings": _table(_is("text, a number, true, false, null or a list of them", _setting)),
    "seed": _COUNT,
    "contributors": _each(_TEXT),
    "absent": _table(_TEXT),
    "lost": _table(_TEXT),
    "personal": _table(_MODEL),
    "traffic": _table(_has({"up": _COUNT, "down": _COUNT})),
    "evaluation": _or_none(_evaluation),
    "rounds": _each(_evaluation),
    "errors": _errors,
    "seconds": _NUMBER,
    "cpu_seconds": _table(_NUMBER),
    "total": _or_none(_is("moments", lambda value: isinstance(value, Moments))),
    "recipe": _or_none(_is("a study", lambda value: isinstance(value, Recipe))),
    "basis": _or_none(_is("a basis", lambda value: isinstance(value, Basis))),
    "shape": _each(_COUNT),
    "engine": _TEXT,
    "carried": _table(_COUNT),
    "notes": _table(lambda name, value: None),
    "timing": _table(_has({name: _NUMBER for name in (*SPANS, "asked") if name != "idle"}, {"idle": _NUMBER})),
}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse a fit one of whose fields is not what it must be, with the field's name; others are not looked at."""
    for name, check in _CHECKS.items():
        if name in fields:
            check(name, fields[name])
