"""Checks of a file that joins a store: study, name and key, columns, thresholds, and overlaps with other files.

Reading the file has checked already that it is whole and that its numbers can be the moments of some data.
"""

import json
import warnings
from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Mismatch, RefusedMessage, did_you_mean
from fedgram.core.filesystem import file_name
from fedgram.core.hashing import hash_bytes, short
from fedgram.exchange.format.amendments import Amendment, amended, differences
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.format.fgm import File
from fedgram.exchange.format.header import seconds
from fedgram.exchange.store.combined import Combined, leaves_of, part_of
from fedgram.exchange.store.index import Contribution, Gone, Index, Leaf
from fedgram.exchange.store.objects import Objects
from fedgram.moments.moments import Moments, Schema
from fedgram.moments.targets import ClassTargets, Targets
from fedgram.secure.signing_keys import PublicKey
from fedgram.studies.study import Study
from fedgram.studies.study import check_moments as check_rules

# Sum of squares of a column below which fixed point, exact to 2⁻⁶⁵, keeps fewer digits than a model may need.
SMALL = 2.0**-26
AHEAD = 24 * 3600.0  # seconds that a party's clock may be ahead, as with a wrong time zone
ROUNDING = 1e-9  # relative; far above the rounding of sums in another order
GOLDEN = (5**0.5 - 1) / 2  # fractions of its multiples fill the unit interval evenly


@dataclass(frozen=True)
class Terms:
    """The study of a store, if it has one, and the schema of its moments.

    Attributes
    ----------
    study
        The study with all amendments, None for a store without a study.
    schema
        The schema of all contributions, which amendments do not change.
    genesis
        The study that the store began with.
    amendments
        The amendments since, in their order.

    """

    study: Study | None
    schema: Schema
    genesis: Study | None = None
    amendments: tuple[Amendment, ...] = ()

    @classmethod
    def of(cls, study: Study) -> "Terms":
        """Return the terms of a study."""
        return cls(study, study.schema, study)

    def amended(self, amendments: tuple[Amendment, ...], key: PublicKey) -> "Terms":
        """Return the terms after all amendments; raise if one of them does not have the coordinator's signature."""
        return replace(self, study=amended(self.genesis, amendments, key), amendments=amendments)

    @property
    def agreement(self) -> str:
        """Agreement of the study with all amendments, "" without a study."""
        return "" if self.study is None else self.study.agreement

    @property
    def began(self) -> str:
        """Agreement of the study that the store began with, "" without a study."""
        return "" if self.genesis is None else self.genesis.agreement

    def is_known(self, study: Study) -> bool:
        """Return whether a study is the one that the store began with, or one that amendments have made of it."""
        return study.agreement in {self.began, *(each.agreement for each in self.amendments)}

    def key_of(self, party: str) -> str:
        """Return the key that a party has by the study and its amendments, "" for none."""
        rotated = {each.party: each.key for each in self.amendments if each.key}
        return rotated.get(party) or ("" if self.study is None else self.study.parties.get(party, ""))

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the study, "" without a study."""
        return "" if self.study is None else self.study.fingerprint

    @property
    def targets(self) -> Targets:
        """The targets of models of the total."""
        return ClassTargets(self.schema.classes) if self.study is None else self.study.targets

    @property
    def outcomes(self) -> int:
        """Number of numeric outcomes, which are the last columns."""
        return 0 if self.study is None else len(self.study.numeric_outcomes)


def check_study(file: File, terms: Terms) -> None:
    """Raise if a file is of another study."""
    file.check_study(terms.study, remedy="summarize anew with the study file that all have agreed on")


def check_alone(file: File, terms: Terms, *, now: str, remembered: str | None = None) -> Moments | Sum:
    """Return the part that a summary adds to the total; raise if it fails a check that needs no other contribution.

    `remembered` is the key of the first file under this name.
    """
    check_study(file, terms)
    check_name(file, terms, remembered=remembered)
    _check_agreement(file, terms)
    check_sender(file, terms)
    check_times(file, now)
    part = part_of(file)
    check_moments(file, part, terms)
    return part


def check_name(file: File, terms: Terms, *, remembered: str | None) -> None:
    """Raise if the study does not list the name, or the file is signed with another key than the name's.

    A name without a key in the study has the key of its first file.
    """
    party, study = file.header.party, terms.study
    if study is not None:
        _check_listed(file, party, study)
    known = terms.key_of(party) or remembered
    if known:
        _check_not_former(file, terms, known)
        file.verify(PublicKey(known))
    elif file.signer is not None:
        file.verify()
    elif terms.genesis is not None and any(terms.genesis.parties.values()):
        raise RefusedMessage(f"{file.name} is not signed, and the study lists keys: summarize with --key")


def _check_listed(file: File, party: str, study: Study) -> None:
    if study.parties and party not in study.parties:
        hint = f" ({near})" if (near := did_you_mean(party, study.parties)) else ""
        raise InvalidData(
            f"{file.name} refused: party {party!r} is not listed in study {study.name!r}{hint}; "
            f"the coordinator adds it with fedgram amend STORE --add {file_name(party)}.pub"
        )


def _check_not_former(file: File, terms: Terms, known: str) -> None:
    """Raise if a file is signed with a key that its party had before an amendment."""
    party = file.header.party
    for each in terms.amendments:
        if each.party == party and file.signer is not None and file.signer.text == each.former != known:
            raise RefusedMessage(
                f"{file.name} refused: it is signed with the key that {party!r} had until {each.time}: sign it with "
                f"the new key {known}"
            )


def check_sender(file: File, terms: Terms) -> None:
    """Raise if a combined file does not come from one of the study's regions.

    Otherwise an unsigned sum could claim the names of parties that have not joined yet, and these would be refused.
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
    """Raise if a time is more than a day ahead: after removing such a file, its party could not return for years."""
    times = [(file.header.party, file.header.created)] + [(leaf.party, leaf.created) for leaf in leaves_of(file)]
    for party, time in times:
        if seconds(time) - seconds(now) > AHEAD:
            raise InvalidData(
                f"{file.name} refused: the summary of {party!r} was signed at {time}, and it is {now} here: set the "
                f"clock that is wrong, then {_made(file)} and sign anew"
            )


