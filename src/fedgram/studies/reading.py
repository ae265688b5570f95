"""Reading a study file: what each key may be, and what to say of one that is wrong."""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from math import isfinite
from typing import Any, get_args, get_type_hints

from fedgram.core.errors import InvalidData, UnknownName
from fedgram.data.own.labels import one_form
from fedgram.studies.kinds import Category, Column, Flag, Ignore, Number
from fedgram.studies.media import Image, Media, Text
from fedgram.studies.ranges import MOST_NARROW

STUDY_KEYS = (
    "name",
    "outcome",
    "classes",
    "unit",
    "parties",
    "regions",
    "coordinator",
    "method",
    "minimum_samples",
    "minimum_cell",
)
TABLES = ("study", "parties", "columns", "witnesses")
MOST_DEPTH = 8  # of tables and lists in one another
LARGEST = 1 << 63  # whole number, as TOML has them
_METHOD = re.compile(r"[\w+.-]{1,100}")  # never a path or `module:Class`: a study must not choose code that is run
_SHOWN = 80  # characters of a wrong value
KINDS: dict[str, type[Number] | type[Flag] | type[Category] | type[Ignore] | type[Image] | type[Text]] = {
    kind.kind: kind for kind in (Number, Category, Flag, Ignore, Image, Text)
}


def parse_study(text: str, where: str) -> dict[str, Any]:
    """Return the settings of a `Study` from a TOML text."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a bare ValueError
        raise InvalidData(f"{where} is not TOML: {error}") from None
    return read_tables(tables, where)


def shown(value: Any) -> str:
    """Return a value for messages, cut to a line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_method(name: str) -> None:
    """Refuse a method that is not named as registered ones are: finding a file or module would run its code."""
    if not _METHOD.fullmatch(name) or name.endswith(".py"):
        raise InvalidData(
            f"method = {shown(name)}: expected the name of a registered method, such as 'fedgram', got something else; "
            "a study does not choose code: take it out, and name your own file or module with --method on the command "
            "line"
        )


