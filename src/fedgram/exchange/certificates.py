"""What the coordinator signs: receipts of what has joined, and certificates of what was taken out again.

Both are made of entries of the ledger, so that they can be made again at any time, and both carry its head.
"""

import re
from typing import Any

from fedgram.core.errors import InvalidData, Mismatch, UnknownName
from fedgram.exchange import files, ledger
from fedgram.exchange.combined import sum_of
from fedgram.exchange.files import File
from fedgram.exchange.ledger import Entry, check_head, members
from fedgram.exchange.store import Store
from fedgram.exchange.sums import Sum

STATES = (
    "The coordinator states that the total after this removal is the sum of the contributions listed as remaining. "
    "Whoever has their files can add them up and compare the digests: fedgram verify does."
)
DOES_NOT_STATE = (
    "It proves neither that no copy of the removed contribution exists, nor that no model made with it is in use. "
    "Whoever has both totals, before and after, can compute the removed moments as their difference."
)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def receipt(store: Store, entry: Entry) -> bytes:
    """Return the signed receipt of an entry by which something joined."""
    said = entry.says
    told = {name: said[name] for name in ("what", "party", "digest", "samples", "time")}
    return _signed(store, "receipt", entry, told)


def receipt_name(entry: Entry) -> str:
    """Return what a receipt's file is called, whatever the party is."""
    party = _ODD.sub("_", entry.says["party"])[:60].strip("._") or "party"
    return f"{party}-{entry.number}.fgm"


def certificate(store: Store, entry: Entry) -> bytes:
    """Return the signed certificate of an entry by which something was removed."""
    said = entry.says
    told = {name: said[name] for name in ("party", "digest", "samples", "time", "before", "after")}
    remaining = sorted(members(store.log(), up_to=entry.number))
    told |= {"remaining": remaining, "states": STATES, "does_not_state": DOES_NOT_STATE}
    return _signed(store, "certificate", entry, told)


def removal(store: Store, party: str) -> Entry:
    """Return the last entry by which a party was removed."""
    found = [entry for entry in store.log() if entry.says.get("what") == ledger.REMOVE]
    for entry in reversed(found):
        if entry.says["party"] == party:
            return entry
    raise UnknownName("party that was removed", party, {entry.says["party"] for entry in found})


def verify(store: Store, file: File) -> list[str]:
    """Recompute what a certificate states from the store's files; return what was found right, refuse what is not."""
    told: dict[str, Any] = file.of_kind("certificate").holding(dict)
    file.verify(store.key.public)
    if file.header.study != store.terms.fingerprint:
        raise Mismatch(f"{file.name} is of study {file.header.study}, the store of {store.terms.fingerprint}")
    if wrong := ledger.problems(store.log()):
        raise Mismatch(f"the store's ledger is not whole: {wrong[0]}")
    entry = check_head(store.log(), told["head"])
    for name in ("party", "digest", "samples", "before", "after"):
        if entry.says.get(name) != told[name]:
            raise Mismatch(f"{file.name} says {name} {told[name]}, the ledger's entry {entry.number} {entry.says[name]}")
    return [
        f"signed with this store's key {store.key.public}",
        f"entry {entry.number} of the ledger says the same, and the ledger is whole",
        *_recomputed(store, file.name, told),
    ]


def _recomputed(store: Store, name: str, told: dict[str, Any]) -> list[str]:
    """Add up the remaining contributions and compare."""
    present = {each.digest for each in store.contributions()}
    if left := [digest for digest in told["remaining"] if digest not in present]:
        raise InvalidData(
            f"{name} cannot be recomputed any more: {len(left)} of its {len(told['remaining'])} remaining contributions "
            f"have left since, such as {left[0][:16]}; verify the certificate or the entry of a later removal"
        )
    total = Sum.empty(store.terms.kind)
    for digest in told["remaining"]:
        total = total + sum_of(store.objects.read(digest))
    if total.digest != told["after"]:
        raise Mismatch(
            f"{name} is wrong: the remaining contributions add up to {total.digest[:16]}, it says {told['after'][:16]}"
        )
    found = [f"the {len(told['remaining'])} remaining contributions add up to the total after, {total.digest[:16]}"]
    if told["digest"] in present:
        raise Mismatch(f"{name}: the contribution that it says was removed is in the store")
    return [*found, "the removed contribution is not among the store's files"]


def _signed(store: Store, kind: str, entry: Entry, told: dict[str, Any]) -> bytes:
    said = {**told, "number": entry.number, "head": entry.hash}
    return files.encode(
        kind,
        said,
        study=store.terms.fingerprint,
        party=entry.says["party"],
        key=store.key,
        created=entry.says["time"],
    )
