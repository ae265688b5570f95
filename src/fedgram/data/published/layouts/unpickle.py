"""Read the few plain values that a CIFAR "python" file holds, without ever running what a pickle asks for.

A pickle is a program. Here the only names it may use are the three that an array of bytes needs, and these are
stand-ins that record their arguments; every other name is refused.
"""

import pickle
import pickletools
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidData


def unpickle(path: Path) -> Any:
    """Return a value made of dicts, lists, bytes, numbers and uint8 arrays; texts come as bytes, as in Python 2."""
    try:
        data = path.read_bytes()
        _check_claims(data)
        return _Plain(len(data)).of(_Unpickler(data).load())
    except InvalidData as error:
        raise InvalidData(f"{path} {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InvalidData(f"{path} cannot be read ({type(error).__name__}: {error}): fetch it again") from error


def _check_claims(data: bytes) -> None:
    """Refuse a pickle that asks for room which its own bytes do not fill; reading it would take that room first."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(BytesIO(data))):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise InvalidData(f"asks for {argument} places, of which it fills {count}: refused")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data), encoding="bytes")
        self._room = len(data)

    def _encode(self, text: str, encoding: str) -> bytes:
        """Do what `codecs.encode` does for bytes, each of which is in the file once."""
        if encoding not in ("latin1", b"latin1"):
            raise InvalidData(f"holds bytes written as {encoding!r}: refused")
        self._room -= len(text)
        if self._room < 0:
            raise InvalidData("would become larger than any data file of its size: refused")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): _Array,
            ("numpy._core.multiarray", "_reconstruct"): _Array,
            ("numpy", "ndarray"): _NDARRAY,
            ("numpy", "dtype"): _Dtype,
            ("_codecs", "encode"): self._encode,  # how Python 3 writes bytes in the old protocol
        }
        if (module, name) not in known:
            raise InvalidData(f"asks for {module}.{name}, which no data file needs: refused")
        return known[module, name]


class _Array:
    """Stands in for an array: keeps the state it is given, and makes a real one only of plain bytes."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def value(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        _, shape, dtype, column_order, raw = self.state
        if not isinstance(dtype, _Dtype) or dtype.code not in (b"u1", "u1") or not isinstance(raw, bytes):
            raise InvalidData("holds an array that is not of bytes: not a CIFAR file")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if column_order else "C")


class _Dtype:
    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, _: Any) -> None:
        """Byte order and alignment mean nothing for bytes."""


_NDARRAY = "ndarray"


class _Plain:
    """Takes values apart, no more of them than the file has bytes: what is in itself many times would not end."""

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: Any) -> Any:
        """Return the value as dicts, lists, bytes, numbers and arrays."""
        self._room -= 1
        if self._room < 0:
            raise InvalidData("would become larger than any data file of its size: refused")
        match value:
            case _Array():
                return value.value()
            case dict():
                return {self.of(key): self.of(item) for key, item in value.items()}
            case list() | tuple():
                return [self.of(item) for item in value]
            case str():
                return value.encode()
            case bytes() | int():
                return value
        raise InvalidData(f"holds a {type(value).__name__}, which no CIFAR file does: refused")