def _check_sizes(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what is nested too deep, or too large, to be handled or even shown; dotted keys nest without brackets."""
    if depth > MOST_DEPTH:
        raise InvalidData(
            f"{where}: expected at most {MOST_DEPTH} levels of tables and lists, got more: it is no study"
        )
    if isinstance(value, int) and abs(value) > LARGEST:
        raise InvalidData(f"{where}: expected whole numbers of at most {LARGEST}, got one of {value.bit_length()} bits")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_sizes(item, where, depth + 1)


def read_tables(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of a `Study` from the tables of its file."""
    _check_sizes(tables, where)
    for key in tables:
        if key not in TABLES:
            raise _unknown(where, "table", key, TABLES)
    if "witnesses" in tables:
        raise InvalidData(f"{where}: [witnesses] is for secure sums, which this version does not have: remove it")
    study, columns = (_table(tables, key, where) for key in ("study", "columns"))
    for key in study:
        if key not in STUDY_KEYS:
            raise _unknown(where, "key of [study]", key, STUDY_KEYS)
    for key in ("name", "outcome"):
        if key not in study:
            raise InvalidData(f"{where}: [study] lacks {key!r}: add it")
    at = f"{where}: [study]"
    described = {
        _text(name, f"{where}: a column's name"): _column(table, f"{where}: [columns.{name}]")
        for name, table in columns.items()
    }
    outcome = study["outcome"]
    read: dict[str, Any] = {
        "name": _name(study["name"], f"{at} name"),
        "outcome": tuple(_texts(outcome, f"{at} outcome"))
        if isinstance(outcome, list)
        else _text(outcome, f"{at} outcome"),
        "classes": tuple(_classes(study["classes"], f"{at} classes")) if "classes" in study else (),
        "parties": _parties(tables, study, where),
        "regions": () if study.get("regions", []) == [] else tuple(_texts(study["regions"], f"{at} regions")),
        "coordinator": _text(study.get("coordinator", ""), f"{at} coordinator"),
        "method": _text(study.get("method", "fedgram"), f"{at} method"),
        "minimum_samples": _count(study.get("minimum_samples", 10), f"{at} minimum_samples"),
        "minimum_cell": _count(study.get("minimum_cell", 3), f"{at} minimum_cell"),
        "columns": described,
    }
    if "unit" in study:
        if read["classes"]:
            raise InvalidData(
                f"{at} has classes and unit = {shown(study['unit'])}: an outcome with classes has no unit"
            )
        for name in [outcome] if isinstance(outcome, str) else outcome:
            described.setdefault(name, Number(unit=_text(study["unit"], f"{at} unit")))
    return read


def read_message(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a `Study` from the fields of a message, by the rules of a study's file."""
    study = {key: fields[key] for key in ("name", "outcome", "method", "minimum_samples", "minimum_cell")}
    study |= {"classes": list(fields["classes"])} if fields["classes"] else {}
    study |= {"parties": dict(fields["parties"]), "regions": list(fields.get("regions", ()))}
    study |= {"coordinator": fields["coordinator"]} if "coordinator" in fields else {}
    columns = {name: {"kind": kind, **settings} for name, kind, settings in fields["columns"]}
    if len(columns) < len(fields["columns"]) or len(study["parties"]) < len(fields["parties"]):
        raise InvalidData("message: a study names each column and each party once, and this one has a name twice")
    read = read_tables({"study": study, "columns": columns}, "message")
    for name, column in read["columns"].items():
        # Else a file would choose weights to be looked up here, only because it was read.
        if isinstance(column, Media) and not (column.digest and column.features):
            raise InvalidData(f"message: [columns.{name}] must state digest and features of its backbone")
    return read


def _column(table: Any, at: str) -> Column:
    if not isinstance(table, dict):
        raise InvalidData(f"{at} must be a table such as {{ kind = 'number' }}, got {shown(table)}")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise (
            _unknown(at, "kind", kind if isinstance(kind, str) else shown(kind), KINDS)
            if kind is not None
            else InvalidData(f"{at} lacks 'kind': add one of {', '.join(KINDS)}")
        )
    cls = KINDS[kind]
    known = [field.name for field in fields(cls)]
    settings = {}
    for key, value in table.items():
        if key == "kind":
            continue
        if key not in known:
            raise _unknown(at, f"key of a {kind}", key, known)
        settings[key] = _READ[key](value, f"{at} {key}", cls)
    if cls is Category and "values" not in settings:
        raise InvalidData(f"{at} lacks 'values': list the values that the column may have, such as ['F', 'M']")
    if issubclass(cls, Media) and "backbone" not in settings:
        raise InvalidData(f"{at} lacks 'backbone': name what turns it into features, {' or '.join(cls.known)}")
    try:
        column = cls(**settings)
    except InvalidData as error:
        raise InvalidData(f"{at}: {error}") from None
    if isinstance(column, Number) and column.outside != "refuse" and column.range is None:
        raise InvalidData(f"{at} has outside = {column.outside!r} and no range: give range = [lowest, highest]")
    if isinstance(column, Number) and column.outside == "missing" and column.missing == "refuse":
        raise InvalidData(
            f"{at}: what is outside counts as missing, and missing values are refused: set missing = 'mean'"
        )
    return column


def _range(value: Any, at: str, _: type) -> tuple[float, float]:
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(_is_number(end) for end in value)
        or not value[0] < value[1]
    ):
        raise InvalidData(f"{at} = {shown(value)}: two numbers are wanted, the lower one first, such as [0, 120]")
    if value[1] / 2 - value[0] / 2 < MOST_NARROW:
        raise InvalidData(f"{at} = {shown(value)}: too narrow to divide by: widen it to what can be")
    return float(value[0]), float(value[1])


def _choice(value: Any, at: str, cls: type) -> str:
    choices = get_args(get_type_hints(cls)[at.rpartition(" ")[2]])
    if value not in choices:
        raise InvalidData(f"{at} = {shown(value)}: must be one of {', '.join(map(repr, choices))}")
    return str(value)


def _values(value: Any, at: str, _: type) -> tuple[str, ...]:
    found = tuple(text.strip() for text in _texts(value, at))
    if not _differ(found):
        raise InvalidData(f"{at} = {shown(value)}: at least two values are wanted, all different and none empty")
    return found


_READ: dict[str, Callable[[Any, str, type], Any]] = {
    "unit": lambda value, at, _: _text(value, at),
    "range": _range,
    "outside": _choice,
    "missing": _choice,
    "values": _values,
    "backbone": lambda value, at, _: _text(value, at),
    "digest": lambda value, at, _: _text(value, at),
    "features": lambda value, at, _: _count(value, at),
}


def _table(tables: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = tables.get(key)
    if not isinstance(found, dict) or not found:
        example = "name and outcome" if key == "study" else "a table for each column, such as [columns.age]"
        raise InvalidData(f"{where} has no [{key}]: it holds {example}")
    return found


def _parties(tables: Mapping[str, Any], study: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return public keys by party, "" where none is known: from [parties], or from a list of names in [study]."""
    at = f"{where}: [study] parties"
    value = study.get("parties", [])
    if "parties" in tables:
        if "parties" in study:
            raise InvalidData(f"{at} and [parties] both say who takes part: keep one of them")
        value, at = tables["parties"], f"{where}: [parties]"
    named = (
        dict.fromkeys(value, "") if isinstance(value, list) and all(isinstance(name, str) for name in value) else value
    )
    if not isinstance(named, dict) or not all(isinstance(key, str) for key in named.values()):
        raise InvalidData(f"{at} = {shown(value)}: a list of names is wanted, or a table of names and public keys")
    if isinstance(value, list) and len(named) < len(value):
        raise InvalidData(f"{at}: a party is named twice: give each a name of its own")
    return {_name(name, at): key for name, key in named.items()}


def _classes(value: Any, at: str) -> list[str]:
    if isinstance(value, list) and any(not isinstance(label, str) for label in value):
        value = [str(label) if isinstance(label, int) and not isinstance(label, bool) else label for label in value]
    found = [label.strip() for label in _texts(value, at)]
    if not _differ(found):
        raise InvalidData(f"{at} = {shown(value)}: at least two classes are wanted, all different and none empty")
    return found


def _differ(texts: Collection[str]) -> bool:
    """Say whether there are two texts or more, none empty, and no two that cells could not be told apart by."""
    return len(texts) > 1 and "" not in texts and len(set(map(one_form, texts))) == len(texts)


def _texts(value: Any, at: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise InvalidData(f"{at} = {shown(value)}: a list of texts is wanted, such as ['ill', 'well']")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidData(f"{at} = {shown(value)}: a text is wanted")
    return value


def _name(value: Any, at: str) -> str:
    text = _text(value, at)
    if not text.strip() or not text.isprintable():
        raise InvalidData(f"{at} = {shown(value)}: a name of printable characters is wanted")
    return text


def _count(value: Any, at: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidData(f"{at} = {shown(value)}: a whole number ≥ 0 is wanted")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _unknown(where: str, what: str, name: str, known: Any) -> InvalidData:
    return InvalidData(f"{where}: {UnknownName(what, name, known)}")
