"""Hyper-parameters of a method: checked against their annotations, read from text."""

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from fedgram.core.errors import InvalidParameter, UnknownName


class Above(NamedTuple):
    """What an annotation says of a number's size. No bound admits infinity or NaN."""

    least: float
    itself: bool = False

    def admits(self, value: float) -> bool:
        """Say whether a number is within the bound."""
        return self.least < value < float("inf") or (self.itself and value == self.least)

    def __str__(self) -> str:
        return f"{'≥' if self.itself else '>'} {self.least:g}"


Positive: TypeAlias = Annotated[float, Above(0)]
NotNegative: TypeAlias = Annotated[float, Above(0, itself=True)]
Count: TypeAlias = Annotated[int, Above(1, itself=True)]


def parameter_types(cls: type) -> dict[str, Any]:
    """Return the annotations of a method's hyper-parameters by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def check_name(cls: type, name: str) -> None:
    """Refuse a name that is not a hyper-parameter of the method."""
    if name not in (known := parameter_types(cls)):
        raise UnknownName(f"parameter of {cls.__name__}", name, known)


def check_values(method: Any) -> None:
    """Refuse hyper-parameters that are not of their annotated kind and size."""
    for name, annotation in parameter_types(type(method)).items():
        value = getattr(method, name)
        if not any(_fits(value, kind) for kind in _alternatives(annotation)):
            raise InvalidParameter(f"{name} must be {describe(annotation)}, got {value!r}")


def read_settings(cls: type, settings: dict[str, str]) -> dict[str, Any]:
    """Return hyper-parameters from text, as `--set name=value` gives them.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Example:
    ...     alpha: float | Literal["auto"] = "auto"
    ...     rounds: int = 1
    >>> read_settings(Example, {"alpha": "2", "rounds": "10"})
    {'alpha': 2.0, 'rounds': 10}
    """
    values = {}
    for name, text in settings.items():
        check_name(cls, name)
        annotation = parameter_types(cls)[name]
        for kind in _alternatives(annotation):
            try:
                values[name] = _read(text, kind)
                break
            except ValueError:
                continue
        else:
            raise InvalidParameter(f"{name} must be {describe(annotation)}, got {text!r}")
    return values


def read_require(text: str) -> Any:
    """Return from text how many clients must take part: all, a number, or a fraction."""
    try:
        return text if text == "all" else int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise InvalidParameter(f"require takes all, a number or a fraction, got {text!r}") from None


def describe(annotation: Any) -> str:
    """Say in words what an annotation admits."""
    return " or ".join(map(_describe, _alternatives(annotation)))


def _describe(kind: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
    if get_origin(kind) is Annotated:
        plain, bound = get_args(kind)
        return f"{words[plain]} {bound}"
    if get_origin(kind) is Callable:
        return "a function"
    return words.get(kind) or " or ".join(map(repr, get_args(kind))) or str(kind)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        plain, bound = get_args(kind)
        return _fits(value, plain) and bound.admits(value)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind)


def _read(text: str, kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return _read(text, get_args(kind)[0])  # its size is checked when the method is made
    if kind is bool:
        return _choose(text, {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False})
    if kind is NoneType:
        return _choose(text, {"none": None})
    if get_origin(kind) is Literal:
        return _choose(text, {str(value): value for value in get_args(kind)})
    return kind(text)


def _choose(text: str, values: dict[str, Any]) -> Any:
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]
