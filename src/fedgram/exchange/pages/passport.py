"""The passport of a file: the facts that an output checker needs before the file may leave the house.

`passport_page` makes one HTML page of it, with drawings and style inside, that works offline and prints well.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import RefusedMessage
from fedgram.core.hashing import readable
from fedgram.core.terminal import visible
from fedgram.exchange.format.amendments import amendments_in, numbered
from fedgram.exchange.format.coordinator import BY_COORDINATOR, check_coordinator
from fedgram.exchange.format.fgm import File
from fedgram.exchange.format.signing_keys import PublicKey
from fedgram.exchange.rounds.round_messages import Answer, Round
from fedgram.heads.system import System
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.studies.kinds import Category, Number
from fedgram.studies.model import StudyModel
from fedgram.studies.party_tables import PartySums, missing_counts
from fedgram.studies.small_groups import (
    Group,
    Indicators,
    columns_per_row,
    groups_by_columns,
    listed_groups,
    rows_needed,
)
from fedgram.studies.study import USUAL_COLUMNS_PER_ROW, Study

Sentences: TypeAlias = tuple[str, str]
UNSIGNED = "none: the file is not signed"
CELL = "minimum_cell"
Threshold: TypeAlias = tuple[str, float, float, bool]  # rule, limit, found, met
OFF = {"minimum_samples": 1, CELL: 1, "minimum_group": 1, "maximum_columns_per_row": 0}  # limits that protect no sample
RED, AMBER = "red", "amber"


def reveals(file: File) -> Sentences:
    """Return two sentences: the content of a file, and what can be computed from it."""
    for kind, sentences in _BY_PAYLOAD.items():
        if isinstance(file.payload, kind):
            return sentences(file)
    return _BY_KIND.get(
        file.header.kind,
        ("It holds its signer's statements on files of the study.", "It holds no sums over samples."),
    )


def _moments(file: File) -> Sentences:
    holds, computed = _of_moments(file.payload, "columns")
    if not file.dropped:
        return holds, computed
    each = ", ".join(f"{name} {count:,}" for name, count in file.dropped.items())
    return f"{holds} It also says how many rows were left out for a missing value: {each}.", computed


def _of_moments(moments: Moments, what: str) -> Sentences:
    also = "" if moments.classes == NUMERIC else "; counts and sums also by class"
    return (
        f"The file contains totals, not single samples: counts, sums and sums of products of {moments.d:,} {what} over "
        f"{moments.n:,} samples{also}.",
        "With enough samples no single person's values can be computed from them; exceptions, if any, are listed "
        "below. A reader who knows all rows but one can compute the last.",
    )


def _answer(file: File) -> Sentences:
    if isinstance(file.payload.reply, Moments):
        return _of_moments(file.payload.reply, "features made of the columns")
    names = ", ".join(sorted(file.payload.reply)) if isinstance(file.payload.reply, dict) else "a reply"
    return (
        f"It holds sums over {file.header.samples:,} samples ({names}), each sample with a weight that follows from "
        f"what the coordinator asks in round {file.payload.number}.",
        "A round can be made up so that such a sum shows single samples: send it only to a coordinator that you trust "
        "with that.",
    )


def _round(file: File) -> Sentences:
    asked: Round = file.payload
    holds, made = ("the pooled means and spreads of the columns", "They are")
    if asked.payload is not None:
        holds, made = f"the model so far, and {holds}", "Both are"
    return (
        f"It asks all parties for the step {asked.step!r} of {asked.method}, round {asked.number}, and holds {holds}.",
        f"{made} made of sums over all parties.",
    )


def _fit(file: File) -> Sentences:
    fit: Fit = file.payload
    counts = "" if getattr(fit.message, "counts", None) is None else ", the number of samples of each class"
    first = (
        f"It holds the model that {fit.method} made of the sums of {len(fit.contributors):,} parties, their names"
        f"{counts}, and the pooled mean and spread of each column"
    )
    if isinstance(fit.message, System) or getattr(fit.message, "system", None) is not None:
        return (
            f"{first}, and all parties' sums and sums of products can be computed from it.",
            "With such a file from before a party joined or left, that party's sums can be computed. With few parties "
            "each learns much about the others' sums.",
        )
    return f"{first}.", "Together with a model from before a party joined or left, it tells about that party's sums."


def _personal(file: File) -> Sentences:
    if file.payload.kept == "global":
        return (
            "It holds the published global model, which its party kept in the place of a model of its own.",
            "Whether the party's rows helped to make the published model does not show here.",
        )
    return (
        "It holds a model that was made of the party's own rows, besides what was published.",
        "It is meant for the party itself: it tells about the party's own samples.",
    )


_BY_PAYLOAD: dict[type, Callable[[File], Sentences]] = {
    Moments: _moments,
    Answer: _answer,
    Round: _round,
    Fit: _fit,
    StudyModel: _personal,
}
_BY_KIND = {
    "combined": (
        "It holds the sum of several parties' summaries (counts, sums and sums of products of columns, by class), and "
        "lists the parties.",
        "A reader with it and all of these summaries but one can compute the last summary.",
    ),
}


@dataclass(frozen=True)
class Danger:
    """A sentence on values of few persons that a reader can compute: "red" for one person, "amber" for weak limits."""

    level: str
    text: str


@dataclass(frozen=True)
class Reading:
    """Counts of a table's rows behind a summary, which only the party knows.

    `left_out` break a rule of the study, `dropped` lack a value that they need, and `imputed` are in the sums with a
    missing value for which a model takes the pooled mean.
    """

    used: int
    left_out: int
    dropped: int
    imputed: int

    @classmethod
    def of(cls, found: PartySums) -> "Reading":
        """Return the counts of a summary that has been made."""
        return cls(found.moments.n, found.left_out.bad, found.left_out.dropped, found.imputed)

    def __str__(self) -> str:
        read = self.used + self.left_out + self.dropped
        return (
            f"{read:,} read: {self.used:,} used, {self.imputed:,} of them with a missing value that is imputed; "
            f"{self.left_out:,} refused and left out (they break a rule), {self.dropped:,} left out for missing values"
        )


@dataclass(frozen=True)
class ColumnLine:
    """A column of the study: kind, details, and number of samples without a value (None: they are not allowed)."""

    name: str
    kind: str
    details: str
    missing: int | None


@dataclass(frozen=True)
class Passport:
    """Content, origin and disclosure risk of a file.

    `classes` are samples per class, empty if the outcome is a number. `smallest` is the smallest class that occurs;
    `group` the smallest number of samples with the same level, flag or missing value, and its name; None without such a
    group. `thresholds` are the study's rules, and whether they are met. `agreement` is that of the whole study in the
    file. `method`, `contributors`, `amendments` and `ledger`, the entry of the coordinator's ledger, are those of a
    published model, `kept` is the model in a party's own file. `sealed_to` is the receiver of a sealed file, "" for a
    plain file; size and digest are those of the file inside. `rows` are known only when the file is made.
    """

    file: str
    kind: str
    party: str
    study: str
    fingerprint: str
    agreement: str
    amendments: tuple[str, ...]
    method: str
    contributors: tuple[str, ...]
    ledger: str
    kept: str
    samples: int
    classes: dict[str, int]
    smallest: int | None
    group: tuple[int, str] | None
    thresholds: tuple[Threshold, ...]
    columns: tuple[ColumnLine, ...]
    sent: int
    size: int
    digest: str
    sealed_to: str
    signer: str
    signed: str
    created: str
    software: str
    reveals: tuple[str, str]
    dangers: tuple[Danger, ...] = ()
    rows: Reading | None = None

    @classmethod
    def of(cls, file: File, agreed: Study | None = None, *, found: PartySums | None = None) -> "Passport":
        """Return the passport of a file; raise if its signature does not fit.

        `agreed` is the reader's own study, whose keys count; by default those of the study in the file do. `found` is
        what the party knows of a summary that it has just made.
        """
        header, study, fit = file.header, file.study, file.payload if isinstance(file.payload, Fit) else None
        moments = file.payload if isinstance(file.payload, Moments) else None
        counts = {} if moments is None else _counts(moments)
        present = [count for count in counts.values() if count]
        smallest = min(present, default=None)
        group, few = None, list[Group]()
        dangers: tuple[Danger, ...] = ()
        if study is not None and moments is not None:
            indicators = Indicators(study)
            gram = indicators.gram(moments)
            group = _smallest_group(indicators, gram)
            few = groups_by_columns(indicators, gram, study.smallest_group)
            below = groups_by_columns(indicators, gram, Study.minimum_cell) if found is None else found.groups
            dangers = tuple(_dangers(study, moments, below, searched=found is not None))
        return cls(
            file=file.name,
            kind=header.kind,
            party=header.party,
            study=study.name if study else "" if moments is None else moments.schema.study,
            method="" if fit is None else fit.method,
            contributors=() if fit is None else fit.contributors,
            ledger="" if fit is None else _entry(fit.notes.get("ledger")),
            kept=(file.payload.kept or "") if isinstance(file.payload, StudyModel) else "",
            fingerprint=header.study,
            agreement="" if study is None else study.agreement,
            amendments=numbered(amendments_in(file)),
            samples=header.samples,
            classes=counts,
            smallest=smallest,
            group=group,
            thresholds=()
            if study is None or moments is None
            else tuple(_thresholds(study, header.samples, smallest, group, few)),
            columns=() if study is None or moments is None else tuple(_columns(study, moments)),
            sent=len(header.columns),
            size=file.size,
            digest=file.digest,
            sealed_to=_sealed_to(file),
            signer=header.signer or UNSIGNED,
            signed=_signed(file, agreed or file.study),
            created=header.created,
            software=header.software,
            reveals=reveals(file),
            dangers=dangers,
            rows=None if found is None else Reading.of(found),
        )

    @property
    def level(self) -> str:
        """The worst level of the dangers, "" without any."""
        return next((level for level in (RED, AMBER) if any(danger.level == level for danger in self.dangers)), "")

    def fields(self) -> dict[str, Any]:
        """Return the passport as plain values, for JSON."""
        own = {name: value for name, value in vars(self).items() if name not in ("columns", "thresholds", "group")}
        return own | {
            "level": self.level,
            "dangers": [vars(danger) for danger in self.dangers],
            "rows": None if self.rows is None else vars(self.rows),
            "group": None if self.group is None else {"samples": self.group[0], "of": self.group[1]},
            "thresholds": [
                {"rule": rule, "wanted": wanted, "found": found, "met": met}
                for rule, wanted, found, met in self.thresholds
            ],
            "columns": [vars(column) for column in self.columns],
            "reveals": " ".join(self.reveals),
        }

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the passport except classes and columns, as pairs of a heading and a text."""
        yield "kind", self.kind
        yield "party", self.party
        yield "study", f"{self.study}  fingerprint {readable(self.fingerprint)}".strip()
        if self.agreement:
            yield "agreement", readable(self.agreement)
        for text in self.amendments:
            yield "amendment", text
        if self.method:
            yield "method", self.method
            yield "contributors", f"{len(self.contributors):,}: {', '.join(self.contributors)}"
        if self.ledger:
            yield "ledger", self.ledger
        if self.kept:
            yield "model", f"the {self.kept} model"
        if self.samples:
            yield "samples", f"{self.samples:,}"
        if self.rows is not None:
            yield "rows", str(self.rows)
        if self.smallest is not None:
            yield "smallest class", _samples(self.smallest)
        if self.group is not None:
            count, what = self.group
            yield "smallest group", f"{_samples(count)}: {what}"
        yield from self._limits()
        if self.sent:
            yield "columns sent", f"{self.sent:,}"
        yield "size", f"{self.size:,} bytes"
        yield "digest", self.digest
        if self.sealed_to:
            yield "sealed to", self.sealed_to
        yield "signed by", self.signer
        yield "signature", self.signed
        yield "created", f"{self.created} with {self.software}"

    def _limits(self) -> Iterator[tuple[str, str]]:
        """Yield the study's thresholds, and whether they are met."""
        for rule, wanted, found, met in self.thresholds:
            if rule in OFF and wanted <= OFF[rule]:
                yield rule, f"switched off ({wanted:g}), {found:,} found"
                continue
            asked = f"at most {wanted:g}" if rule.startswith("maximum") else f"{wanted:,} asked for"
            yield rule, f"{asked}, {found:,} found: {'passed' if met else 'NOT PASSED'}"


