"""An experiment, described once: a TOML file or the same keys from the command line, checked before anything runs.

>>> methods = ["afl", {"name": "local", "ridge": 2}]
>>> experiment = Experiment.of({"data": "digits", "clients": [10, 50], "methods": methods})
>>> [scenario.clients for scenario in experiment.scenarios], [variant.label for variant in experiment.variants]
([10, 50], ['afl', 'local (ridge=2)'])
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import Any, Self, TypeVar

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.files import read_regular
from fedgram.data.spread import read_partition
from fedgram.experiments.scenario import STANDARD, Scenario, kind_of
from fedgram.experiments.variants import EXAMPLE, Variant, read_variants
from fedgram.protocol.method import Require

MOST_BYTES = 1 << 20  # of a file
DEEPEST = 16  # levels of tables and lists in a file: more than any experiment needs
T = TypeVar("T")
Reader = Callable[[str, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Every combination of data, backbone, number of clients, partition, seed and method is one run."""

    title: str
    scenarios: tuple[Scenario, ...]
    variants: tuple[Variant, ...]
    require: Require = "all"
    centralised_ridge: float = 0.0
    centralised_intercept: bool = True

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Check a table of keys as they stand in a TOML file."""
        for key in table:
            if key not in _READERS:
                raise UnknownName("key of an experiment", key, _READERS)
        for key in ("data", "methods"):
            if not table.get(key):
                raise InvalidParameter(f"an experiment needs {key!r}, as in {_EXAMPLES[key]}")
        values = {key: _READERS[key](key, value) for key, value in table.items()}
        own = {key: values.pop(key) for key in _OWN if key in values}
        own["variants"] = own.pop("methods")
        own["title"] = own.get("title") or ", ".join(values["data"])
        return cls(scenarios=_scenarios(values), **own)


def _scenarios(values: Mapping[str, Any]) -> tuple[Scenario, ...]:
    """Return every combination of the values of the keys that take lists."""
    settings = {key: value for key, value in values.items() if key not in _LISTS and value is not None}
    names, partitions = values["data"], values.get("partitions", ("",))
    # What follows from the data is found out once for each of them.
    usual = {pair: Scenario(data=pair[0], partition=pair[1], **settings) for pair in product(names, partitions)}
    first = next(iter(usual.values()))
    if first.test != STANDARD and not first.test_fraction:
        raise InvalidParameter(f"test_fraction 0 leaves nothing to test on: give more, or test = {STANDARD!r}")
    for scenario in usual.values():
        if "clients" in values and "partitions" not in values and not scenario.counts_clients:
            raise InvalidParameter(
                f"clients = {list(values['clients'])}, but the samples of {scenario.data} belong to clients already: "
                "leave clients out, or say with partitions how the samples are spread"
            )
    if len({bool(scenario.outcomes) for scenario in usual.values()}) > 1:
        kinds = ", ".join(f"{one.data} has {'numbers' if one.outcomes else 'classes'}" for one in usual.values())
        raise InvalidParameter(f"data: outcomes must be all classes or all numbers in an experiment, and {kinds}")
    numbers = values.get("clients", (first.clients,))
    backbones = values.get("backbone", (first.backbone,))
    combinations = product(values.get("seeds", (first.seed,)), names, backbones, numbers, partitions)
    made = (
        replace(usual[name, how], backbone=backbone, clients=number, seed=seed)
        for seed, name, backbone, number, how in combinations
    )
    return tuple(scenario for scenario in made if scenario.counts_clients or scenario.clients == numbers[0])


def read_file(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file, unchecked; a file without a title is called by its name."""
    too_deep = f"{path} is nested deeper than the {DEEPEST} levels that an experiment may have"
    try:
        table = tomllib.loads(read_regular(path, most=MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise InvalidParameter(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} is not a TOML file: {error}") from error
    except RecursionError:
        raise InvalidParameter(too_deep) from None
    if _deeper(table, DEEPEST):  # dotted keys nest without the parser's noticing
        raise InvalidParameter(too_deep)
    return {"title": path.stem, **table}


def _deeper(value: Any, levels: int) -> bool:
    """Say whether tables and lists are nested deeper than so many levels."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(items) and (levels == 0 or any(_deeper(item, levels - 1) for item in items))


def _text(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidParameter(f"{key} must be text, got {value!r}")
    return value or None


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidParameter(f"{key} must be a number, got {value!r}")
    return float(value)


def _not_negative(key: str, value: Any) -> float:
    if (number := _number(key, value)) < 0:
        raise InvalidParameter(f"{key} must be a number ≥ 0, got {value!r}")
    return number


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidParameter(f"{key} must be true or false, got {value!r}")
    return value


def _require(key: str, value: Any) -> Require:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value  # type: ignore[no-any-return]
    if isinstance(value, float) and 0 < value <= 1:
        return value
    raise InvalidParameter(f'{key} must be "all", a whole number of clients or a fraction up to 1.0, got {value!r}')


def _each(read: Callable[[str, Any], T]) -> Callable[[str, Any], tuple[T, ...]]:
    """Read a list, or one value instead of a list; nothing may stand in it twice."""

    def read_all(key: str, value: Any) -> tuple[T, ...]:
        items = tuple(read(key, item) for item in (value if isinstance(value, list | tuple) else [value]))
        if not items:
            raise InvalidParameter(f"{key} must not be empty")
        for item in items:
            if items.count(item) > 1:
                raise InvalidParameter(f"{key} has {item!r} twice: give each once")
        return items

    return read_all


def _whole(least: int) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidParameter(f"{key} must be whole numbers, at least {least}; got {value!r}")
        return value

    return read


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidParameter(f"{key} must be text{_like(key)}, got {value!r}")
    return value


def _partition(key: str, value: Any) -> str:
    kind, argument = read_partition(name := _name(key, value))
    if ":" in name and not 0 < argument < inf:
        raise InvalidParameter(f"{key}: {kind} takes a number > 0, got {name!r}")
    return name


def _methods(_: str, value: Any) -> tuple[Variant, ...]:
    return read_variants(value)


def _like(key: str) -> str:
    return f" such as {_EXAMPLES[key]}" if key in _EXAMPLES else ""


def _setting(field: "Field[Any]") -> Reader:
    """Return what reads a setting of a scenario, which itself checks what the value means."""
    if field.name == "partition":
        return _partition
    if field.type is str:
        return _name
    return {str: _text, int: _whole(0 if field.name == "seed" else 1), float: _number}[kind_of(field)]


_EXAMPLES = {
    "data": 'data = "digits"',
    "partitions": '"dirichlet:0.1"',
    "methods": EXAMPLE,
}
# Settings that take a list of values, by their keys in a file.
_LISTS = {"data": "data", "backbone": "backbone", "clients": "clients", "partitions": "partition", "seeds": "seed"}
_SETTINGS = {field.name: _setting(field) for field in fields(Scenario)}
_OWN: dict[str, Reader] = {
    "title": _text,
    "methods": _methods,
    "require": _require,
    "centralised_ridge": _not_negative,
    "centralised_intercept": _truth,
}
_READERS: dict[str, Reader] = {
    **{key: _each(_SETTINGS[name]) for key, name in _LISTS.items()},
    **{name: read for name, read in _SETTINGS.items() if name not in _LISTS.values()},
    **_OWN,
}
