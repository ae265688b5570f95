"""An experiment, described once: a TOML file or the same keys from the command line, checked before anything runs.

>>> methods = ["afl", {"name": "local", "ridge": 2}]
>>> experiment = Experiment.of({"data": "digits", "clients": [10, 50], "methods": methods})
>>> experiment.clients, [variant.label for variant in experiment.variants]
((10, 50), ['afl', 'local (ridge=2)'])
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Self, TypeVar

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.data.shift import read_shift
from fedgram.data.spread import read_partition
from fedgram.experiments.variants import Variant, read_variants
from fedgram.protocol.method import Require

# Where test samples come from: each client holds back some of its own; the data set's own test set; or, for data
# sets without one, a share of the samples held back before the rest is spread, the same for every seed.
LOCAL, STANDARD, HELD_OUT = TESTS = ("local", "standard", "held-out")
DEEPEST = 16  # levels of tables and lists in a file: more than any experiment needs
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Every combination of data, number of clients, partition, seed and method is one run."""

    title: str
    data: tuple[str, ...]
    clients: tuple[int, ...]
    partitions: tuple[str, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    backbone: str | None = None
    samples: int | None = None
    label_column: str | None = None
    client_column: str | None = None
    shift: str | None = None
    test: str = LOCAL
    test_fraction: float = 0.2
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
        values = {key: _READERS[key](key, table.get(key, _DEFAULTS.get(key))) for key in _READERS}
        values["variants"] = values.pop("methods")
        title = values.pop("title") or ", ".join(values["data"])
        experiment = cls(title=title, **values)
        experiment._check()
        return experiment

    def _check(self) -> None:
        """Refuse what makes no sense together."""
        if self.test != STANDARD and not self.test_fraction:
            raise InvalidParameter(f"test_fraction 0 leaves nothing to test on: give more, or test = {STANDARD!r}")
        if self.shift and self.test != LOCAL:
            raise InvalidParameter(f"shift needs test = {LOCAL!r}: with {self.test!r} the test images are no client's")
        for key in ("label_column", "client_column"):
            for name in self.data:
                if getattr(self, key) and is_named(name):
                    raise InvalidParameter(f"{key} is for tables of your own; data set {name!r} has no columns")


def is_named(data: str) -> bool:
    """Say whether data are a known data set and not a path."""
    from fedgram.data.published import catalog

    base = data.partition(":")[0]
    return base == "synthetic" or base.lower() in catalog.names()


def read_file(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file, unchecked; a file without a title is called by its name."""
    too_deep = f"{path} is nested deeper than the {DEEPEST} levels that an experiment may have"
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
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


def _fraction(key: str, value: Any) -> float:
    if not 0 <= (number := _number(key, value)) < 1:
        raise InvalidParameter(f"{key} must be at least 0 and less than 1, got {value!r}")
    return number


def _not_negative(key: str, value: Any) -> float:
    if (number := _number(key, value)) < 0:
        raise InvalidParameter(f"{key} must be a number ≥ 0, got {value!r}")
    return number


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidParameter(f"{key} must be true or false, got {value!r}")
    return value


def _test(key: str, value: Any) -> str:
    if value not in TESTS:
        raise UnknownName("kind of test", str(value), TESTS)
    return str(value)


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


def _samples(key: str, value: Any) -> int | None:
    return None if value is None else _whole(1)(key, value)


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidParameter(f"{key} must be text such as {_EXAMPLES[key]}, got {value!r}")
    return value


def _partition(key: str, value: Any) -> str:
    kind, argument = read_partition(name := _name(key, value))
    if ":" in name and not 0 < argument < inf:
        raise InvalidParameter(f"{key}: {kind} takes a number > 0, got {name!r}")
    return name


def _shift(key: str, value: Any) -> str | None:
    text = _text(key, value)
    if text is not None:
        read_shift(text)
    return text


def _methods(key: str, value: Any) -> tuple[Variant, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise InvalidParameter(f"{key} must be a list such as {_EXAMPLES[key]}, got {value!r}")
    return read_variants(value)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "title": _text,
    "data": _each(_name),
    "backbone": _text,
    "samples": _samples,
    "label_column": _text,
    "client_column": _text,
    "clients": _each(_whole(1)),
    "partitions": _each(_partition),
    "shift": _shift,
    "methods": _methods,
    "seeds": _each(_whole(0)),
    "test": _test,
    "test_fraction": _fraction,
    "require": _require,
    "centralised_ridge": _not_negative,
    "centralised_intercept": _truth,
}
_DEFAULTS: dict[str, Any] = {
    "clients": [20],
    "partitions": ["dirichlet:0.1"],
    "seeds": [0],
    "test": LOCAL,
    "test_fraction": 0.2,
    "require": "all",
    "centralised_ridge": 0.0,
    "centralised_intercept": True,
}
_EXAMPLES = {
    "data": 'data = "digits"',
    "partitions": '"dirichlet:0.1"',
    "methods": 'methods = ["afl", {name = "local", ridge = [0.1, 1]}]',
}