def _entry(told: Any) -> str:
    """Return the entry of the ledger that a publication names; two parties compare it."""
    if not isinstance(told, Mapping) or type(told.get("number")) is not int or not isinstance(told.get("head"), str):
        return ""
    return f"entry {told['number']:,}, head {told['head'][:64]}"


def _samples(count: int) -> str:
    return f"{count:,} sample{'s' * (count != 1)}"


def _counts(moments: Moments) -> dict[str, int]:
    if moments.classes == NUMERIC:
        return {}
    return {str(label): count for label, count in zip(moments.classes, moments.counts.tolist(), strict=True)}


def _thresholds(
    study: Study, samples: int, smallest: int | None, group: tuple[int, str] | None, few: Sequence[Group]
) -> Iterator[Threshold]:
    yield "minimum_samples", study.minimum_samples, samples, samples >= study.minimum_samples
    if smallest is not None:
        yield CELL, study.minimum_cell, smallest, smallest >= study.minimum_cell
    if group is not None or few:
        found = min((one.samples for one in few), default=group[0] if group else 0)
        yield "minimum_group", study.smallest_group, found, not few
    limit = study.maximum_columns_per_row
    ratio = round(_per_row(study, samples), 4)
    yield "maximum_columns_per_row", limit, ratio, not limit or samples >= rows_needed(study, limit)


