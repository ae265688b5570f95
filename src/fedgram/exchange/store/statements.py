"""Receipts and certificates for those who get them: in sentences, and checked against a model without the store."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from fedgram.core.errors import FedgramError, Mismatch, RefusedMessage
from fedgram.core.hashing import readable, short
from fedgram.exchange.format.coordinator import ABOUT_STORES, check_agreed, check_coordinator, coordinator_key
from fedgram.exchange.format.fgm import File
from fedgram.exchange.format.header import is_time
from fedgram.exchange.store.ledger import CERTIFICATE, JOIN, RECEIPT
from fedgram.protocol.fit import Fit
from fedgram.studies.study import Study

CHECKS = (
    "With the store: fedgram verify store/ certificate.fgm. "
    "Without it, against a model that was published later: fedgram verify certificate.fgm --published model.fgm."
)
_HASH = re.compile(r"[0-9a-f]{64}")
_HASHES = ("digest", "before", "after", "head")


@dataclass(frozen=True)
class Statement:
    """A coordinator's receipt of a contribution, or certificate of its removal.

    Attributes
    ----------
    file
        The file that it is read from.
    says
        Its fields, as `docs/format.md` lists them.
    study
        The agreed study, which names the coordinator's key; None if it is not given.

    """

    file: File
    says: dict[str, Any]
    study: Study | None

    @classmethod
    def of(cls, file: File, study: Study | None = None) -> Self:
        """Return the statement in a file; raise unless it has the fields that fedgram writes."""
        says = file.of_kind(*ABOUT_STORES).holding(dict)
        fields = CERTIFICATE if file.header.kind == "certificate" else RECEIPT
        if fields is RECEIPT and "amendments" in says:  # none stand in it as a rule
            fields = {**RECEIPT, "amendments": list}
        for name in sorted({*says, *fields}, key=str):
            value = says.get(name)
            if not _is_written(name, value, fields.get(name)):
                raise RefusedMessage(
                    f"{file.name}: expected the fields of a {file.header.kind}, got {str(name)[:60]!r} as "
                    f"{value!r:.60}; ask the coordinator to write it again"
                )
        header = file.header
        for name, found in (("party", header.party), ("time", header.created)):
            if says[name] != found:
                raise RefusedMessage(f"{file.name} says {name} {says[name]:.200}, and its header says {found:.200}")
        return cls(file, says, study or file.study)

    @property
    def is_removal(self) -> bool:
        """Whether it certifies a removal."""
        return self.file.header.kind == "certificate"

    @property
    def title(self) -> str:
        """Title of the statement as a document."""
        return f"{'Certificate of removal' if self.is_removal else 'Receipt'} for {self.says['party']}"

    @property
    def happened(self) -> str:
        """One sentence on what happened, to whose samples, and when."""
        says = self.says
        what = f"The contribution of {says['party']} ({says['samples']:,} samples)"
        study = "the study" if self.study is None else f"study {self.study.name!r}"
        if self.is_removal:
            return f"{what} was removed from the total of {study} on {day(says['time'])}."
        how = "joined the total" if says["what"] == JOIN else "took the place of an earlier one in the total"
        return f"{what} {how} of {study} on {day(says['time'])}."

    def sentences(self) -> list[tuple[str, str]]:
        """Return its statements, as pairs of a heading and a text."""
        if not self.is_removal:
            return [
                ("", self.happened),
                ("Use", "With it you can ask the coordinator for proof that the ledger still has this entry."),
            ]
        left = len(self.says["remaining"])
        still = f"{left:,} contribution{'' if left == 1 else 's'} remained" if left else "No contribution remained"
        return [
            ("", f"{self.happened} {still}."),
            ("Proves", self.says["proves"]),
            ("To check it", CHECKS),
            ("Does not prove", self.says["does_not_prove"]),
        ]

    def facts(self) -> list[tuple[str, str]]:
        """Return digests, the entry of the ledger, and the signature, as pairs of a heading and a text."""
        says, header = self.says, self.file.header
        name = "" if self.study is None else f"{self.study.name}  "
        found = [("study", f"{name}fingerprint {readable(header.study)}"), ("contribution", says["digest"])]
        if self.is_removal:
            found += [("total before", says["before"]), ("total after", says["after"])]
        return [
            *found,
            *(("amendment before it", text) for text in says.get("amendments", ())),
            ("entry of the ledger", f"{says['number']:,}, with the hash {says['head']}"),
            ("signed by", header.signer or "not signed: it proves nothing"),
            ("signature", self.signature()),
            ("file", f"{self.file.digest}, written with {header.software}"),
        ]

    def signature(self) -> str:
        """Return a text on the signature; raise if it does not fit, or is not by the study's coordinator."""
        if self.file.signer is None:
            return "missing"
        self.file.verify()
        if self.study is None:
            return "fits; compare the key with that of your coordinator, or give your study with --study"
        check_agreed(self.file, self.study)
        named = coordinator_key(self.study)
        if named is None:
            return "fits; the study names no coordinator: compare the key with that of yours"
        whose = "its coordinator's" if self.file.signer == named else "that of a region"
        return f"fits, and the study names this key as {whose}"

    def fields(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        header = self.file.header
        return {
            "file": self.file.name,
            "kind": header.kind,
            "study": "" if self.study is None else self.study.name,
            "fingerprint": header.study,
            "says": self.says,
            "sentences": [text for _, text in self.sentences()],
            "digest": self.file.digest,
            "signer": header.signer,
            "signed": self.signature(),
            "software": header.software,
        }


def _is_written(name: str, value: Any, kind: type | None) -> bool:
    """Return whether a field of a statement has a value that fedgram writes."""
    found: Any = type(value)  # 40, 40.0 and True may be equal, but are not the same
    if found is not kind:
        return False
    if kind is list:
        return all(isinstance(each, str) for each in value)
    return is_time(value) if name == "time" else name not in _HASHES or _HASH.fullmatch(value) is not None


def day(time: str) -> str:
    """Return a time in words.

    >>> day("2026-01-02T09:05:00Z")
    '2 January 2026 at 09:05 UTC'
    """
    found = datetime.fromisoformat(time)
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    return f"{found.day} {months[found.month - 1]} {found.year} at {found:%H:%M} UTC"


@dataclass(frozen=True)
class Findings:
    """Sentences on what a check found right and wrong, and on what it cannot prove."""

    right: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    not_proved: tuple[str, ...] = ()


NOT_PROVED = (
    "That the coordinator added up as it says: for that the store is needed (fedgram verify store/ certificate.fgm).",
    "That all copies of the contribution were deleted, or that no older model is in use.",
)


def check_forgotten(certificate: File, published: File, study: Study | None = None) -> Findings:
    """Return the findings on a removal from a certificate and a published model, without the store.

    Parameters
    ----------
    certificate
        The certificate of the party that has left.
    published
        A model that the coordinator published afterwards.
    study
        The agreed study, whose coordinator must have signed both. Without it both must have the same signer.

    """
    found = Statement.of(certificate.of_kind("certificate"), study or published.study)
    try:
        right = [_signed_by(found, published.of_kind("global"), study), f"It says: {found.happened}"]
        return Findings((*right, *_without(found, published)), not_proved=NOT_PROVED)
    except FedgramError as error:
        return Findings((), (str(error),))


def _signed_by(certificate: Statement, published: File, study: Study | None) -> str:
    """Return a sentence on the signer of both files; raise unless one store has signed both."""
    file = certificate.file
    for each in (file, published):
        each.verify()
        if study is not None:
            check_agreed(each, study)
        elif published.study is not None:
            check_coordinator(each, published.study)
    if file.header.study != published.header.study:
        raise Mismatch(f"{file.name} and {published.name} are of two studies: give a model of the certificate's study")
    if file.signer != published.signer:
        raise Mismatch(
            f"{file.name} is signed with the key {file.signer}, and {published.name} with {published.signer}: they are "
            "of two stores; give a model of the store that wrote the certificate"
        )
    known = study or published.study
    if known is not None and coordinator_key(known) == file.signer:
        of_model = "" if study is not None else ", as the model says: give your own study with --study to be sure"
        return f"Both files are signed by the coordinator of study {known.name!r}{of_model}."
    return f"Both files are signed with the key {file.signer}. Ask your coordinator whether this is its key."


def _without(certificate: Statement, published: File) -> list[str]:
    """Return sentences that show a model to be without a removed contribution; raise if it is not."""
    says, fit = certificate.says, published.holding(Fit)
    told = fit.notes.get("ledger")
    kinds = {"version": int, "total": str, "number": int, "head": str}
    if not isinstance(told, dict) or any(type(told.get(name)) is not kind for name, kind in kinds.items()):
        raise RefusedMessage(f"{published.name} does not say when it was published: give what fedgram publish wrote")
    party, model = says["party"], f"{published.name}, version {told['version']} of the model,"
    if told["number"] < says["number"]:
        raise Mismatch(
            f"{model} was made before the removal (entry {told['number']} of the ledger, the removal is entry "
            f"{says['number']}): ask for a model that was published later"
        )
    if told["number"] == says["number"] and told["head"] != says["head"]:
        raise Mismatch(
            f"{model} and the certificate name two different entries {says['number']} of the ledger: the coordinator "
            "has two ledgers, or has written its ledger anew"
        )
    if told["number"] == says["number"] and told["total"] != says["after"]:
        raise Mismatch(f"{model} has another total than the certificate, after the same entry of the ledger")
    is_in = party in fit.contributors
    if told["total"] == says["before"]:
        raise Mismatch(f"{model} was made of the total before the removal: it contains the contribution of {party}")
    later = f"{model} of {day(published.header.created)}, was made after the removal (entry {told['number']})."
    if told["total"] == says["after"]:
        if is_in:
            raise Mismatch(f"{model} lists {party} as a contributor, and has the total after the removal")
        same = f"It was made of exactly the total after the removal, {short(says['after'])}: {party} is not in it."
        return [later, same]
    if is_in:
        raise Mismatch(
            f"{model} lists {party} among its {len(fit.contributors):,} contributors: {party} has joined again since, "
            "which needs its signature, or was not removed"
        )
    others = f"Others have joined or left since, so that its total is another one. {party} is not among its "
    region = fit.study is not None and party in fit.study.regions
    also = " Parties of a region are listed by their own names: look for yours." if region else ""
    return [later, f"{others}{len(fit.contributors):,} contributors: {', '.join(fit.contributors)}.{also}"]
