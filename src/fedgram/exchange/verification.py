"""Certificates and the ledger, checked against the files that a store has."""

from typing import Any

from fedgram.core.errors import InvalidData, Mismatch
from fedgram.exchange import ledger
from fedgram.exchange.combined import part_of
from fedgram.exchange.files import File
from fedgram.exchange.keys import PublicKey
from fedgram.exchange.ledger import check_head, members
from fedgram.exchange.store import Store
from fedgram.exchange.sums import Sum


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
    told: dict[str, Any] = file.of_kind("certificate").holding(dict)
    file.verify(PublicKey(store.public_key))
    if file.header.study != store.terms.fingerprint:
        raise Mismatch(f"{file.name} is of study {file.header.study}, the store of {store.terms.fingerprint}")
    if wrong := ledger.problems(store.log()):
        raise Mismatch(f"the store's ledger is not whole: {wrong[0]}")
    entry = check_head(store.log(), told["head"])
    for name in ("party", "digest", "samples", "before", "after"):
        if entry.says.get(name) != told[name]:
            said = f"the ledger's entry {entry.number} says {entry.says.get(name)}"
            raise Mismatch(f"{file.name} says {name} {told[name]}, and {said}")
    return [
        f"signed with this store's key {store.public_key}",
        f"entry {entry.number} of the ledger says the same, and the ledger is whole",
        *_recomputed(store, file.name, told),
    ]


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
    present = {each.digest for each in store.contributions()}
    if left := [digest for digest in told["remaining"] if digest not in present]:
        raise InvalidData(
            f"{name} cannot be recomputed any more: {len(left)} of {len(told['remaining'])} remaining contributions "
            f"have left since, such as {left[0][:16]}; verify the certificate of a later removal"
        )
    total = added_up(store, told["remaining"])
    if total.digest != told["after"]:
        raise Mismatch(
            f"{name} is wrong: the remaining contributions add up to {total.digest[:16]}, it says {told['after'][:16]}"
        )
    found = [f"the {len(told['remaining'])} remaining contributions add up to the total after, {total.digest[:16]}"]
    if told["digest"] in present:
        raise Mismatch(f"{name}: the contribution that it says was removed is in the store")
    return [*found, "the removed contribution is not among the store's files"]