def _columns(study: Study, moments: Moments) -> Iterator[ColumnLine]:
    """Yield the study's columns, with the number of missing values where these are allowed."""
    missing = missing_counts(study, moments)
    for name, column in study.used.items():
        yield ColumnLine(name, column.kind, _details(column), sum(missing[name].values()) if name in missing else None)


def _details(column: Any) -> str:
    if isinstance(column, Category):
        return ", ".join(column.values)
    if isinstance(column, Number) and column.range is not None:
        return f"{column.range[0]:g} to {column.range[1]:g} {column.unit}".rstrip()
    return getattr(column, "unit", "")


def _smallest_group(indicators: Indicators, gram: Array) -> tuple[int, str] | None:
    """Return the fewest samples that share a level, a flag or a gap, with the group's name.

    XᵀX has their sums of products, so what such a group has in all columns can be read off the file.
    """
    counts = np.rint(indicators.matrix @ gram[0]).astype(int).tolist()
    some = slice(len(indicators.classes), None)
    groups = zip(counts[some], indicators.vectors[some], strict=True)
    return min(((count, vector.name) for count, vector in groups if count), default=None)


def _dangers(study: Study, moments: Moments, few: Sequence[Group], *, searched: bool) -> Iterator[Danger]:
    """Yield the dangers: values of few persons that a reader can compute, and limits that do not prevent it.

    `few` are the groups below the usual limit; `searched` is whether combinations of columns were searched for them.
    """
    usual, n = Study.minimum_cell, moments.n
    alone, others = (list(filter(kind, few)) for kind in (_is_one, lambda group: not _is_one(group)))
    if alone:
        them = "one person" if len(alone) == 1 else "single persons"
        yield Danger(RED, f"The values of {them} can be read from this file: {listed_groups(alone)}.")
    if n <= moments.d:
        yield Danger(
            RED,
            f"With {n:,} samples in {moments.d:,} columns, single rows can be computed from it: treat it like the "
            "table itself.",
        )
    if others:
        yield Danger(AMBER, f"Sums of fewer than {usual} persons can be read from this file: {listed_groups(others)}.")
    smallest = min((int(count) for count in moments.counts if count), default=n)
    limits = (
        ("minimum_samples", study.minimum_samples, Study.minimum_samples, n, ""),
        *([(CELL, study.minimum_cell, usual, smallest, " of a class")] if study.classes else ()),
    )
    for rule, limit, usually, found, what in limits:
        if limit < usually and found < usually:
            yield Danger(AMBER, f"It has {_samples(found)}{what}, and {usually} are usual: the study asks for {limit}.")
        elif limit <= 1:
            yield Danger(AMBER, f"The study switches {rule} off; the file keeps to the usual {usually}.")
    if study.smallest_group < usual and not searched:
        allowed = "one person" if study.smallest_group <= 1 else f"{study.smallest_group} persons"
        yield Danger(
            AMBER,
            f"The study allows groups of {allowed}, so combinations of columns were not searched for fewer than the "
            f"usual {usual}.",
        )
    if n < rows_needed(study, USUAL_COLUMNS_PER_ROW):
        limit = f"up to {study.maximum_columns_per_row:g}" if study.maximum_columns_per_row else "any number"
        yield Danger(
            AMBER,
            f"It has {_per_row(study, n):.2f} columns per sample, and {USUAL_COLUMNS_PER_ROW} is usual: the study "
            f"allows {limit}.",
        )
    elif not study.maximum_columns_per_row:
        yield Danger(AMBER, "The study sets no limit of columns per sample; the file keeps to the usual one.")


