"""Reader of plain values by type annotations: for studies, experiments, configurations and records.

A wrong value raises `<field>: expected <this>, got <that>`, with the path of the field. Messages are bounded in length.

>>> read(Mapping[str, Sequence[Natural]], {"up": [1, 2]}, "traffic")
{'up': [1, 2]}
>>> read(Mapping[str, Sequence[Natural]], {"up": [1, "2"]}, "traffic")
Traceback (most recent call last):
fedgram.core.errors.InvalidData: traffic.up[1]: expected a whole number ≥ 0, got '2'
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import inf, isfinite
from reprlib import Repr
from sys import float_info
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from fedgram.core.errors import InvalidData

LARGEST = 1e300  # of numbers in records, so that their sums and means are numbers
MOST_COUNT = 2**63  # larger whole numbers cannot be counts
_WORDS: dict[Any, str] = {
    Any: "a value",
    **{bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"},
    **dict.fromkeys((list, tuple, Sequence), "a list"),
    **dict.fromkeys((dict, Mapping), "a table"),
    Callable: "a function",
}
_REPR = Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 60
_REPR.maxlevel = 3


class Bounds(NamedTuple):
    """Range of a number in an annotation: from `least` to `most`, excluding the end named in `open`; always finite."""

    least: float
    most: float = inf
    open: Literal["", "least", "most"] = ""

    def admits(self, value: float) -> bool:
        """Return whether a number is within the bounds."""
        return (
            self.least <= value <= self.most
            and abs(value) < inf
            and (not self.open or value != getattr(self, self.open))
        )

    def __str__(self) -> str:
        least = f"{'>' if self.open == 'least' else '≥'} {self.least:g}"
        return least if self.most == inf else f"{least} and {'<' if self.open == 'most' else '≤'} {self.most:g}"

    def __repr__(self) -> str:
        return str(self)  # as `help` shows an annotation


class Depth(NamedTuple):
    """Rule for any plain value in an annotation: lists and tables are nested to at most `levels` levels."""

    levels: int

    def admits(self, value: Any) -> bool:
        """Return whether a value is plain, with finite numbers, and not nested deeper."""
        if isinstance(value, dict | list):
            items = value.values() if isinstance(value, dict) else value
            return self.levels > 0 and all(map(Depth(self.levels - 1).admits, items))
        return isinstance(value, str | bool | None) or _is_plain(float, value, json=True)

    def __str__(self) -> str:
        return f"of finite numbers and texts, nested to {self.levels} levels at most"

    def __repr__(self) -> str:
        return str(self)


class NotEmpty:
    """Rule for texts in an annotation: they hold more than blanks."""

    def admits(self, value: str) -> bool:
        """Return whether a text holds more than blanks."""
        return bool(value.strip())

    def __str__(self) -> str:
        return "that is not empty"

    def __repr__(self) -> str:
        return str(self)


Natural: TypeAlias = Annotated[int, Bounds(0)]
Count: TypeAlias = Annotated[int, Bounds(1)]
Positive: TypeAlias = Annotated[float, Bounds(0, open="least")]
NotNegative: TypeAlias = Annotated[float, Bounds(0)]
Share: TypeAlias = Annotated[float, Bounds(0, 1)]
PositiveShare: TypeAlias = Annotated[float, Bounds(0, 1, open="least")]
BelowOne: TypeAlias = Annotated[float, Bounds(0, 1, open="most")]
Name: TypeAlias = Annotated[str, NotEmpty()]
Plain: TypeAlias = Annotated[Any, Depth(8)]


class _Misfit(Exception):
    """A value that is not of its annotated kind, by its path."""

    def __init__(self, path: str, kind: Any, value: Any) -> None:
        super().__init__(f"{path}: expected {describe(kind)}, got {shown(value)}")
        self.path = path


def read(kind: Any, value: Any, path: str, *, error: type[Exception] = InvalidData, json: bool = False) -> Any:
    """Return a value of an annotated kind; items of a table that are null are left out.

    Parameters
    ----------
    kind
        The annotation: bool, int, float, str, None, `Literal`, lists and tables of these, unions, and `Annotated` with
        a rule such as `Bounds`. Numbers are finite.
    value
        The value, from a reader of TOML or JSON.
    path
        The name of the value in error messages.
    error
        The class of the error for a wrong value.
    json
        Whether the value is of a record in JSON: whole numbers may be written as 5e7, and numbers can be added up.

    """
    try:
        return _read(kind, value, path, json)
    except _Misfit as misfit:
        raise error(str(misfit)) from None


def read_fields(
    kinds: Mapping[str, Any] | type, table: Mapping[str, Any], where: str = "", **options: Any
) -> dict[str, Any]:
    """Return the fields of a table that are in `kinds` and not null; other fields are ignored.

    `kinds` may be a dataclass with annotations. `where` is the prefix of the names in error messages.
    """
    kinds = annotations_of(kinds) if isinstance(kinds, type) else kinds
    found = {name: table[name] for name in kinds if table.get(name) is not None}
    return {name: read(given(kinds[name]), value, where + name, **options) for name, value in found.items()}


@cache
def annotations_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def describe(kind: Any) -> str:
    """Return the values that an annotation admits, in words."""
    return " or ".join(map(_describe, alternatives(kind)))


def shown(value: Any) -> str:
    """Return a value as messages show it, on one line of bounded length."""
    return _REPR.repr(value)


def given(kind: Any) -> Any:
    """Return a kind without None: the kind of an optional value that is given."""
    return Union[tuple(one for one in alternatives(kind) if one is not NoneType)]  # noqa: UP007 - of a tuple


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the kinds in a union; any other annotation as the only kind."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _key(name: str) -> str:
    """Return a table's key for messages, written out if it is odd or long."""
    return name if name.isprintable() and len(name) <= _REPR.maxstring else shown(name)


