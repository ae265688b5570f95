"""Columns that a study computes from others, by expressions such as `log(crp)` or `weight / height ** 2`.

Squares, logarithms and products cannot be made from sums afterwards, so each party computes them, row by row. An
expression is never run as code: it comes with another party's file. It is parsed here, by a grammar of numbers,
columns, `+ - * /`, whole powers, four functions and parentheses, and its length and depth are bounded.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData

MOST_CHARACTERS, MOST_PARTS, MOST_DEPTH, MOST_POWER = 500, 100, 20, 9
FUNCTIONS: dict[str, Callable[[Any], Any]] = {"log": np.log, "exp": np.exp, "sqrt": np.sqrt, "abs": np.abs}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|`(?P<quoted>[^`]*)`|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|[-+*/()])|(?P<other>\S))"
)
_GRAMMAR = "numbers, columns (in `backquotes` if need be), + - * / **, log, exp, sqrt, abs and parentheses"
Node: TypeAlias = tuple[Any, ...]  # an operation and what it is of: a number, a column's name, or other nodes


@dataclass(frozen=True)
class Expression:
    """An expression over columns.

    >>> made = Expression.parse("-log(crp) / `age [years]` ** 2")
    >>> made.columns
    ('crp', 'age [years]')
    >>> made.values({"crp": np.array([1.0, 0.0, np.nan]), "age [years]": np.array([2.0, 2.0, 2.0])})
    array([-0., nan, nan])
    """

    text: str
    root: Node

    @classmethod
    def parse(cls, text: str) -> "Expression":
        """Return the expression that a text describes; raise for any other text."""
        if len(text) > MOST_CHARACTERS:
            raise InvalidData(f"expected at most {MOST_CHARACTERS} characters, got {len(text)}; make it shorter")
        made = cls(text, _Parser(text).whole())
        if not made.columns:
            raise InvalidData(f"expected an expression with a column in it, got {text!r}; name one")
        return made

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that the expression is of."""
        return tuple(dict.fromkeys(_columns(self.root)))

    def values(self, cells: Mapping[str, Array]) -> Array:
        """Return the values for columns (n,); NaN where one of them is NaN, or the result is not a finite number."""
        with np.errstate(all="ignore"):
            found = np.asarray(_value(self.root, cells), dtype=np.float64)
        return np.where(np.isfinite(found), found, np.nan)


def _columns(node: Node) -> list[str]:
    if node[0] == "column":
        return [node[1]]
    return [name for part in node[1:] if isinstance(part, tuple) for name in _columns(part)]


def _value(node: Node, cells: Mapping[str, Array]) -> Any:
    match node:
        case ("number", number):
            return number
        case ("column", name):
            return cells[name]
        case ("minus", part):
            return -_value(part, cells)
        case ("power", part, exponent):
            return np.asarray(_value(part, cells)) ** exponent
        case ("+", one, other):
            return _value(one, cells) + _value(other, cells)
        case ("-", one, other):
            return _value(one, cells) - _value(other, cells)
        case ("*", one, other):
            return _value(one, cells) * _value(other, cells)
        case ("/", one, other):
            return np.divide(_value(one, cells), _value(other, cells))
        case (function, part):
            return FUNCTIONS[function](_value(part, cells))
    raise AssertionError(node)


class _Parser:
    """A parser of one expression: a method for each rule of the grammar, the loosest operators first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [(str(found.lastgroup), found[str(found.lastgroup)]) for found in _TOKEN.finditer(text)]
        self._next = self._depth = 0
        if len(self._tokens) > MOST_PARTS:
            raise InvalidData(f"expected at most {MOST_PARTS} parts, got {len(self._tokens)}; make it shorter")

    def whole(self) -> Node:
        found = self._sum()
        if self._next < len(self._tokens):
            raise self._wrong("an operator or the end")
        return found

    def _sum(self) -> Node:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Node:
        return self._chain(("*", "/"), self._factor)

    def _chain(self, signs: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        found = operand()
        while (sign := self._take(*signs)) is not None:
            found = (sign, found, operand())
        return found

    def _factor(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise InvalidData(f"expected at most {MOST_DEPTH} levels of parentheses and signs, got more; simplify it")
        found = ("minus", self._factor()) if self._take("-") else self._power()
        self._depth -= 1
        return found

    def _power(self) -> Node:
        found = self._atom()
        if self._take("**") is None:
            return found
        kind, text = self._peek()
        if kind != "number" or not text.isdigit() or not 1 <= int(text) <= MOST_POWER:
            raise self._wrong(f"a whole number from 1 to {MOST_POWER} after **")
        self._next += 1
        return ("power", found, int(text))

    def _atom(self) -> Node:
        kind, text = self._peek()
        if kind == "number":
            number = float(text)
            if not isfinite(number):
                raise self._wrong("a finite number")
            self._next += 1
            return ("number", number)
        if kind in ("name", "quoted") and text.strip():
            self._next += 1
            if kind == "quoted" or self._take("(") is None:
                return ("column", text.strip())
            if text not in FUNCTIONS:
                self._next -= 2
                raise self._wrong(f"one of the functions {', '.join(FUNCTIONS)}")
            return (text, self._inside())
        if self._take("("):
            return self._inside()
        raise self._wrong("a number, a column or a parenthesis")

    def _inside(self) -> Node:
        found = self._sum()
        if self._take(")") is None:
            raise self._wrong("a closing parenthesis")
        return found

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def _take(self, *signs: str) -> str | None:
        kind, text = self._peek()
        if kind != "sign" or text not in signs:
            return None
        self._next += 1
        return text

    def _wrong(self, expected: str) -> InvalidData:
        kind, text = self._peek()
        found = "the end" if kind == "end" else repr(text)
        return InvalidData(f"expected {expected}, got {found} in {self._text!r}; it may have {_GRAMMAR}")
