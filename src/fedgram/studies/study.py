"""A study: the agreement of the parties, as one TOML file that is the same for all of them.

A study has two hashes of 256 bits. Its `fingerprint` is of its rules: name, outcome, classes, columns and thresholds.
Files, messages and ledgers name a study by it, and sums with the same fingerprint can be added up. Its `agreement` is
of the whole study, with parties, keys, coordinator and method; people compare it, in the shorter form of `readable`,
before they begin. Who takes part may change afterwards, by amendments; the rules never do.

All comparisons of studies are here. If both sides have the whole study, the texts of its rules are compared, so that
nothing depends on the hash alone.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array, as_blocks
from fedgram.core.classes import Classes, as_classes, to_indices
from fedgram.core.columns import Columns
from fedgram.core.container import MOST_HEADER
from fedgram.core.errors import FedgramError, InvalidData, Mismatch, NotMoments, UnknownName, Withheld
from fedgram.core.filesystem import read_regular
from fedgram.core.hashing import hash_text, readable
from fedgram.core.schema import Natural, NotNegative, annotations_of, read, read_fields, shown
from fedgram.data.client import Client, StreamedLabels, warn_if_few
from fedgram.data.own.labels import one_form
from fedgram.moments import far_columns
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments, Schema, study_features
from fedgram.moments.targets import ClassTargets, NumericTargets, Targets
from fedgram.studies.derived import Expression
from fedgram.studies.kinds import MOST_NARROW, Category, Column, Flag, Ignore, Number, refuse_twice_sent, unknown
from fedgram.studies.media import Image, Media, Text
from fedgram.studies.small_groups import (
    Patterns,
    columns_per_row,
    groups_in_classes,
    listed_groups,
    remedy,
    rows_needed,
)

if TYPE_CHECKING:
    from fedgram.models import Model
    from fedgram.studies.model import StudyModel


def text_of(fields: dict[str, Any]) -> str:
    """Return a whole study as one line of JSON: two studies are the same if their texts are."""
    return json.dumps(fields, ensure_ascii=False, sort_keys=False)


# Fields of a study that say who takes part and how, and not what is added up.
NOT_RULES = ("parties", "regions", "coordinator", "witnesses", "method")


def is_same(agreed: "Study | None", fingerprint: str, whole: "Study | None" = None) -> bool:
    """Return whether something is of the agreed study: whether its sums are of the same columns, under the same rules.

    Parameters
    ----------
    agreed
        The study at hand, None for none.
    fingerprint
        The fingerprint that the thing names, "" for no study.
    whole
        The whole study that came with the thing, if it did. Then every word of its rules must be the same.

    """
    if fingerprint != ("" if agreed is None else agreed.fingerprint):
        return False
    return whole is None or (agreed is not None and whole.rules == agreed.rules)


def check_same(
    what: str,
    agreed: "Study | None",
    fingerprint: str,
    whole: "Study | None" = None,
    *,
    remedy: str,
    error: type[FedgramError] = Mismatch,
) -> None:
    """Raise an error unless something, called `what`, is of the agreed study; the other parameters are `is_same`'s."""
    if is_same(agreed, fingerprint, whole):
        return
    wanted = named(agreed)
    found = readable(fingerprint) or "none" if whole is None else named(whole)
    also = ", whose text differs though the fingerprint is the same" if found == wanted else ""
    if whole is not None and agreed is not None:
        told = differences(whole, agreed, leave_out=NOT_RULES)
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        also += f" ({'; '.join(told[:MOST_TOLD])}{more})"
    raise error(f"{what} is of study {found}{also}, and study {wanted} is expected: {remedy}")


MOST_TOLD = 3  # differences of two studies in an error


