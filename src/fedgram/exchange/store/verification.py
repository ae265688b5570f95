"""Verification of certificates, receipts and the total against a store's ledger and files."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fedgram.core.errors import InvalidData, Mismatch, RefusedMessage
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.format.fgm import File
from fedgram.exchange.store import seen_head
from fedgram.exchange.store.admission import marks_of
from fedgram.exchange.store.combined import part_of
from fedgram.exchange.store.index import Contribution
from fedgram.exchange.store.index_check import check_row
from fedgram.exchange.store.ledger import (
    JOIN,
    PUBLISH,
    REMOVE,
    REPLACE,
    Entry,
    check_head,
    members,
    said_by_certificate,
    said_by_receipt,
)
from fedgram.exchange.store.saved_total import problems, unmoved
from fedgram.exchange.store.study_store import Store
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.secure.signing_keys import PublicKey

STATEMENTS = ("receipt", "certificate", "global")  # kinds of files that carry a head of the ledger


def verify(store: Store, file: File) -> list[str]:
    """Return the confirmed statements of a certificate, recomputed from the store's files; raise if one is wrong.

    Parameters
    ----------
    store
        The store that wrote the certificate.
    file
        A file of kind `certificate`, as `fgm.read` returns it.

    """
    return unmoved(store, lambda: _verified(store, file))


def _verified(store: Store, file: File) -> list[str]:
    if wrong := problems(store):
        raise Mismatch(f"the store is not as its ledger says: {wrong[0]}")
    entry = check_statement(store, file.of_kind("certificate"))
    return [
        f"signed with this store's key {store.public_key}",
        f"entry {entry.number} of the ledger says the same, and the ledger is whole",
        *_recomputed(store, file.name, file.holding(dict), entry),
    ]


def check_statement(store: Store, file: File) -> Entry:
    """Return the ledger's entry whose hash a receipt, certificate or publication carries.

    Raises unless this store's key has signed the file, and the file is, field by field, what the store writes of that
    entry. Only the version of the software may differ.
    """
    key = PublicKey(store.public_key)
    if file.signer not in (None, key):
        raise Mismatch(
            f"{file.name}: expected the signature of this store's key {key}, got that of {file.signer}; it is another "
            "store's, or someone else wrote it"
        )
    file.verify()
    entries, is_model = store.log(), file.of_kind(*STATEMENTS).header.kind == "global"
    told = file.holding(Fit).notes.get("ledger") if is_model else file.holding(dict)
    if not isinstance(told, dict) or not isinstance(told.get("head"), str):
        raise RefusedMessage(f"{file.name} carries no head of a ledger: ask the coordinator to write it again")
    file.check_study(store.terms.study, remedy="give the store that it was written for")
    published = {str(each.says.get("digest")) for each in entries if each.says.get("what") == PUBLISH}
    if file.digest not in published if is_model else told["head"] not in {each.hash for each in entries}:
        _check_not_lost(store, file.name, told, entries, is_model=is_model)
    if is_model and file.digest not in published:
        raise Mismatch(
            f"{file.name} is publication {file.digest[:16]}, which the ledger does not have: it is another store's, or "
            "this store was restored from an older backup"
        )
    entry = check_head(entries, told["head"])
    if file.header.kind != "global":
        _check_said(file, told, entry, entries)
    return entry


def _check_not_lost(store: Store, name: str, told: dict[str, Any], entries: list[Entry], *, is_model: bool) -> None:
    """Raise if the entry of a statement is missing because an older backup was restored."""
    if type(number := told.get("number")) is not int:
        return
    number += is_model  # its own entry comes after the one that it names
    if older := seen_head.note_statement(store, entries, number, told):
        raise Mismatch(f"{name} was written with entry {number}: {older}")
    if seen_head.is_accepted(entries, number):
        raise Mismatch(
            f"{name} was written with entry {number}, which was lost when the store was restored from an older backup, "
            "as the ledger says: repeat the change that it states"
        )


def _check_said(file: File, told: dict[str, Any], entry: Entry, entries: list[Entry]) -> None:
    """Raise if a receipt or certificate contradicts its entry in the ledger."""
    kinds: tuple[str, ...]
    wanted: Callable[[Entry], dict[str, Any]]
    if file.header.kind == "receipt":
        kinds, wanted = (JOIN, REPLACE), partial(said_by_receipt, entries=entries)
    else:
        kinds, wanted = (REMOVE,), partial(said_by_certificate, remaining=members(entries, up_to=entry.number))
    if entry.says.get("what") not in kinds:
        raise Mismatch(
            f"{file.name} is a {file.header.kind}, and entry {entry.number} of the ledger does not record such a change"
        )
    said, header = wanted(entry), file.header
    found = told | {"header's party": header.party, "header's time": header.created}
    right = said | {"header's party": said["party"], "header's time": said["time"]}
    for name in sorted({*found, *right}, key=str):
        if repr(found.get(name)) != repr(right.get(name)):  # 40, 40.0 and True may be equal, but are not the same
            there = f"the ledger's entry {entry.number} says {_shown(right.get(name))}"
            raise Mismatch(f"{file.name} says {name} {_shown(found.get(name))}, and {there}")
    if header.samples or header.columns:
        raise Mismatch(f"{file.name} has samples or columns in its header, and a {header.kind} has none")


def _shown(value: Any) -> str:
    return "nothing of it" if value is None else f"{value!s:.200}"


def check_total(store: Store) -> str:
    """Return the digest of the running total; raise if the contributions' files do not add up to it."""
    return unmoved(store, lambda: _checked_total(store))


