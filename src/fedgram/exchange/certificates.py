"""What the coordinator signs: receipts of what has joined, and certificates of what was taken out again.

Both are made of entries of the ledger, so that they can be made again at any time, and both carry its head.
"""

import re
from collections.abc import Iterable
from typing import Any

from fedgram.exchange import files
from fedgram.exchange.keys import PrivateKey
from fedgram.exchange.ledger import Entry

STATES = (
    "The coordinator states that the total after this removal is the sum of the contributions listed as remaining. "
    "Whoever has their files can add them up and compare the digests: fedgram verify does."
)
DOES_NOT_STATE = (
    "It proves neither that no copy of the removed contribution exists, nor that no model made with it is in use. "
    "Whoever has both totals, before and after, can compute the removed moments as their difference."
)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def receipt(entry: Entry, *, study: str, key: PrivateKey) -> bytes:
    """Return the signed receipt of an entry by which something joined."""
    return _signed("receipt", entry, said_by_receipt(entry), study, key)


def said_by_receipt(entry: Entry) -> dict[str, Any]:
    """Return the content of the receipt of an entry."""
    return _of_entry(entry, "what", "party", "digest", "samples", "time")


def file_name(party: str, what: object) -> str:
    """Return what a party's file is called; its name may have letters that a file's must not.

    >>> file_name("../étage 2", "removed")
    'tage_2-removed.fgm'
    """
    return f"{_ODD.sub('_', party)[:60].strip('._') or 'party'}-{what}.fgm"


def certificate(entry: Entry, remaining: Iterable[str], *, study: str, key: PrivateKey) -> bytes:
    """Return the signed certificate of an entry by which something was removed; `remaining` are digests."""
    return _signed("certificate", entry, said_by_certificate(entry, remaining), study, key)


def said_by_certificate(entry: Entry, remaining: Iterable[str]) -> dict[str, Any]:
    """Return the content of the certificate of an entry."""
    told = _of_entry(entry, "party", "digest", "samples", "time", "before", "after")
    return told | {"remaining": sorted(remaining), "states": STATES, "does_not_state": DOES_NOT_STATE}


def _of_entry(entry: Entry, *names: str) -> dict[str, Any]:
    return {name: entry.detail(name) for name in names} | {"number": entry.number, "head": entry.hash}


def _signed(kind: str, entry: Entry, told: dict[str, Any], study: str, key: PrivateKey) -> bytes:
    return files.encode(kind, told, study=study, party=told["party"], key=key, created=told["time"])
