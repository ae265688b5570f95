"""The passport of a file: what an output checker must know of it before it may leave the house."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core.errors import RefusedMessage
from fedgram.core.hashing import readable
from fedgram.core.labels import NUMERIC
from fedgram.exchange.coordinator import BY_COORDINATOR, check_coordinator
from fedgram.exchange.files import File
from fedgram.exchange.keys import PublicKey
from fedgram.exchange.reveals import reveals
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.studies.kinds import Category, Flag, Number, unknown
from fedgram.studies.study import Study
from fedgram.studies.summaries import missing_counts

UNSIGNED = "nobody: the file is not signed"
SHOWN = 5  # of a list
CELL = "minimum_cell"


@dataclass(frozen=True)
class ColumnLine:
    """One of the study's columns: its kind, details, and in how many samples it is missing (None: it may not be)."""

    name: str
    kind: str
    details: str
    missing: int | None


@dataclass(frozen=True)
class Passport:
    """What a file holds, from whom, and what can be told from it.

    `classes` are samples per class, empty where the outcome is a number. `smallest` is the smallest class that occurs;
    `group` the smallest number of samples of one class with one category, flag or missing value, and which; None where
    there is none. `thresholds` are what the study asks for, and whether it is met. `method` and `contributors` are
    those of a published model, `states` what a receipt or a certificate says.
    """

    file: str
    kind: str
    party: str
    study: str
    fingerprint: str
    method: str
    contributors: tuple[str, ...]
    samples: int
    classes: dict[str, int]
    smallest: int | None
    group: tuple[int, str] | None
    thresholds: tuple[tuple[str, int, int, bool], ...]
    columns: tuple[ColumnLine, ...]
    states: dict[str, str]
    sent: int
    size: int
    digest: str
    signer: str
    signed: str
    created: str
    software: str
    reveals: tuple[str, str]

    @classmethod
    def of(cls, file: File) -> "Passport":
        """Return the passport of a file; a signature that does not fit is refused."""
        header, study, fit = file.header, file.study, file.payload if isinstance(file.payload, Fit) else None
        moments = file.payload if isinstance(file.payload, Moments) else None
        counts = {} if moments is None else _counts(moments)
        present = [count for count in counts.values() if count]
        smallest = min(present, default=None)
        return cls(
            file=file.name,
            kind=header.kind,
            party=header.party,
            study=study.name if study else "" if moments is None else moments.kind.study,
            method="" if fit is None else fit.method,
            contributors=() if fit is None else fit.contributors,
            fingerprint=header.study,
            samples=header.samples,
            classes=counts,
            smallest=smallest,
            group=None if study is None or moments is None else _smallest_group(study, moments),
            thresholds=() if study is None or moments is None else tuple(_thresholds(study, header.samples, smallest)),
            columns=() if study is None or moments is None else tuple(_columns(study, moments)),
            states=_states(file.payload) if isinstance(file.payload, dict) else {},
            sent=len(header.columns),
            size=file.size,
            digest=file.digest,
            signer=header.signer or UNSIGNED,
            signed=_signed(file),
            created=header.created,
            software=header.software,
            reveals=reveals(file),
        )

    def fields(self) -> dict[str, Any]:
        """Return the passport as plain values, for JSON."""
        own = {name: value for name, value in vars(self).items() if name not in ("columns", "thresholds", "group")}
        return own | {
            "group": None if self.group is None else {"samples": self.group[0], "of": self.group[1]},
            "thresholds": [
                {"rule": rule, "wanted": wanted, "found": found, "met": met}
                for rule, wanted, found, met in self.thresholds
            ],
            "columns": [vars(column) for column in self.columns],
            "reveals": " ".join(self.reveals),
        }

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield what stands on the passport beside classes and columns, as pairs of a heading and a text."""
        yield "kind", self.kind
        yield "party", self.party
        yield "study", f"{self.study}  fingerprint {readable(self.fingerprint)}".strip()
        if self.method:
            yield "method", self.method
            yield "contributors", f"{len(self.contributors):,}: {', '.join(self.contributors)}"
        if self.samples:
            yield "samples", f"{self.samples:,}"
        if self.smallest is not None:
            yield "smallest class", f"{self.smallest:,} samples"
        if self.group is not None:
            count, what = self.group
            cell = next((wanted for rule, wanted, *_ in self.thresholds if rule == CELL), 0)
            few = f"; fewer than {CELL}, which is about classes only" if count < cell else ""
            yield "smallest group", f"{count:,} samples: {what}{few}"
        for rule, wanted, found, met in self.thresholds:
            yield rule, f"{wanted:,} asked for, {found:,} found: {'passed' if met else 'NOT PASSED'}"
        if self.sent:
            yield "columns sent", f"{self.sent:,}"
        yield "size", f"{self.size:,} bytes"
        yield "digest", self.digest
        yield "signed by", self.signer
        yield "signature", self.signed
        yield "created", f"{self.created} with {self.software}"
        yield from self.states.items()


def _states(said: dict[str, Any]) -> dict[str, str]:
    """Return what a table of plain values says, as texts."""
    texts: dict[str, str] = {}
    for name, value in said.items():
        if isinstance(value, list):
            more = ", …" if len(value) > SHOWN else ""
            texts[f"says {name}"] = f"{len(value):,}: {', '.join(map(str, value[:SHOWN]))}{more}"
        elif isinstance(value, str | int | float):
            texts[f"says {name}"] = str(value)
    return {name.replace("_", " "): text for name, text in texts.items()}


def _counts(moments: Moments) -> dict[str, int]:
    if moments.classes == NUMERIC:
        return {}
    return {str(label): count for label, count in zip(moments.classes, moments.counts.tolist(), strict=True)}


def _thresholds(study: Study, samples: int, smallest: int | None) -> Iterator[tuple[str, int, int, bool]]:
    yield "minimum_samples", study.minimum_samples, samples, samples >= study.minimum_samples
    if smallest is not None:
        yield CELL, study.minimum_cell, smallest, smallest >= study.minimum_cell


def _columns(study: Study, moments: Moments) -> Iterator[ColumnLine]:
    """Yield the study's columns, with how often they are missing, where they may be."""
    missing = missing_counts(study, moments)
    for name, column in study.used.items():
        yield ColumnLine(name, column.kind, _details(column), sum(missing[name].values()) if name in missing else None)


