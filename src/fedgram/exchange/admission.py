"""What is checked at the door of a store: the study, the name and its key, the columns, thresholds, and overlaps.

That a file is whole, and that its numbers can be the moments of some data, has been checked when it was read.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Mismatch, RefusedMessage, UnknownName
from fedgram.exchange.combined import Combined, leaves_of, part_of
from fedgram.exchange.files import File
from fedgram.exchange.header import seconds
from fedgram.exchange.index import Index
from fedgram.exchange.keys import PublicKey
from fedgram.exchange.marks import equal_to_rounding
from fedgram.exchange.objects import Objects
from fedgram.exchange.records import Contribution, Gone, Leaf
from fedgram.exchange.sums import Sum
from fedgram.moments.kind import Kind
from fedgram.moments.moments import Moments
from fedgram.studies.plausible import check_moments as check_rules
from fedgram.studies.study import Study

# A column's sum of squares below which fixed point, good to 2⁻⁶⁵, keeps fewer digits than a model may need.
SMALL = 2.0**-26
AHEAD = 24 * 3600.0  # seconds by which a party's clock may be ahead: time zones are mistaken, too


@dataclass(frozen=True)
class Terms:
    """What all contributions of a store have in common: the study, if there is one, and the kind of the moments."""

    study: Study | None
    kind: Kind

    @classmethod
    def of(cls, study: Study) -> "Terms":
        """Return the terms of a study."""
        return cls(study, study.kind)

    @property
    def fingerprint(self) -> str:
        """The study's, "" where there is none."""
        return "" if self.study is None else self.study.fingerprint

    @property
    def outcomes(self) -> int:
        """How many of the last columns are numeric outcomes."""
        return 0 if self.study is None else len(self.study.targets)


def check_study(file: File, terms: Terms) -> None:
    """Refuse a file of another study."""
    file.check_study(terms.study, remedy="summarize anew with the study file that all have agreed on")


def check_alone(file: File, terms: Terms, *, now: str, remembered: str | None = None) -> Moments | Sum:
    """Refuse a summary for anything but what else is in the store; return what it adds to the total.

    `remembered` is the key that its name came with first.
    """
    check_study(file, terms)
    check_name(file, terms, remembered=remembered)
    check_sender(file, terms)
    check_times(file, now)
    part = part_of(file)
    check_moments(file, part, terms)
    return part


def check_name(file: File, terms: Terms, *, remembered: str | None) -> None:
    """Refuse a name that the study does not list, or another key than the name's.

    A name without a key in the study has the one that it came with first.
    """
    listed = {} if terms.study is None else terms.study.parties
    party = file.header.party
    if listed and party not in listed:
        raise UnknownName(f"party in {file.name}", party, listed)
    known = listed.get(party) or remembered
    if known:
        file.verify(PublicKey(known))
    elif file.signer is not None:
        file.verify()
    elif any(listed.values()):
        raise RefusedMessage(f"{file.name} is not signed, and the study lists keys: summarize with --key")


def check_sender(file: File, terms: Terms) -> None:
    """Refuse a sum of others from a sender who may not speak for them: a study lists its regions.

    Else an unsigned sum could claim the names of parties that have not joined yet, and these would be refused.
    """
    if isinstance(file.payload, Combined) != (file.header.kind == "combined"):
        raise RefusedMessage(f"{file.name} refused: it is not the {file.header.kind} that its header says")
    study, party = terms.study, file.header.party
    if file.header.kind == "combined" and study is not None and party not in study.regions:
        raise InvalidData(
            f"{file.name} refused: it is a sum of others' summaries, and the study does not list {party!r} among its "
            "regions: add it to `regions` in [study] and to [parties], or join the summaries themselves"
        )


def check_times(file: File, now: str) -> None:
    """Refuse times more than a day ahead: once such a file is removed, its party could not come back for years."""
    times = [(file.header.party, file.header.created)] + [(leaf.party, leaf.created) for leaf in leaves_of(file)]
    for party, time in times:
        if seconds(time) - seconds(now) > AHEAD:
            raise InvalidData(
                f"{file.name} refused: the summary of {party!r} was signed at {time}, and it is {now} here: set the "
                f"clock that is wrong, then {_made(file)} and sign anew"
            )


