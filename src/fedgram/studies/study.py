"""A study: what the parties agree on, as one TOML file that is the same for all of them."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.core.files import read_regular
from fedgram.core.labels import NUMERIC, Classes, as_classes
from fedgram.core.wire.container import MOST_HEADER
from fedgram.data.client import Client, warn_if_few
from fedgram.moments import digits
from fedgram.moments.basis import Basis
from fedgram.moments.kind import Kind, study_features
from fedgram.regressors import Outcomes
from fedgram.studies.identity import fingerprint_of, text_of
from fedgram.studies.kinds import Category, Column, Flag, Ignore, Number, refuse_twice_sent
from fedgram.studies.media import Image, Media, Text
from fedgram.studies.reading import check_method, parse_study, read_message, shown

if TYPE_CHECKING:
    from fedgram.models import Model
    from fedgram.studies.model import StudyModel

MOST_SHOWN = 100  # names of columns of a kind: a table may have thousands


@wire.register_message
@dataclass(frozen=True, eq=False)
class Study:
    """The outcome, the columns with their kinds, the classes and thresholds, and who takes part.

    Read one with `Study.read("study.toml")`; `fedgram study new` drafts one from a party's table. Two studies are the
    same if they say the same, whatever comments their files have.

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
    regions: tuple[str, ...] = ()  # those among the parties who may send a sum of others' summaries
    coordinator: str = ""  # the public key that rounds and published models are signed with, "" where nobody says

    wire_name: ClassVar[str] = "study"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        object.__setattr__(self, "parties", MappingProxyType(dict(self.parties)))
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
        for name in self.targets:
            column = self.columns.get(name)
            if not isinstance(column, Number):
                raise InvalidData(
                    f"outcome {name!r} has no classes, so it must be a number: describe it as [columns.{name}] with "
                    "kind = 'number', or give classes"
                )
            if column.missing != "refuse":
                raise InvalidData(
                    f"outcome {name!r} cannot be made up where it is missing, got missing = {column.missing!r}: set "
                    f"missing = 'refuse' in [columns.{name}]"
                )
        if not self._features:
            raise InvalidData("a study needs at least one column that is used: all are ignored")
        refuse_twice_sent(self.used)

    # What it says
    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcome's columns."""
        return (self.outcome,) if isinstance(self.outcome, str) else self.outcome

    @property
    def targets(self) -> Columns:
        """The numeric outcomes, the last columns that are sent; () where the outcome has classes."""
        return () if self.classes else self.outcomes

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
        return self._features | {name: self.columns[name] for name in self.targets}

    @cached_property
    def sent(self) -> Columns:
        """The names of the columns that are sent: numbers, indicators of missing values and of categories."""
        return tuple(sent for name, column in self.used.items() for sent in column.sent(name))

    @cached_property
    def text(self) -> str:
        """All that the study says, in one form: two studies are the same if their texts are."""
        return text_of(self.to_fields())

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of `text`, 64 hexadecimal digits; `core.hashing.readable` writes it for people to compare."""
        return fingerprint_of(self.text)

    @property
    def features(self) -> str:
        """What moments under this study are moments of."""
        return study_features(self.name, self.fingerprint)

    @cached_property
    def kind(self) -> Kind:
        """What moments under this study are moments of, in all that makes them add up."""
        return Kind(self.classes or NUMERIC, len(self.sent), self.features, False, self.sent)

    def admit(self, client: Client, used: int) -> None:
        """Refuse, at a party, to send anything of fewer samples than the study asks for.

        `used` is of how few samples a reply may be made. A class that the party lacks altogether passes.
        """
        self.admit_counts(client.name, np.array(list(client.label_counts().values()), dtype=np.int64), used)

    def admit_counts(self, party: str, counts: npt.NDArray[np.int64], used: int) -> None:
        """Do the same for a party with so many samples of each class.

        The refusal names the rule, and none of the party's own figures, since the others hear it.
        """
        rule = f"study {self.name!r} asks every party for at least"
        if used < self.minimum_samples:
            raise InvalidData(f"{rule} {self.minimum_samples} training samples, and this one has fewer").telling()
        if self.classes and (counts[counts > 0] < self.minimum_cell).any():
            per_class = f"{self.minimum_cell} training samples of each class that it has"
            raise InvalidData(f"{rule} {per_class}, and this one has fewer of some class").telling()
        # With both set to 0, the parties have agreed that there is nothing to protect.
        if self.minimum_samples or self.minimum_cell:
            warn_if_few(party, len(self.sent), used)

    # Columns that a model sees
    def basis(self, sums: Array, squares: Array, n: float) -> Basis:
        """Return how the columns that a model sees are made of those that were sent, given pooled sums of these.

        Missing values get the pooled mean, and all get mean 0 and standard deviation 1 in the pool. A column that does
        not vary becomes 0. Numeric outcomes lose their pooled mean, since not every method has an intercept to find it.
        """
        if len(sums) != len(self.sent) or n < 1:
            raise Mismatch(
                f"sums of {len(self.sent)} columns and at least one sample are wanted, got {len(sums)} of {n:g}"
            )
        self._warn_of_lost(sums, squares, n)
        by_name = dict(zip(self.sent, np.asarray(sums, dtype=np.float64).tolist(), strict=True))
        power = dict(zip(self.sent, np.asarray(squares, dtype=np.float64).tolist(), strict=True))
        made: dict[str, tuple[dict[str, float], float]] = {}
        for name, column in self.used.items():
            for design, parts in column.design(name, by_name, n).items():
                mean = sum(value * by_name[part] for part, value in parts.items()) / n
                if name in self.targets:
                    made[design] = parts, -mean
                    continue
                # A value and its indicator are never both other than 0, so there are no products to add.
                mean_square = sum(value**2 * power[part] for part, value in parts.items()) / n
                spread = mean_square - mean**2
                scale = 1 / np.sqrt(spread) if spread > 64 * np.finfo(float).eps * mean_square else 0.0
                made[design] = {part: value * scale for part, value in parts.items()}, -mean * scale
        return Basis.of(made, self.sent, self.numeric({name: -shift for name, (_, shift) in made.items()}))

    def check_basis(self, basis: Basis) -> None:
        """Refuse a coordinator's basis that `basis` cannot make from any pooled sums."""
        from fedgram.studies.plausible import check_basis  # which needs this module

        check_basis(self, basis)

    def _warn_of_lost(self, sums: Array, squares: Array, n: float) -> None:
        """Warn of numbers that are far from zero, in units of their range, for how little they vary."""
        places = {sent: place for place, sent in enumerate(self.sent)}
        numbers = {name: column for name, column in self.used.items() if isinstance(column, Number)}
        chosen = [places[name] for name in numbers]
        names, means = list(numbers), sums[chosen] / n

        def remedy(place: int) -> str:
            column = numbers[names[place]]
            mean = column.centre + means[place] * column.half
            return f"give it a {'range' if column.range is None else 'narrower range'} about {mean:.6g} in the study"

        digits.warn(
            [f"column {name!r}" for name in names], sums[chosen], squares[chosen], n, remedy, level=np.finfo(float).eps
        )

    def numeric(self, means: Mapping[str, float]) -> Outcomes | None:
        """Return the numeric outcomes with what was done to them: their range, and pooled means taken away, if any."""
        found = {name: column for name in self.targets if isinstance(column := self.columns[name], Number)}
        centre = np.array([column.centre + means.get(name, 0.0) * column.half for name, column in found.items()])
        unit = np.array([column.half for column in found.values()])
        return Outcomes(self.targets, centre, unit) if found else None

    def model(self, model: "Model") -> "StudyModel":
        """Return a model of the columns that are sent as one that takes tables as parties have them."""
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
        """Take the study apart for the wire."""
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
            # Most studies have neither, and had their fingerprints before there were any.
            **({"regions": list(self.regions)} if self.regions else {}),
            **({"coordinator": self.coordinator} if self.coordinator else {}),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Study":
        """Put a study together from the wire, by the rules of its file."""
        return cls(**read_message(fields))

    def plain(self, name: str) -> dict[str, Any]:
        """Return a column's settings as they stand in a file, without those that are not set."""
        column = self.columns[name]
        found = asdict(column.settled if isinstance(column, Media) else column)  # type: ignore[arg-type]
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in found.items() if value is not None
        }

    def check(self) -> None:
        """Nothing more: a study is checked when it is made."""

    def __eq__(self, other: object) -> bool:
        """Say whether both say the same."""
        return self.text == other.text if isinstance(other, Study) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def about(self) -> list[str]:
        """Say in a few lines which columns are used, and how."""
        lines = [
            f"outcome: {', '.join(self.outcomes)}" + (f" ({', '.join(map(str, self.classes))})" if self.classes else "")
        ]
        for kind, heading in _HEADINGS.items():
            named = [
                name for name, column in self.columns.items() if type(column) is kind and name not in self.outcomes
            ]
            more = f" and {len(named) - MOST_SHOWN:,} more" if len(named) > MOST_SHOWN else ""
            lines += [f"{heading}: {', '.join(named[:MOST_SHOWN])}{more}"] if named else []
        return lines


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a study file."""
    try:
        return read_regular(path, most=MOST_HEADER).decode()  # it stands in the header of what parties send
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