def check_moments(file: File, part: Moments | Sum, terms: Terms) -> None:
    """Raise if moments have other columns, break the study's rules or have too few samples."""
    try:
        terms.schema.check_same(part.schema)
    except Mismatch as error:
        raise Mismatch(f"{file.name} refused: {error}") from None
    if file.header.samples != part.n:
        raise Mismatch(
            f"{file.name} refused: expected the {file.header.samples} samples of its header, got sums of {part.n}"
        )
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
        _check_listed(file, leaf.party, terms.study)
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
    """Return the summaries in a file; raise if one is in the store already, or has left and was not signed again.

    `now` is at least the latest time in the ledger.
    """
    leaves, besides = leaves_of(file), "" if replaced is None else replaced.digest
    alike = index.marked(marks)
    if file.header.kind == "combined":  # its leaves may never have left, and an older sum of fewer must not return
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
                "leave one of the two out, or, if one came under a wrong name, withdraw it with fedgram amend --mistake"
            )
        for gone in index.gone(leaf, alike):
            _check_fresh(file, leaf, gone, now)
    for digest in alike:
        if digest != besides and (known := index.contribution(digest=digest)) is not None:
            _check_unlike(file, known, objects)
    return leaves


def _check_unlike(file: File, known: Contribution, objects: Objects) -> None:
    """Raise if moments equal those of a contribution except for rounding; a shared mark alone may be chance."""
    if equal_to_rounding(file.holding(Moments), objects.read(known.digest).holding(Moments)):
        raise InvalidData(
            f"{file.name} refused: {known.party!r} is in the store, and the sums of {file.header.party!r} differ from "
            "its sums by rounding only: the same samples would be counted twice, leave one of the two out"
        )