def differences(
    one: "Study", other: "Study", names: tuple[str, str] = ("there", "here"), leave_out: Sequence[str] = ()
) -> list[str]:
    """Return a line for each difference of two studies, which go by `names`; settings to `leave_out` may differ.

    >>> from fedgram.studies.kinds import Number
    >>> one, other = (Study("s", "ill", {"crp": Number(range=(0, top))}, ("no", "yes")) for top in (400, 300))
    >>> differences(one, other)
    ['crp: range [0.0, 400.0] there, [0.0, 300.0] here']
    """
    left, right = (
        {key: value for key, value in study.to_fields().items() if key not in leave_out} for study in (one, other)
    )
    found: list[str] = []

    def compare(where: str, ours: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        for key in dict.fromkeys((*ours, *others)):
            if (a := ours.get(key)) != (b := others.get(key)):
                found.append(f"{where}{key} {_told(a, key)} {names[0]}, {_told(b, key)} {names[1]}")

    tables = ("columns", "parties", "derived")
    compare("", *({key: value for key, value in fields.items() if key not in tables} for fields in (left, right)))
    columns = [{name: {"kind": kind} | rest for name, kind, rest in fields["columns"]} for fields in (left, right)]
    for name in dict.fromkeys((*columns[0], *columns[1])):
        if name in columns[0] and name in columns[1]:
            compare(f"{name}: ", columns[0][name], columns[1][name])
        else:
            found.append(f"{name}: only {names[name not in columns[0]]}")
    shared = [[name for name in each if name in columns[0] and name in columns[1]] for each in columns]
    if shared[0] != shared[1]:
        found.append(f"columns: in the order {_told(shared[0])} {names[0]}, {_told(shared[1])} {names[1]}")
    compare("derived ", *(dict(fields.get("derived", ())) for fields in (left, right)))
    compare("party ", *(dict(fields.get("parties", ())) for fields in (left, right)))
    if not found and left != right:
        found.append("the parties, or the derived columns, are in another order")
    return found


def _told(value: Any, key: str = "") -> str:
    """Return a setting for a message, shortened; "none" where there is none, and for a key that is not known yet."""
    if value is None and key in LIMITS:
        default = getattr(Study, key)
        return "as minimum_cell" if default is None else f"{default:g} (the default)"
    text = "none" if value in (None, "") else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


MOST_CHARACTERS = 100  # of a setting in a difference


def named(study: "Study | None") -> str:
    """Return a study's name and fingerprint for messages."""
    return "none" if study is None else f"{study.name!r} {readable(study.fingerprint)}"


STUDY_KEYS: dict[str, Any] = {
    "name": str,
    "outcome": str | Sequence[str],
    "classes": Sequence[str | int],
    "unit": str,
    "parties": Sequence[str] | Mapping[str, str],
    "regions": Sequence[str],
    "coordinator": str,
    "method": str,
    "minimum_samples": Natural,
    "minimum_cell": Natural,
    "minimum_group": Natural,
    "minimum_group_in_class": Natural,
    "maximum_columns_per_row": NotNegative,
}
LIMITS = ("minimum_group", "minimum_group_in_class", "maximum_columns_per_row")  # that most studies leave as they are
TABLES = ("study", "parties", "columns", "derived", "witnesses")
MOST_DEPTH = 8  # of tables and lists in one another
LARGEST = 1 << 63  # whole number, as TOML has them
MERGE = "merge with another party before anything is sent"
_METHOD = re.compile(r"[\w+.-]{1,100}")  # never a path or `module:Class`: a study must not choose code that is run
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


def check_method(name: str) -> None:
    """Raise if the name cannot be that of a registered method: a file or module would run its code when found."""
    if not _METHOD.fullmatch(name) or name.endswith(".py"):
        raise InvalidData(
            f"method = {shown(name)}: expected the name of a registered method, such as 'fedgram', got something else; "
            "a study does not choose code: take it out, and name your own file or module with --method on the command "
            "line"
        )


def _check_sizes(value: Any, where: str, depth: int = 0) -> None:
    """Raise for values nested too deep, and for too large numbers; dotted keys nest without brackets."""
    if depth > MOST_DEPTH:
        raise InvalidData(
            f"{where}: expected at most {MOST_DEPTH} levels of tables and lists, got more: it is not a study"
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
    at = f"{where}: [study] "
    found = read_fields(STUDY_KEYS, study, at)
    for key in ("name", "outcome"):
        if key not in found:
            raise InvalidData(f"{where}: [study] lacks {key!r}: add it")
    described = {name: _column(table, f"{where}: [columns.{name}]") for name, table in columns.items()}
    derived = read(Mapping[str, str], tables.get("derived", {}), f"{where}: [derived]")
    for name in derived:
        described.setdefault(name, Number())
    outcome = found["outcome"]
    if not outcome:
        raise InvalidData(f"{at}outcome: expected a column, or a list of some, got {shown(outcome)}; name it")
    given = ("coordinator", "method", "minimum_samples", "minimum_cell", *LIMITS)
    settings: dict[str, Any] = {
        "name": _printable(found["name"], f"{at}name"),
        "outcome": tuple(outcome) if isinstance(outcome, list) else outcome,
        "classes": _different(map(str, found["classes"]), f"{at}classes", "classes") if "classes" in found else (),
        "parties": _parties(tables, found, where),
        "regions": tuple(found.get("regions", ())),
        "columns": described,
        "derived": {name: text.strip() for name, text in derived.items()},
        **{key: found[key] for key in given if key in found},
    }
    if "unit" in found:
        if settings["classes"]:
            raise InvalidData(
                f"{at}has classes and unit = {shown(found['unit'])}: an outcome with classes has no unit; leave one out"
            )
        for name in [outcome] if isinstance(outcome, str) else outcome:
            described.setdefault(name, Number(unit=found["unit"]))
    return settings


def read_message(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a `Study` from the fields of a message, by the rules of a study's file."""
    study = {key: fields[key] for key in ("name", "outcome", "method", "minimum_samples", "minimum_cell")}
    study |= {key: fields[key] for key in LIMITS if key in fields}
    study |= {"classes": list(fields["classes"])} if fields["classes"] else {}
    study |= {"parties": dict(fields["parties"]), "regions": list(fields.get("regions", ()))}
    study |= {"coordinator": fields["coordinator"]} if "coordinator" in fields else {}
    columns = {name: {"kind": kind, **settings} for name, kind, settings in fields["columns"]}
    computed = fields.get("derived", ())
    derived = dict(computed)
    read_again = ((columns, fields["columns"]), (study["parties"], fields["parties"]), (derived, computed))
    if any(len(found) < len(sent) for found, sent in read_again):
        raise InvalidData("message: a study names each column and each party once, and this one has a name twice")
    read = read_tables({"study": study, "columns": columns, "derived": derived}, "message")
    for name, column in read["columns"].items():
        # Otherwise reading a file would make this process load the weights that the file names.
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
    kinds = annotations_of(cast("type", cls))
    for key in table:
        if key not in kinds and key != "kind":
            raise _unknown(at, f"key of a {kind}", key, kinds)
    settings = read_fields(kinds, table, f"{at} ")
    if "range" in settings:
        settings["range"] = _range(settings["range"], f"{at} range", shown(table["range"]))
    if "values" in settings:
        settings["values"] = _different(settings["values"], f"{at} values", "values")
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
            f"{at}: what is outside counts as missing, and missing values are refused: set missing = 'mean' or 'drop'"
        )
    return column


def _range(ends: Sequence[float], at: str, got: str) -> tuple[float, float]:
    low, high = ends
    if not low < high:
        raise InvalidData(f"{at}: expected the lower end first, such as [0, 120], got {got}; turn them round")
    if high / 2 - low / 2 < MOST_NARROW:
        raise InvalidData(f"{at}: expected ends that can be told apart, got {got}, too narrow to divide by: widen it")
    return low, high


def _table(tables: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = tables.get(key)
    if not isinstance(found, dict) or not found:
        example = "name and outcome" if key == "study" else "a table for each column, such as [columns.age]"
        raise InvalidData(f"{where} has no [{key}]: it holds {example}")
    return found


def _parties(tables: Mapping[str, Any], study: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return public keys by party, "" for an unknown key: from [parties], or from a list of names in [study]."""
    at, value = f"{where}: [study] parties", study.get("parties", [])
    if "parties" in tables:
        if "parties" in study:
            raise InvalidData(f"{at} and [parties] both say who takes part: keep one of them")
        at = f"{where}: [parties]"
        value = read(STUDY_KEYS["parties"], tables["parties"], at)
    named = dict.fromkeys(value, "") if isinstance(value, list) else value
    if len(named) < len(value):
        raise InvalidData(f"{at}: expected each party once, got a name twice; give each a name of its own")
    return {_printable(name, at): key for name, key in named.items()}


def _different(texts: Iterable[str], at: str, what: str) -> tuple[str, ...]:
    """Return texts without blanks around them, at least two; raise for empty or equal texts."""
    found = tuple(text.strip() for text in texts)
    if len(found) < 2 or "" in found or len(set(map(one_form, found))) < len(found):
        raise InvalidData(f"{at}: expected at least two {what}, all different and none empty, got {shown(list(found))}")
    return found


def _printable(text: str, at: str) -> str:
    if not text.strip() or not text.isprintable():
        raise InvalidData(f"{at}: expected a name of printable characters, got {shown(text)}")
    return text


def _count(found: tuple[str, int]) -> int:
    return found[1]


def _unknown(where: str, what: str, name: str, known: Any) -> InvalidData:
    return InvalidData(f"{where}: {UnknownName(what, name, known)}")


USUAL_COLUMNS_PER_ROW = 0.33
MOST_SHOWN = 100  # most names of columns in a line: a table may have thousands


@wire.register_message
@dataclass(frozen=True, eq=False)
class Study:
    """The outcome, the columns with their kinds, the classes and thresholds, and who takes part.

    Read one with `Study.read("study.toml")`; `fedgram study new` drafts one from a party's table. Two studies are the
    same if they say the same; comments in their files do not count.

    >>> from fedgram.studies.kinds import Category, Number
    >>> columns = {"age": Number(range=(0, 120)), "sex": Category(("F", "M"))}
    >>> study = Study("stroke", "diagnosis", columns, ("ill", "well"))
    >>> study.sent
    ('age', 'sex=M')
    """

    name: str
    outcome: str | tuple[str, ...]
    columns: Mapping[str, Column]
    classes: Classes = ()  # none: the outcome is a number, or several
    parties: Mapping[str, str] = field(default_factory=dict)  # public keys by name, "" where none is known yet
    method: str = "fedgram"
    minimum_samples: int = 10
    minimum_cell: int = 3
    regions: tuple[str, ...] = ()  # parties that may send a sum of other parties' summaries
    coordinator: str = ""  # the public key that rounds and published models are signed with, "" if none is named
    derived: Mapping[str, str] = field(default_factory=dict)  # expressions of columns that parties compute, by name
    minimum_group: int | None = None  # smallest group that sums may single out; None: as minimum_cell
    minimum_group_in_class: int = 0  # samples of a class with the same level, flag or gap
    maximum_columns_per_row: float = USUAL_COLUMNS_PER_ROW  # 0: no limit

    wire_name: ClassVar[str] = "study"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    def __post_init__(self) -> None:
        """Raise for settings that contradict each other."""
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        object.__setattr__(self, "parties", MappingProxyType(dict(self.parties)))
        object.__setattr__(self, "derived", MappingProxyType(dict(self.derived)))
        object.__setattr__(self, "maximum_columns_per_row", float(self.maximum_columns_per_row))  # 1 is 1.0
        check_method(self.method)
        if stranger := next((name for name in self.regions if name not in self.parties), None):
            raise InvalidData(f"regions names {stranger!r}, which is not among the parties: add it there")
        if len(set(self.outcomes)) < len(self.outcomes):
            raise InvalidData(f"outcome = {shown(list(self.outcomes))}: expected each column once, got one twice")
        if self.classes:
            as_classes(self.classes)
            if not isinstance(self.outcome, str):
                raise InvalidData(f"classes are of one outcome, got {', '.join(self.outcome)}: name one column")
            if self.outcome in self.columns:
                raise InvalidData(
                    f"{self.outcome!r} is the outcome and has classes, so it cannot be among the columns, too: remove "
                    f"[columns.{self.outcome}]"
                )
        for name in self.numeric_outcomes:
            column = self.columns.get(name)
            if not isinstance(column, Number):
                raise InvalidData(
                    f"outcome {name!r} has no classes, so it must be a number: describe it as [columns.{name}] with "
                    "kind = 'number', or give classes"
                )
            if column.filled:
                raise InvalidData(
                    f"outcome {name!r} cannot be made up where it is missing, got missing = {column.missing!r}: set "
                    f"missing = 'refuse' or 'drop' in [columns.{name}]"
                )
        self._check_derived()
        if not self._features:
            raise InvalidData("a study needs at least one column that is used: all are ignored")
        refuse_twice_sent(self.used)

    def _check_derived(self) -> None:
        """Raise for derived columns that are not numbers, or not of columns that a table has."""
        for name, expression in self.expressions.items():
            if name in self.outcomes or not isinstance(self.columns.get(name), Number):
                raise InvalidData(
                    f"derived {name!r}: expected a column of kind number that is not the outcome, got another; give it "
                    "a name of its own"
                )
            for of in expression.columns:
                kind = self.columns.get(of)
                if of in self.outcomes or of in self.derived or not isinstance(kind, Number | Flag | Ignore):
                    raise InvalidData(
                        f"derived {name!r}: expected columns of a party's table that are numbers, flags or ignored, "
                        f"and not the outcome, got {of!r}; describe it as [columns.{of}]"
                    )

    # Content
    @cached_property
    def expressions(self) -> dict[str, Expression]:
        """The expressions of the derived columns, by name."""
        found = {}
        for name, text in self.derived.items():
            try:
                found[name] = Expression.parse(text)
            except InvalidData as error:
                raise InvalidData(f"derived {name!r}: {error}") from None
        return found

    @cached_property
    def needed(self) -> Columns:
        """The columns that a table must have, outcomes last: those used, and those that others are computed from."""
        inputs = [of for expression in self.expressions.values() for of in expression.columns]
        return tuple(
            dict.fromkeys(name for name in (*self._features, *inputs, *self.outcomes) if name not in self.derived)
        )

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcome's columns."""
        return (self.outcome,) if isinstance(self.outcome, str) else self.outcome

    @property
    def numeric_outcomes(self) -> Columns:
        """The numeric outcomes, the last columns that are sent; () where the outcome has classes."""
        return () if self.classes else self.outcomes

    @cached_property
    def targets(self) -> Targets:
        """The targets of models: the classes, or the numeric outcomes in units of their ranges."""
        return ClassTargets(self.classes) if self.classes else self._numeric({})

    @cached_property
    def _features(self) -> dict[str, Column]:
        return {
            name: column
            for name, column in self.columns.items()
            if name not in self.outcomes and not isinstance(column, Ignore)
        }

    @cached_property
    def used(self) -> dict[str, Column]:
        """The columns that are sent, the numeric outcomes last."""
        return self._features | {name: self.columns[name] for name in self.numeric_outcomes}

    @property
    def dropping(self) -> Columns:
        """The columns for which rows without a value are left out."""
        return tuple(name for name, column in self.used.items() if getattr(column, "missing", "") == "drop")

    @cached_property
    def sent(self) -> Columns:
        """The names of the columns that are sent: numbers, indicators of missing values and of categories."""
        return tuple(sent for name, column in self.used.items() for sent in column.sent(name))

    @cached_property
    def text(self) -> str:
        """The whole study in one form: two studies are the same if their texts are."""
        return text_of(self.to_fields())

    @cached_property
    def rules(self) -> str:
        """The rules that moments depend on, as a text: the study without parties, regions, coordinator and method."""
        return text_of({name: value for name, value in self.to_fields().items() if name not in NOT_RULES})

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of `rules`, 64 hexadecimal digits: sums of studies with the same one can be added up."""
        return hash_text(self.rules)

    @cached_property
    def agreement(self) -> str:
        """The SHA-256 of `text`, 64 hexadecimal digits; `core.hashing.readable` writes it for people to compare."""
        return hash_text(self.text)

    @property
    def features(self) -> str:
        """The fingerprint of the features in moments under this study."""
        return study_features(self.name, self.fingerprint)

    @cached_property
    def schema(self) -> Schema:
        """The schema of moments under this study: classes, columns and feature fingerprint."""
        return Schema(self.targets.classes, len(self.sent), self.features, False, self.sent)

    @property
    def smallest_group(self) -> int:
        """The smallest group of samples that sums may single out."""
        return self.minimum_cell if self.minimum_group is None else self.minimum_group

    def admit(self, client: Client, used: int) -> None:
        """Raise, before a party sends anything, if it has fewer samples than the study asks for, or too small a group.

        `used` is the smallest number of samples behind a reply. A class of which the party has no samples passes.
        """
        counts = {str(label): count for label, count in client.label_counts().items()}
        self._admit_counts(client.name, counts, used, len(client.y))
        # A client of another study is refused by the agreement, before it is asked for anything.
        if self._looks_for_groups and (client.features, client.x.shape[1:]) == (self.features, (len(self.sent),)):
            self._admit_groups(client.name, self._patterns_of(client))

    def admit_patterns(self, party: str, counts: npt.NDArray[np.int64], patterns: Patterns) -> None:
        """Raise as `admit` does, for a party with these counts of samples by class and these patterns of indicators.

        An error tells the party its own figures; others are told the rule alone.
        """
        n = int(counts.sum())
        self._admit_counts(party, dict(zip(map(str, self.classes), counts.tolist(), strict=False)), n, n)
        if self._looks_for_groups:
            self._admit_groups(party, patterns)

    @property
    def _looks_for_groups(self) -> bool:
        return max(self.smallest_group, self.minimum_group_in_class) > 1

    def _patterns_of(self, client: Client) -> Patterns:
        """Return the patterns of indicators of a client's training samples."""
        found, data = Patterns(self), client.reordered(self.sent)
        if isinstance(data.y, StreamedLabels):
            labels: Any = data.y.indices(self.targets.classes).blocks(data.x)
        else:
            labels = [to_indices(data.y, self.targets.classes)]
        for x, own in zip(as_blocks(data.x), labels, strict=True):
            found.see(x, own)
        return found

    def _admit_counts(self, party: str, counts: Mapping[str, int], used: int, n: int) -> None:
        rule = f"study {self.name!r} asks every party for at least"
        if used < self.minimum_samples:
            asked = f"{rule} {self.minimum_samples} training samples, and"
            got = f"your table has {n}; {MERGE}" if used == n else f"a reply of {party!r} would be of {used}"
            raise Withheld(f"{asked} {got}").telling(f"{asked} this one has fewer")
        label, smallest = min(((label, count) for label, count in counts.items() if count), key=_count, default=("", 0))
        if self.classes and label and smallest < self.minimum_cell:
            asked = f"{rule} {self.minimum_cell} training samples of each class that it has, and"
            told = f"{asked} this one has fewer of some class"
            raise Withheld(
                f"{asked} your table has {smallest} of class {label!r}; leave this class out of the table, or {MERGE}"
            ).telling(told)
        if n < (needed := rows_needed(self, self.maximum_columns_per_row)):
            limit = f"maximum_columns_per_row = {self.maximum_columns_per_row:g}"
            asked = f"{rule} {needed} training samples for {sum(columns_per_row(self))} columns, by {limit}, and"
            raise Withheld(
                f"{asked} your table has {n}; use fewer columns, {MERGE}, or agree on another limit in the study"
            ).telling(f"{asked} this one has fewer")
        # With both set to 0, the parties have agreed that there is nothing to protect.
        if self.minimum_samples or self.minimum_cell:
            warn_if_few(party, len(self.sent), used)

    def _admit_groups(self, party: str, patterns: Patterns) -> None:
        key, least = "minimum_group", self.smallest_group
        found = patterns.small(least)
        if not found and self.classes and self.minimum_group_in_class > 1:
            key, least = "minimum_group_in_class", self.minimum_group_in_class
            found = groups_in_classes(patterns.indicators, patterns.gram, least)
        if found:
            raise Withheld(
                f"{key}: expected at least {least} samples in each group that the sums of {party!r} single out, got "
                f"{listed_groups(found)}: {'sums of so few' if found[0].samples > 1 else 'the values of one sample'} "
                f"could be read; {remedy(self, found)}, in the study"
            ).telling(
                f"{key}: study {self.name!r} asks for at least {least} samples in each group that sums single out, and "
                "this party has fewer in one"
            )

    # Columns that a model sees
    def basis(self, sums: Array, squares: Array, n: float) -> Basis:
        """Return the basis that maps columns sent to a model's features, given the pooled sums of the columns sent.

        Missing values get the pooled mean, and all features get mean 0 and standard deviation 1 in the pool. A
        column that does not vary becomes 0. The pooled mean of numeric outcomes is subtracted, since not every method
        has an intercept to find it.
        """
        if len(sums) != len(self.sent) or n < 1:
            raise Mismatch(
                f"sums of {len(self.sent)} columns and at least one sample are wanted, got {len(sums)} of {n:g}"
            )
        self.warn_of_lost(sums, squares, n)
        by_name = dict(zip(self.sent, np.asarray(sums, dtype=np.float64).tolist(), strict=True))
        power = dict(zip(self.sent, np.asarray(squares, dtype=np.float64).tolist(), strict=True))
        made: dict[str, tuple[dict[str, float], float]] = {}
        for name, column in self.used.items():
            for design, parts in column.design(name, by_name, n).items():
                mean = sum(value * by_name[part] for part, value in parts.items()) / n
                if name in self.numeric_outcomes:
                    made[design] = parts, -mean
                    continue
                # A value and its indicator are never both other than 0, so there are no products to add.
                mean_square = sum(value**2 * power[part] for part, value in parts.items()) / n
                spread = mean_square - mean**2
                scale = 1 / np.sqrt(spread) if spread > 64 * np.finfo(float).eps * mean_square else 0.0
                made[design] = {part: value * scale for part, value in parts.items()}, -mean * scale
        means = {name: -shift for name, (_, shift) in made.items()}
        return Basis.of(made, self.sent, None if self.classes else self._numeric(means))

    def basis_of(self, total: Moments) -> Basis:
        """Return the basis for a model's features, given the pooled moments of the columns sent."""
        return self.basis(total.cross.sum(axis=1), total.squares, total.n)

    def check_basis(self, basis: Basis) -> None:
        """Raise for a coordinator's basis that does not follow from any pooled sums."""
        check_basis(self, basis)

    def warn_of_lost(self, sums: Array, squares: Array, n: float) -> None:
        """Warn of numeric columns whose mean, in units of the range, is far from zero compared with their spread."""
        places = {sent: place for place, sent in enumerate(self.sent)}
        numbers = {name: column for name, column in self.used.items() if isinstance(column, Number)}
        chosen = [places[name] for name in numbers]
        names, means = list(numbers), sums[chosen] / n

        def remedy(place: int) -> str:
            column = numbers[names[place]]
            mean = column.centre + means[place] * column.half
            return f"give it a {'range' if column.range is None else 'narrower range'} about {mean:.6g} in the study"

        far_columns.warn(
            [f"column {name!r}" for name in names], sums[chosen], squares[chosen], n, remedy, level=np.finfo(float).eps
        )

    def _numeric(self, means: Mapping[str, float]) -> NumericTargets:
        """Return the numeric outcomes in units of their ranges, less their pooled means."""
        found = {name: column for name in self.outcomes if isinstance(column := self.columns[name], Number)}
        centre = np.array([column.centre + means.get(name, 0.0) * column.half for name, column in found.items()])
        unit = np.array([column.half for column in found.values()])
        return NumericTargets(self.outcomes, centre, unit)

    def model(self, model: "Model") -> "StudyModel":
        """Return a model of the columns sent as a model that takes the parties' own tables."""
        from fedgram.studies.model import StudyModel  # which needs this module

        return StudyModel(self, model)

    # Files and messages
    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Study":
        """Return the study of a TOML file; anything wrong in it is named with its key, its value and the remedy."""
        return cls.parse(read_text(path), where=os.fspath(path))

    @classmethod
    def parse(cls, text: str, *, where: str = "study") -> "Study":
        """Return the study that a TOML text describes."""
        settings = parse_study(text, where)
        try:
            return cls(**settings)
        except InvalidData as error:
            raise InvalidData(f"{where}: {error}") from None

    def to_fields(self) -> dict[str, Any]:
        """Return the study as fields of a message."""
        columns = [[name, column.kind, self.plain(name)] for name, column in self.columns.items()]
        outcome = self.outcome if isinstance(self.outcome, str) else list(self.outcome)
        return {
            "name": self.name,
            "outcome": outcome,
            "columns": columns,
            "classes": list(self.classes),
            "parties": [[name, key] for name, key in self.parties.items()],
            "method": self.method,
            "minimum_samples": self.minimum_samples,
            "minimum_cell": self.minimum_cell,
            # Left out if not set, so that they do not change the hash of studies without them.
            **({"regions": list(self.regions)} if self.regions else {}),
            **({"coordinator": self.coordinator} if self.coordinator else {}),
            **({"derived": [[name, text] for name, text in self.derived.items()]} if self.derived else {}),
            **{key: getattr(self, key) for key in LIMITS if getattr(self, key) != getattr(type(self), key)},
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Study":
        """Return the study in the fields of a message, checked by the rules of a study's file."""
        return cls(**read_message(fields))

    def plain(self, name: str) -> dict[str, Any]:
        """Return a column's settings as they stand in a file, without those that are not set."""
        column = self.columns[name]
        found = asdict(column.settled if isinstance(column, Media) else column)  # type: ignore[arg-type]
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in found.items() if value is not None
        }

    def check(self) -> None:
        """Do nothing: a study is checked when it is made."""

    def __eq__(self, other: object) -> bool:
        """Return whether both studies have the same text."""
        return self.text == other.text if isinstance(other, Study) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def about(self) -> list[str]:
        """Return a few lines that list the columns by use."""
        lines = [
            f"outcome: {', '.join(self.outcomes)}" + (f" ({', '.join(map(str, self.classes))})" if self.classes else "")
        ]
        for kind, heading in _HEADINGS.items():
            named = [
                name for name, column in self.columns.items() if type(column) is kind and name not in self.outcomes
            ]
            more = f" and {len(named) - MOST_SHOWN:,} more" if len(named) > MOST_SHOWN else ""
            lines += [f"{heading}: {', '.join(named[:MOST_SHOWN])}{more}"] if named else []
        return lines + [f"computed: {name} = {text}" for name, text in self.derived.items()][:MOST_SHOWN]


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a study file."""
    try:
        # A study travels in the header of a file. Editors of Windows begin a file with a byte order mark.
        return read_regular(path, most=MOST_HEADER).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidData(f"cannot read {os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from error


_HEADINGS: dict[type, str] = {
    Number: "numbers",
    Flag: "yes or no",
    Category: "categories",
    Image: "images",
    Text: "texts",
    Ignore: "ignored",
}


ROUNDING = 1e-6  # of the number of samples; sums of ones are exact, factors of Gram matrices are not
MOST_SCALE = 1e150  # of a column's standard deviation or its inverse: squares of both are numbers


def check_moments(study: Study, moments: Moments) -> None:
    """Raise for moments of other columns or classes, or with sums that rows under the study's rules cannot have.

    A column of 0 and 1 has a whole sum, and the same sum of squares; numbers in units of their range are from -1 to 1.
    """
    kind = moments.schema
    if kind.columns != study.sent or kind.classes != study.targets.classes or kind.features != study.features:
        raise Mismatch(f"these are not moments of the columns that study {study.name!r} sends")
    sums, squares = moments.cross, moments.squares
    indicators, bounded = _places(study)
    slack = ROUNDING * max(moments.n, 1)
    for place in bounded:
        if squares[place] > moments.n + slack or (np.abs(sums[place]) > moments.counts + slack).any():
            raise NotMoments(
                f"column {study.sent[place]!r} is from -1 to 1 in units of its range, and its sum of squares over "
                f"{moments.n} samples is {squares[place]:g}: encode the table by the study"
            )
    for place in indicators:
        found = sums[place]
        whole = (np.abs(found - found.round()) <= slack).all() and (found >= -slack).all()
        if not whole or abs(squares[place] - found.sum()) > slack:
            raise NotMoments(
                f"column {study.sent[place]!r} is 0 or 1, and its sums by class are {found.tolist()[:4]}, of squares "
                f"{squares[place]:g}: encode the table by the study"
            )


def check_basis(study: Study, basis: Basis) -> None:
    """Raise for a basis that does not follow from the study and any pooled sums.

    Names, order and number of features, and the columns that each is made of, follow from the study alone. Only the
    pooled means and standard deviations are free: finite, and within the ranges of columns that have a range.
    """
    own = study.basis(np.zeros(len(study.sent)), np.ones(len(study.sent)), 1.0)  # means 0, standard deviations 1
    expected = f"basis: expected the {len(own.columns)} columns that study {study.name!r} makes of {own.source}"
    remedy = "ask the coordinator for a round of this study"
    if basis.source != own.source or len(basis.shift) != len(own.shift):
        raise Mismatch(f"{expected}, got {len(basis.shift)} of {basis.source}; {remedy}")
    if basis.columns != own.columns or (basis.outcomes is None) != (own.outcomes is None):
        raise Mismatch(f"{expected}, got columns of other names, or in another order; {remedy}")
    if not (np.array_equal(basis.rows, own.rows) and np.array_equal(basis.places, own.places)):
        raise Mismatch(f"{expected}, got columns that are made of others; {remedy}")
    if own.outcomes is not None and basis.outcomes is not None:
        same = basis.outcomes.names == own.outcomes.names and np.array_equal(basis.outcomes.unit, own.outcomes.unit)
        if not same or not np.isfinite(basis.outcomes.centre).all():
            raise Mismatch(f"{expected}, got other outcomes, or other units of them; {remedy}")
    main = own.values == 1  # the value itself; the others stand in for missing ones
    scale, largest = np.zeros(len(own.shift)), np.full(len(own.shift), MOST_SCALE)
    scale[own.places[main]] = basis.values[main]
    bounded = np.isin(own.rows[main], _places(study)[1])
    largest[own.places[main][bounded]] = 1.0
    targets = np.isin(own.columns, study.numeric_outcomes)
    finite = np.isfinite(basis.values).all() and np.isfinite(basis.shift).all()
    slack = 1 + ROUNDING
    means = np.concatenate([np.abs(basis.values[~main]), np.abs(basis.shift)])  # each times its scale
    of = np.concatenate([own.places[~main], np.arange(len(own.shift))])
    if not (
        finite
        and ((scale == 0) | (scale * largest * slack >= 1)).all()
        and (scale <= MOST_SCALE).all()
        and (scale[targets] == 1).all()
        and (means / slack <= scale[of] * largest[of]).all()
    ):
        raise Mismatch(
            f"{expected} with means and standard deviations that columns in their ranges can have, got others; {remedy}"
        )


def _places(study: Study) -> tuple[list[int], list[int]]:
    """Return the places of columns of 0 and 1, and those of all columns bounded by -1 and 1."""
    indicators, bounded, place = [], [], 0
    for name, column in study.used.items():
        for sent in column.sent(name):
            is_indicator = isinstance(column, Category | Flag) or sent == unknown(name)
            if is_indicator:
                indicators.append(place)
            if is_indicator or (isinstance(column, Number) and column.range is not None):
                bounded.append(place)
            place += 1
    return indicators, bounded