def _checked_total(store: Store) -> str:
    kept = store.total()
    total = added_up(store, store.contributions())
    if total != kept:
        raise Mismatch(f"the files add up to {total.digest[:16]}, and the running total is {kept.digest[:16]}")
    return total.digest


def added_up(store: Store, contributions: Iterable[Contribution]) -> Sum:
    """Return the sum of these contributions' files; raise if the index contradicts a file."""
    total = Sum.empty(store.terms.schema)
    for each in contributions:
        file = store.objects.read(each.digest)
        check_row(each, store.index.leaves(each.digest), file)
        part = part_of(file)
        if isinstance(part, Moments) and each.digest not in store.index.marked(marks_of(part, store.secret)):
            raise Mismatch(f"the index has lost the marks of {each.party!r}, by which copies of it are known")
        total = total.plus(part)
    return total


def _recomputed(store: Store, name: str, told: dict[str, Any], entry: Entry) -> list[str]:
    """Return the confirmed statements on the sum of the remaining contributions; raise if it differs."""
    remaining = told["remaining"]
    present = {each.digest: each for each in store.contributions()}
    if left := [digest for digest in remaining if digest not in present]:
        raise InvalidData(
            f"{name} cannot be recomputed any more: {len(left)} of {len(remaining)} remaining contributions "
            f"have left since, such as {left[0][:16]}; verify the certificate of a later removal"
        )
    total = added_up(store, [present[digest] for digest in remaining])
    if total.digest != told["after"]:
        raise Mismatch(
            f"{name} is wrong: the remaining contributions add up to {total.digest[:16]}, it says {told['after'][:16]}"
        )
    found = [f"the {len(remaining)} remaining contributions add up to the total after, {total.digest[:16]}"]
    if told["digest"] not in present:
        if (path := store.objects.path(told["digest"])).exists():
            raise Mismatch(
                f"the file of the removed contribution is still there: {path}; fedgram publish or join deletes it, "
                "then verify again"
            )
        if (found_in := store.index.whole_of(told["digest"])) is not None:
            back = store.index.entry_of(found_in.digest)
            said = f"as part of {found_in.party!r} since {back.detail('time')}: entry {back.number}"
            return [*found, f"the removed contribution is back {said}"]
        return [*found, "the removed contribution is not among the store's files"]
    # Index and ledger agree, as was checked before, so the ledger has the entry of its return.
    back = store.index.entry_of(told["digest"])
    if back.number <= entry.number:
        raise Mismatch(f"{name}: the contribution that it says was removed is in the store")
    party, time = back.detail("party"), back.detail("time")
    return [*found, f"the removed contribution is back since {time}: entry {back.number}, signed anew by {party!r}"]