def _is_one(group: Group) -> bool:
    return group.samples == 1


def _per_row(study: Study, samples: int) -> float:
    return sum(columns_per_row(study)) / max(samples, 1)


def _sealed_to(file: File) -> str:
    if file.sealed_to is None:
        return ""
    named = "" if file.study is None or file.study.coordinator != file.sealed_to.text else "the coordinator, "
    return f"{named}{file.sealed_to}"


def _signed(file: File, study: Study | None) -> str:
    """Return a text on the signature, as far as a study knows its key."""
    if file.header.kind in BY_COORDINATOR and study is not None:
        check_coordinator(file, study)
    if file.signer is None:
        return "none"
    file.verify()
    if file.header.kind in BY_COORDINATOR:
        if study is not None and study.coordinator:
            return "fits, and the study names this key as its coordinator's"
        return "fits; the study names no coordinator's key to compare it with"
    listed = "" if study is None else study.parties.get(file.header.party, "")
    if listed and PublicKey(listed) != file.signer:
        assert study is not None
        if file.signer.text in study.parties.values():
            raise RefusedMessage(
                f"{file.name} is signed with the key of another party than {file.header.party!r}: someone else wrote it"
            )
        return (
            f"fits, BUT the study lists another key for {file.header.party!r}: unless that party has new "
            "keys (fedgram amend --rotate), someone else wrote it"
        )
    return "fits, and the study lists this key" if listed else "fits; the study lists no key to compare it with"


