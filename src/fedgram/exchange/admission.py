"""What is checked at the door of a store: the study, the name and its key, the columns, thresholds, and overlaps.

That a file is whole, and that its numbers can be the moments of some data, has been checked when it was read.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Mismatch, RefusedMessage, UnknownName
from fedgram.exchange.combined import Combined, leaves_of
from fedgram.exchange.files import File
from fedgram.exchange.index import Index
from fedgram.exchange.keys import PublicKey
from fedgram.exchange.records import Contribution, Leaf
from fedgram.exchange.sums import Sum
from fedgram.moments.kind import Kind
from fedgram.moments.moments import Moments
from fedgram.studies.plausible import check_moments as check_rules
from fedgram.studies.study import Study

# A column's sum of squares below which fixed point, good to 2⁻⁶⁵, keeps fewer digits than a model may need.
SMALL = 2.0**-26


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
    if file.header.study != terms.fingerprint:
        name = "" if terms.study is None else f" {terms.study.name!r}"
        raise Mismatch(
            f"{file.name} is of study {file.header.study or 'none'}, and this store of study{name} "
            f"{terms.fingerprint or 'none'}: summarize anew with the study file that all have agreed on"
        )


def check_name(file: File, terms: Terms, index: Index) -> str:
    """Refuse a name that the study does not list, or another key than the name's; return the key's text.

    A name without a key in the study has the one that it came with first.
    """
    listed = {} if terms.study is None else terms.study.parties
    party = file.header.party
    if listed and party not in listed:
        raise UnknownName(f"party in {file.name}", party, listed)
    known = listed.get(party) or index.key_of(party)
    if known:
        file.verify(PublicKey(known))
    elif file.signer is not None:
        file.verify()
    elif any(listed.values()):
        raise RefusedMessage(f"{file.name} is not signed, and the study lists keys: summarize with --key")
    return file.header.signer


def check_sender(file: File, terms: Terms) -> None:
    """Refuse a sum of others from somebody who may not speak for them: a study with parties lists its regions."""
    if isinstance(file.payload, Combined) != (file.header.kind == "combined"):
        raise RefusedMessage(f"{file.name} refused: it is not the {file.header.kind} that its header says")
    study, party = terms.study, file.header.party
    if file.header.kind == "combined" and study is not None and study.parties and party not in study.regions:
        raise InvalidData(
            f"{file.name} refused: it is a sum of others' summaries, and the study does not list {party!r} among its "
            "regions: add `regions` to [study], or join the summaries themselves"
        )


def check_moments(file: File, part: Moments | Sum, terms: Terms) -> None:
    """Refuse moments of other columns, which break the study's rules, or of fewer samples than it asks for."""
    try:
        terms.kind.check_same(part.kind)
    except Mismatch as error:
        raise Mismatch(f"{file.name} refused: {error}") from None
    if file.header.samples != part.n:
        raise Mismatch(f"{file.name} refused: its header has {file.header.samples} samples, its sums have {part.n}")
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


def check_overlaps(file: File, index: Index, *, replaced: Contribution | None) -> list[Leaf]:
    """Return the summaries in a file; refuse one that is in the store already, or that has left and is not fresh."""
    leaves, besides = leaves_of(file), "" if replaced is None else replaced.digest
    for leaf in leaves:
        if (found := index.overlap(leaf, besides=besides)) is not None:
            other, whole = found
            as_part = "" if whole.party == other.party else f" as part of {whole.party!r}"
            what = "it" if leaf.party == other.party else f"the same samples as those of {leaf.party!r}"
            raise InvalidData(
                f"{file.name} refused: {other.party!r} is in the store{as_part}, and {what} would be counted twice: "
                "leave one of the two out"
            )
        left = index.gone(leaf.digest)
        if left is not None and leaf.created <= left:
            raise InvalidData(
                f"{file.name} refused: this contribution of {leaf.party!r} was taken out of the store, and it was "
                f"signed at {leaf.created}, before that: to come back, {leaf.party!r} must summarize and sign anew"
            )
    return leaves


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