def _details(column: Any) -> str:
    if isinstance(column, Category):
        return ", ".join(column.values)
    if isinstance(column, Number) and column.range is not None:
        return f"{column.range[0]:g} to {column.range[1]:g} {column.unit}".rstrip()
    return getattr(column, "unit", "")


def _smallest_group(study: Study, moments: Moments) -> tuple[int, str] | None:
    """Return the smallest number of samples of a class that share a category, a yes or a gap, and what they share.

    Sums of indicators by class are counts, so anyone who has the file can read them off.
    """
    sums = dict(zip(moments.kind.columns, moments.cross, strict=True))
    shared: dict[str, Any] = {}
    for name, column in study.used.items():
        names = column.sent(name)
        if isinstance(column, Category):
            # The first value has no column of its own: it is what is left.
            shared[f"{name}={column.values[0]}"] = moments.counts - sum(sums[sent] for sent in names)
        shared |= {sent: sums[sent] for sent in names if isinstance(column, Category | Flag) or sent == unknown(name)}
    groups = [
        (round(count), sent if moments.classes == NUMERIC else f"{label}, {sent}")
        for sent, row in shared.items()
        for label, count in zip(moments.classes, row.tolist(), strict=True)
        if round(count) > 0
    ]
    return min(groups, default=None)


def _signed(file: File) -> str:
    """Say whose signature it is, as far as the file itself and its study tell."""
    study = file.study
    if file.header.kind in BY_COORDINATOR and study is not None:
        check_coordinator(file, study)
    if file.signer is None:
        return "none"
    file.verify()
    if file.header.kind in BY_COORDINATOR:
        if study is not None and study.coordinator:
            return "fits, and the study names this key as its coordinator's"
        return "fits; the file names no coordinator's key to compare it with"
    listed = "" if study is None else study.parties.get(file.header.party, "")
    if listed and PublicKey(listed) != file.signer:
        raise RefusedMessage(
            f"{file.name} is signed with another key than its study lists for {file.header.party!r}: someone else "
            "wrote it"
        )
    return "fits, and the study lists this key" if listed else "fits; the study lists no key to compare it with"