def _describe(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        plain, rule = get_args(kind)
        return f"{describe(plain)} {rule}"
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if origin is tuple and (parts := get_args(kind))[-1] is not Ellipsis:
        return f"a list of {len(parts)} values"
    known = _WORDS.get(origin or kind)
    return known or (f"an object of type {kind.__name__}" if isinstance(kind, type) else str(kind))


def _read(kind: Any, value: Any, path: str, json: bool) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        plain, rule = parts
        try:
            found = _read(plain, value, path, json)
        except _Misfit as misfit:
            raise misfit if misfit.path != path else _Misfit(path, kind, value) from None
        if not rule.admits(found):
            raise _Misfit(path, kind, value)
        return found
    if origin in (Union, UnionType):
        return _read_union(kind, value, path, json)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        items = {key: item for key, item in value.items() if item is not None or NoneType in alternatives(parts[1])}
        return {key: _read(parts[1], item, f"{path}.{_key(key)}", json) for key, item in items.items()}
    if origin in (list, tuple, Sequence) and isinstance(value, list | tuple):
        if origin is tuple and parts[-1] is not Ellipsis and len(value) != len(parts):
            raise _Misfit(path, kind, value)
        if _are_numbers(parts[0], value):
            return list(value)
        return [_read(parts[0], item, f"{path}[{place}]", json) for place, item in enumerate(value)]
    if _is_plain(kind, value, json):
        return kind(value) if kind in (int, float) else value
    raise _Misfit(path, kind, value)


def _are_numbers(kind: Any, values: Sequence[Any]) -> bool:
    """Return whether all values are surely numbers of a kind: a quick test, as records have lists of thousands."""
    plain, rule = get_args(kind) if get_origin(kind) is Annotated else (kind, Bounds(-LARGEST, LARGEST))
    if not values or plain not in (int, float) or not isinstance(rule, Bounds) or set(map(type, values)) != {plain}:
        return False
    low, high = min(values), max(values)
    sized = low > -MOST_COUNT and high < MOST_COUNT if plain is int else all(map(isfinite, values))
    return sized and rule.admits(low) and rule.admits(high)


def _read_union(kind: Any, value: Any, path: str, json: bool) -> Any:
    wrong: list[_Misfit] = []
    for one in alternatives(kind):
        try:
            return _read(one, value, path, json)
        except _Misfit as misfit:
            wrong.append(misfit)
    # An error about an item of a list says more than an error about the whole list.
    raise next((misfit for misfit in wrong if misfit.path != path), _Misfit(path, kind, value))


def _is_plain(kind: Any, value: Any, json: bool) -> bool:
    """Return whether a value is of a kind without parts; true is not 1, and numbers are finite."""
    if get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if kind is float:
            return abs(value) <= (LARGEST if json else float_info.max)
        return -MOST_COUNT < value < MOST_COUNT and (isinstance(value, int) or (json and value == value // 1))
    return isinstance(kind, type) and isinstance(value, kind)