_ROW, _LABEL, _BAR, _VALUE = 22, 190, 330, 110  # pixels
_LONGEST = 26  # characters of a label; the tooltip has all of it


def passport_page(passport: Passport) -> str:
    """Return the page of a passport as HTML."""
    template = files("fedgram.exchange.pages").joinpath("assets", "passport.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=_text(f"Passport of {passport.party}’s {passport.kind} file"),
        lede=_text(f"{passport.study} {readable(passport.fingerprint)} · {passport.created}"),
        level=passport.level,
        reveals=_text(" ".join(passport.reveals)),
        dangers="".join(_danger(danger) for danger in passport.dangers),
        facts="".join(_fact(heading, text) for heading, text in passport.facts()),
        sections=_classes(passport) + _column_tables(passport),
    )


def _classes(passport: Passport) -> str:
    if not passport.classes:
        return ""
    counts = {visible(label): count for label, count in passport.classes.items()}
    return _section("Samples per class", bars(counts, of=passport.samples, title="samples per class"))


def _column_tables(passport: Passport) -> str:
    if not passport.columns:
        return ""
    counts = {visible(column.name): column.missing for column in passport.columns if column.missing is not None}
    missing = (
        bars(counts, of=passport.samples, title="missing values per column")
        if counts
        else "<p>The study allows no missing values.</p>"
    )
    rows = "".join(
        f"<tr><td>{_text(column.name)}</td><td>{_text(column.kind)}</td><td>{_text(column.details)}</td>"
        f'<td class="number">{"–" if column.missing is None else f"{column.missing:,}"}</td></tr>'
        for column in passport.columns
    )
    heads = '<tr><th>column</th><th>kind</th><th>what</th><th class="number">missing</th></tr>'
    note = '<p class="lede">–: the study allows no missing values.</p>'
    table = f"<table><thead>{heads}</thead><tbody>{rows}</tbody></table>{note}"
    return _section("Missing values per column", missing) + _section("Columns", table)


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>{content}</section>"


def _danger(danger: Danger) -> str:
    return f'<p><strong class="{danger.level}">{danger.level.capitalize()}.</strong> {_text(danger.text)}</p>'


def _fact(heading: str, text: str) -> str:
    failed = ' class="bad"' if "NOT PASSED" in text else ""
    return f'<tr><th scope="row">{_text(heading)}</th><td{failed}>{_text(text)}</td></tr>'


def _text(text: str) -> str:
    return escape(visible(text))


def bars(counts: Mapping[str, int], *, of: int, title: str) -> str:
    """Return a bar for each count, all in proportion to `of`, with its number and share beside it."""
    height, width = _ROW * len(counts), _LABEL + _BAR + _VALUE
    rows = [_bar(place, label, count, of) for place, (label, count) in enumerate(counts.items())]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}">{"".join(rows)}</svg>'


def _bar(place: int, label: str, count: int, of: int) -> str:
    top, share = place * _ROW, count / of if of else 0.0
    shown = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
    middle, length = top + _ROW / 2, _BAR * min(share, 1.0)
    return (
        f"<g><title>{escape(label)}: {count:,}</title>"
        f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end" dominant-baseline="central">{escape(shown)}</text>'
        f'<rect class="whole" x="{_LABEL}" y="{top + 4}" width="{_BAR}" height="{_ROW - 8}"/>'
        f'<rect class="part" x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}"/>'
        f'<text x="{_LABEL + _BAR + 8}" y="{middle}" dominant-baseline="central">{count:,} ({share:.1%})</text></g>'
    )
