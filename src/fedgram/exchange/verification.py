"""Certificates and the ledger, checked against the files that a store has."""

from typing import Any

from fedgram.core.errors import InvalidData, Mismatch, RefusedMessage
from fedgram.exchange import ledger
from fedgram.exchange.combined import part_of
from fedgram.exchange.files import File
from fedgram.exchange.keys import PublicKey
from fedgram.exchange.ledger import PUBLISH, Entry, check_head, members
from fedgram.exchange.store import Store
from fedgram.exchange.sums import Sum
from fedgram.protocol.fit import Fit

# What each kind of file states of an entry of the ledger.
STATED = {
    "receipt": ("what", "party", "digest", "samples"),
    "certificate": ("party", "digest", "samples", "before", "after"),
}


def problems(store: Store) -> list[str]:
    """Say what is wrong with a store: its ledger, and whether the index and the total are what the ledger says."""
    entries = store.log()
    found = ledger.problems(entries)
    if found:
        return found
    present = {each.digest for each in store.contributions()}
    said = members(entries, up_to=len(entries))
    found += [
        f"contribution {digest[:16]} is in the index, and the ledger does not say so" for digest in present - said
    ]
    found += [f"contribution {digest[:16]} is missing, which the ledger has as joined" for digest in said - present]
    return found


def verify(store: Store, file: File) -> list[str]:
    """Recompute what a certificate states from the store's files; return what was found right, refuse what is not."""
    if wrong := ledger.problems(store.log()):
        raise Mismatch(f"the store's ledger is not whole: {wrong[0]}")
    entry = check_statement(store, file.of_kind("certificate"))
    if file.header.study != store.terms.fingerprint:
        raise Mismatch(f"{file.name} is of study {file.header.study}, the store of {store.terms.fingerprint}")
    return [
        f"signed with this store's key {store.public_key}",
        f"entry {entry.number} of the ledger says the same, and the ledger is whole",
        *_recomputed(store, file.name, file.holding(dict)),
    ]


def check_statement(store: Store, file: File) -> Entry:
    """Return the ledger's entry whose hash a receipt, certificate or publication carries.

    Refused unless this store's key has signed the file, and the ledger says the same as the file.
    """
    key = PublicKey(store.public_key)
    if file.signer not in (None, key):
        raise Mismatch(
            f"{file.name} is signed with the key {file.signer}, and this store's is {key}: it is another store's, or "
            "someone else wrote it"
        )
    file.verify()
    entries = store.log()
    if file.of_kind(*STATED, "global").header.kind == "global":
        told = file.holding(Fit).notes.get("ledger")
        if not any(each.says.get("digest") == file.digest for each in entries if each.says.get("what") == PUBLISH):
            raise Mismatch(f"{file.name} is publication {file.digest[:16]}, which the ledger does not have")
    else:
        told = file.holding(dict)
    if not isinstance(told, dict) or not isinstance(told.get("head"), str):
        raise RefusedMessage(f"{file.name} carries no head of a ledger: ask the coordinator to write it again")
    entry = check_head(entries, told["head"])
    for name in STATED.get(file.header.kind, ()):
        if name not in entry.says or entry.says[name] != told.get(name):
            said = f"the ledger's entry {entry.number} says {entry.says.get(name, 'nothing of it')}"
            raise Mismatch(f"{file.name} says {name} {told.get(name)}, and {said}")
    return entry


def check_total(store: Store) -> str:
    """Return the digest of the running total, if all contributions' files add up to it."""
    total, kept = added_up(store, [each.digest for each in store.contributions()]), store.total()
    if total != kept:
        raise Mismatch(f"the files add up to {total.digest[:16]}, and the running total is {kept.digest[:16]}")
    return total.digest


def added_up(store: Store, digests: list[str]) -> Sum:
    """Return the sum of these contributions, from their files."""
    total = Sum.empty(store.terms.kind)
    for digest in digests:
        total = total.plus(part_of(store.objects.read(digest)))
    return total


def _recomputed(store: Store, name: str, told: dict[str, Any]) -> list[str]:
    """Add up the remaining contributions and compare."""
    remaining = told.get("remaining")
    if not isinstance(remaining, list) or not all(isinstance(digest, str) for digest in remaining):
        raise RefusedMessage(f"{name} does not list the remaining contributions: ask the coordinator to write it again")
    present = {each.digest for each in store.contributions()}
    if left := [digest for digest in remaining if digest not in present]:
        raise InvalidData(
            f"{name} cannot be recomputed any more: {len(left)} of {len(remaining)} remaining contributions "
            f"have left since, such as {left[0][:16]}; verify the certificate of a later removal"
        )
    total = added_up(store, remaining)
    if total.digest != told["after"]:
        raise Mismatch(
            f"{name} is wrong: the remaining contributions add up to {total.digest[:16]}, it says {told['after'][:16]}"
        )
    found = [f"the {len(remaining)} remaining contributions add up to the total after, {total.digest[:16]}"]
    if told["digest"] in present:
        raise Mismatch(f"{name}: the contribution that it says was removed is in the store")
    return [*found, "the removed contribution is not among the store's files"]