def _check_fresh(file: File, leaf: Leaf, gone: Gone, now: str) -> None:
    """Raise if a contribution has left the store and its party has not signed it again since."""
    taken_out = f"a contribution of {gone.party!r} that was taken out of the store"
    anew = f"to come back, {gone.party!r} must {_made(file)} and sign anew"
    if leaf.party != gone.party:
        raise InvalidData(
            f"{file.name} refused: {leaf.party!r} brings the samples of {taken_out}, and only "
            f"{gone.party!r} may bring them back: {anew}, under its own name; if that contribution was a mistake, "
            f"withdraw it with fedgram amend STORE --mistake {short(gone.contribution)}"
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


def _check_agreement(file: File, terms: Terms) -> None:
    """Raise if a file was made for another coordinator; warn if its study never had these parties and keys here."""
    if file.study is None or terms.study is None:
        return
    if file.study.coordinator != terms.study.coordinator:
        one, other = (study.coordinator or "no coordinator" for study in (file.study, terms.study))
        raise RefusedMessage(
            f"{file.name} refused: it was made for {one}, by its study {file.study.name!r}, and the store's study "
            f"names {other} as its coordinator's key: {file.header.party!r} has agreed to another coordinator"
        )
    if file.header.kind == "summary" and not terms.is_known(file.study):
        listed = "; ".join(differences(terms.study, file.study))
        warnings.warn(
            f"{file.name}: the study file of {file.header.party!r} has the same rules and other parties or keys "
            f"({listed}): the store's list counts, tell that party",
            Doubtful,
            stacklevel=2,
        )


def _warn_of_small(file: File, part: Moments | Sum) -> None:
    """Warn of columns whose units are so small that fixed point keeps few of their digits."""
    squares = part.squares
    small = np.flatnonzero((squares > 0) & (squares < SMALL))
    if len(small):
        columns = part.schema.columns
        named = ", ".join(columns[i] if columns else f"column {i}" for i in small[:5].tolist())
        warnings.warn(
            f"{file.name}: {named} is in such small units (a sum of squares of {squares[small[0]]:.2g}) that sums, "
            "kept to 2⁻⁶⁵, lose digits of it: rescale it in the study",
            Doubtful,
            stacklevel=2,
        )


def marks_of(moments: Moments, secret: bytes) -> list[str]:
    """Return the two marks of moments; those of moments that are equal to 1e-9 share at least one of them.

    Marks recognise moments that differ by rounding only: on another machine, the same samples add up a little
    differently. One number is made of all class sums and squares, and its place on a grid is hashed with the class
    counts and a secret of the store. Numbers that are close may lie on both sides of a grid line; so there are two
    grids, one shifted by half, and such numbers share a place on one of them. A mark does not show the number, and
    marks of two stores cannot be compared; a store's owner can only test whether a mark is that of known moments.
    """
    numbers = np.concatenate([np.abs(moments.cross.T).ravel(), moments.squares])
    # Different weights, so that sums of other columns do not make the same number.
    weights = 1 + (np.arange(1, len(numbers) + 1) * GOLDEN) % 1
    size = float(weights @ numbers)
    place = np.log(size) / (2 * ROUNDING) if size > 0 else 0.0  # steps on the logarithm are relative steps
    counts = moments.counts.tolist()
    grids = ((shift, int(np.floor(place + shift))) for shift in (0.0, 0.5))
    return [hash_bytes([secret, json.dumps([counts, *grid]).encode()]) for grid in grids]


def equal_to_rounding(one: Moments, other: Moments) -> bool:
    """Return whether two moments have the same class counts and are equal to 1e-9 of their largest numbers."""
    if not np.array_equal(one.counts, other.counts):
        return False
    return _close(one.cross, other.cross) and _close(one.packed, other.packed)


def _close(one: Array, other: Array) -> bool:
    return float(np.abs(one - other).max(initial=0.0)) <= ROUNDING * float(np.abs(one).max(initial=0.0))
