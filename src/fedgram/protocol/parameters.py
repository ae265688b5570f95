"""Hyper-parameters of a method: checked against their annotations, read from text."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from inspect import cleandoc
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from fedgram.core.errors import InvalidParameter, UnknownName, did_you_mean
from fedgram.core.schema import alternatives, annotations_of, describe

M = TypeVar("M")
_SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+$|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^(\w+)(?: *:.*)?\n((?:[ ]+.*(?:\n|\Z)|\n)+)", re.MULTILINE)


def parameter_types(cls: type) -> dict[str, Any]:
    """Return the annotations of a method's hyper-parameters by name."""
    return annotations_of(cls)


def own_notes(cls: type) -> dict[str, str]:
    """Return the descriptions in the `Parameters` section of a class's own docstring by name.

    >>> class Example:
    ...     '''An example.
    ...
    ...     Parameters
    ...     ----------
    ...     alpha : float
    ...         α, the weight
    ...         of something.
    ...     '''
    >>> own_notes(Example)
    {'alpha': 'α, the weight of something.'}
    """
    found = _SECTION.search(cleandoc(cls.__dict__.get("__doc__") or ""))
    entries = _ENTRY.findall(found[1]) if found else []
    return {name: " ".join(text.split()) for name, text in entries}


def parameter_notes(cls: type) -> dict[str, str]:
    """Return the descriptions of hyper-parameters by name; a class's own precede those of its bases."""
    return {name: note for base in reversed(cls.__mro__) for name, note in own_notes(base).items()}


def check_name(cls: type, name: str) -> None:
    """Refuse a name that is not a hyper-parameter of the method."""
    if name not in (known := parameter_types(cls)):
        namesake = getattr(cls, "namesake", "")
        raise UnknownName(f"parameter of {cls.__name__}{namesake and f' (not {namesake})'}", name, known)


def configured(cls: type[M], settings: Mapping[str, Any]) -> M:
    """Return the method with these hyper-parameters; raise if one that has no default is not among them."""
    for field in fields(cls):  # type: ignore[arg-type]  # methods are dataclasses
        if field.default is MISSING and field.default_factory is MISSING and field.name not in settings:
            kind = describe(parameter_types(cls)[field.name])
            raise InvalidParameter(
                f"{field.name}: expected {kind}, got none; {cls.__name__} has no default for it, so give it a value"
            )
    return cls(**settings)


def check_values(method: Any) -> None:
    """Refuse hyper-parameters that are not of their annotated kind and size."""
    for name, annotation in parameter_types(type(method)).items():
        value = getattr(method, name)
        if not any(_fits(value, kind) for kind in alternatives(annotation)):
            raise InvalidParameter(f"{name}: expected {describe(annotation)}, got {value!r}{_hint(annotation, value)}")


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
        for kind in sorted(alternatives(annotation), key=lambda kind: kind is not NoneType):  # "none" is a text, too
            try:
                values[name] = _read(text, kind)
                break
            except ValueError:
                continue
        else:
            raise InvalidParameter(f"{name}: expected {describe(annotation)}, got {text!r}{_hint(annotation, text)}")
    return values


def read_require(text: str) -> Any:
    """Return from text how many clients must take part: all, a number, or a fraction."""
    try:
        return text if text == "all" else int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise InvalidParameter(f"require takes all, a number or a fraction, got {text!r}") from None


def _hint(annotation: Any, value: Any) -> str:
    """Return the text in an annotation that was probably meant, as the end of a message."""
    texts = [text for kind in alternatives(annotation) if get_origin(kind) is Literal for text in get_args(kind)]
    near = did_you_mean(value, map(str, texts)) if isinstance(value, str) else ""
    return f"; {near}" if near else ""


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