def check_moments(file: File, part: Moments | Sum, terms: Terms) -> None:
    """Refuse moments of other columns, which break the study's rules, or of fewer samples than it asks for."""
    try:
        terms.kind.check_same(part.kind)
    except Mismatch as error:
        raise Mismatch(f"{file.name} refused: {error}") from None
    if file.header.samples != part.n:
        raise Mismatch(f"{file.name} refused: its header has {file.header.samples} samples, its sums have {part.n}")
    if not part.n:
        raise InvalidData(f"{file.name} refused: expected samples, got none: leave it out, there is nothing to add")
    _warn_of_small(file, part)
    if terms.study is None:
        return
    try:
        check_rules(terms.study, part if isinstance(part, Moments) else part.moments())
    except FedgramError as error:
        raise RefusedMessage(f"{file.name} refused: {error}") from error
    for leaf in leaves_of(file):
        if terms.study.parties and leaf.party not in terms.study.parties:
            raise UnknownName(f"party in {file.name}", leaf.party, terms.study.parties)
        if leaf.samples < terms.study.minimum_samples:
            raise InvalidData(
                f"{file.name} refused: {leaf.party!r} has {leaf.samples} samples, and the study asks every party for "
                f"at least {terms.study.minimum_samples}"
            )
    few = [count for count in part.counts.tolist() if 0 < count < terms.study.minimum_cell]
    if few and terms.study.classes:
        raise InvalidData(
            f"{file.name} refused: it has {min(few)} samples of a class, and the study asks for at least "
            f"{terms.study.minimum_cell} of each class that a party has"
        )


def check_overlaps(
    file: File, index: Index, objects: Objects, *, replaced: Contribution | None, marks: list[str], now: str
) -> list[Leaf]:
    """Return the summaries in a file; refuse one that is in the store already, or that has left and is not fresh.

    `now` is no earlier than anything that the ledger has.
    """
    leaves, besides = leaves_of(file), "" if replaced is None else replaced.digest
    alike = index.marked(marks)
    if file.header.kind == "combined":  # its leaves may never have left, and an older sum of fewer is not let in again
        itself = Leaf(file.digest, file.header.party, file.digest, file.header.samples, file.header.created)
        for gone in index.gone(itself):
            _check_fresh(file, itself, gone, now)
    for leaf in leaves:
        if (found := index.overlap(leaf, besides=besides)) is not None:
            other, whole = found
            as_part = "" if whole.party == other.party else f" as part of {whole.party!r}"
            what = "it" if leaf.party == other.party else f"the same samples as those of {leaf.party!r}"
            raise InvalidData(
                f"{file.name} refused: {other.party!r} is in the store{as_part}, and {what} would be counted twice: "
                "leave one of the two out"
            )
        for gone in index.gone(leaf, alike):
            _check_fresh(file, leaf, gone, now)
    for digest in alike:
        if digest != besides and (known := index.contribution(digest=digest)) is not None:
            _check_unlike(file, known, objects)
    return leaves


def _check_unlike(file: File, known: Contribution, objects: Objects) -> None:
    """Refuse moments that are those of a contribution but for rounding; a shared mark alone may be chance."""
    if equal_to_rounding(file.holding(Moments), objects.read(known.digest).holding(Moments)):
        raise InvalidData(
            f"{file.name} refused: {known.party!r} is in the store, and the sums of {file.header.party!r} differ from "
            "its sums by rounding only: the same samples would be counted twice, leave one of the two out"
        )


def _check_fresh(file: File, leaf: Leaf, gone: Gone, now: str) -> None:
    """Refuse a contribution that has left, unless its own party has signed it since."""
    taken_out = f"a contribution of {gone.party!r} that was taken out of the store"
    anew = f"to come back, {gone.party!r} must {_made(file)} and sign anew"
    if leaf.party != gone.party:
        raise InvalidData(
            f"{file.name} refused: {leaf.party!r} brings the samples of {taken_out}, and nobody else may bring them "
            f"back: {anew}, under its own name"
        )
    if leaf.created <= gone.time:
        raise InvalidData(
            f"{file.name} refused: it is {taken_out}, and it was signed at {leaf.created}, not after {gone.time}: "
            f"{anew} (with a clock that is right)"
        )
    if leaf.created > now:
        raise InvalidData(
            f"{file.name} refused: it is {taken_out}, and its signature is of {leaf.created}, while it is {now} here: "
            f"set the clock that is wrong, then {_made(file)} and sign anew"
        )


def _made(file: File) -> str:
    return "combine" if file.header.kind == "combined" else "summarize"


def _warn_of_small(file: File, part: Moments | Sum) -> None:
    """Warn of columns in such small units that fixed point keeps few of their digits."""
    squares = part.squares
    small = np.flatnonzero((squares > 0) & (squares < SMALL))
    if len(small):
        columns = part.kind.columns
        named = ", ".join(columns[i] if columns else f"column {i}" for i in small[:5].tolist())
        warnings.warn(
            f"{file.name}: {named} is in such small units (a sum of squares of {squares[small[0]]:.2g}) that sums, "
            "kept to 2⁻⁶⁵, lose digits of it: rescale it in the study",
            Doubtful,
            stacklevel=2,
        )
