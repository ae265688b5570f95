"""Payloads as what JSON can say, with their arrays apart, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fedgram.core.errors import RefusedMessage
from fedgram.core.wire.container import CODES, AnyArray
from fedgram.core.wire.messages import Message, Payload, check_arrays, registered, type_of

T = TypeVar("T")
Path: TypeAlias = "tuple[Path, str | int] | None"
_SCALARS = (str, int, float, bool, type(None))
_PLAIN = frozenset((str, int, bool, type(None)))


def to_tree(value: Payload, path: str, arrays: dict[str, AnyArray]) -> Any:
    """Return a payload as JSON can say it; its arrays go into `arrays`, by their paths."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.ndarray):
        dtype = value.dtype if value.dtype in CODES else value.dtype.newbyteorder("<")
        if dtype not in CODES:
            raise TypeError(f"field {path or 'payload'!r}: arrays of {value.dtype} cannot be sent")
        name = path or "payload"
        while name in arrays:  # {"a/b": …} and {"a": {"b": …}} have the same path
            name += "'"
        arrays[name] = np.asarray(value, dtype, order="C")
        return {"array": name}
    if isinstance(value, (list, tuple)):
        if _PLAIN.issuperset(map(type, value)):
            return {"plain": value}
        return {"list": [to_tree(item, _join(path, i), arrays) for i, item in enumerate(value)]}
    cls = type(value)
    if registered.get(getattr(cls, "wire_name", "")) is cls:
        return {
            "message": cls.wire_name,
            "version": cls.wire_version,
            "fields": _to_trees(value.to_fields(), path, arrays),
        }
    if isinstance(value, Mapping):
        return {"dict": _to_trees(value, path, arrays)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"field {path or 'payload'!r}: a {type(value).__name__} cannot be sent; send arrays, numbers, strings, "
        "lists, dicts or a dataclass made a message by wire.message"
    )


def _to_trees(fields: Mapping[Any, Payload], path: str, arrays: dict[str, AnyArray]) -> dict[str, Any]:
    return {str(key): to_tree(item, _join(path, key), arrays) for key, item in fields.items()}


@dataclass(frozen=True)
class Reader:
    """Puts a payload together; `arrays` are those not yet used."""

    arrays: dict[str, AnyArray]
    suspicious: bool
    finite: bool

    def read(self, tree: Any, path: Path) -> Payload:
        """Return the payload of a tree."""
        if not isinstance(tree, dict):
            if isinstance(tree, list):
                raise RefusedMessage(f"field {_where(path)!r} is malformed")
            if self.finite and isinstance(tree, float) and not isfinite(tree):
                raise RefusedMessage(f"field {_where(path)!r} is {tree}")
            return tree
        if len(tree) != (3 if "message" in tree else 1):  # else two readers could take two of its sides
            raise RefusedMessage(f"field {_where(path)!r} is malformed")
        if "array" in tree:
            array = self.arrays.pop(_expect(tree["array"], str, path), None)
            if array is None:
                raise RefusedMessage(
                    f"field {_where(path)!r}: its array {tree['array'][:60]!r} is missing, or another field's"
                )
            if self.finite:
                _check_finite(array, path)
            return array
        if "plain" in tree:
            plain = list(_expect(tree["plain"], list, path))
            if not _PLAIN.issuperset(map(type, plain)):
                raise RefusedMessage(f"field {_where(path)!r} is malformed")
            return plain
        if "list" in tree:
            return [self.read(item, (path, i)) for i, item in enumerate(_expect(tree["list"], list, path))]
        if "dict" in tree:
            return self._children(tree["dict"], path)
        if "message" in tree:
            return self._message(tree, path)
        raise RefusedMessage(f"field {_where(path)!r} is of no kind this version knows: {sorted(tree)[:5]}")

    def _children(self, tree: Any, path: Path) -> dict[str, Payload]:
        return {key: self.read(item, (path, key)) for key, item in _expect(tree, dict, path).items()}

    def _message(self, tree: dict[str, Any], path: Path) -> Message:
        cls = type_of(_expect(tree["message"], str, path))
        if tree.get("version") != cls.wire_version:
            raise RefusedMessage(
                f"{cls.wire_name} version {tree.get('version')!r}, this side has {cls.wire_version}: "
                "update the older side"
            )
        fields = self._children(tree.get("fields"), path)
        check_arrays(cls.wire_name, cls.wire_fields, fields)
        try:
            message = cls.from_fields(fields)
        except (KeyError, TypeError) as error:
            raise RefusedMessage(f"{cls.wire_name} has a missing or misshapen field: {error}") from error
        if self.suspicious:
            message.check()
        return message


def _check_finite(array: AnyArray, path: Path) -> None:
    # One pass without a temporary: a sum is finite unless an element is not (or the sum overflows).
    if array.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum(dtype=np.float64)):
                return
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            at = tuple(int(i) for i in bad[0])
            raise RefusedMessage(f"field {_where(path)!r} is {array[at]} at {list(at)}")


def _expect(value: Any, kind: type[T], path: Path) -> T:
    if not isinstance(value, kind):
        raise RefusedMessage(f"field {_where(path)!r} is malformed")
    return value


def _where(path: Path) -> str:
    """Return a path as text. Only errors need it: long keys times many children would cost a lot."""
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key)[:60])
    return "/".join(reversed(keys)) or "payload"


def _join(path: str, key: str | int) -> str:
    return f"{path}/{key}" if path else str(key)
