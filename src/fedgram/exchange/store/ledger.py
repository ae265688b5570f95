"""The ledger: all changes of a store, in a chain in which every entry holds the hash of the entry before.

An entry that is changed, missing or out of place is therefore noticed. The store's owner could still write the whole
chain anew. So signed receipts and publications carry the hash of the chain's last entry, the head, and `check_head`
finds whether such a head is in the chain.

The coordinator's signed statements, receipts of contributions and certificates of their removal, are made of entries
and can be made again at any time.

>>> first = Entry.after(None, "open", time="2026-01-01T00:00:00Z", study="0f3a")
>>> second = Entry.after(first, "join", time="2026-01-02T00:00:00Z", party="north")
>>> problems([first, second])
[]
>>> problems([second])
['entry 1 is missing']
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from fedgram.core import container
from fedgram.core.errors import FedgramError, Mismatch, StoreError
from fedgram.core.hashing import hash_text, short
from fedgram.exchange.format import fgm
from fedgram.exchange.format.amendments import Amendment, numbered
from fedgram.exchange.format.header import is_time, seconds
from fedgram.secure.signing_keys import PrivateKey

OPEN, JOIN, REPLACE, REMOVE, PUBLISH = "open", "join", "replace", "remove", "publish"
AMEND = "amend"  # parties or keys of the study change; the total does not
ROUND, ANSWER, CLOSE = "round", "answer", "close"  # a round is asked, answered by a party, and answered by all
RESTORED = "restored"  # an older backup was accepted, which lacks entries up to one that was seen
SHOWN_HEAD = 40  # hexadecimal digits of a head; another chain with the same 16 can be found in minutes
# Kinds of entries that change the total.
CHANGES = (JOIN, REPLACE, REMOVE)
_CHANGE: dict[str, type] = {"party": str, "digest": str, "samples": int}
# Fields of each kind of entry besides its number, time, kind and the hash before it.
DETAILS: Mapping[str, Mapping[str, type]] = {
    OPEN: {"study": str, "genesis": str, "key": str},
    JOIN: {**_CHANGE, "signer": str},
    REPLACE: {**_CHANGE, "signer": str, "replaced": str},
    REMOVE: {**_CHANGE, "before": str, "after": str},
    PUBLISH: {"version": int, "method": str, "settings": dict, "digest": str, "samples": int, "total": str},
    AMEND: {"party": str, "change": str, "amendment": dict},
    ROUND: {"method": str, "round": int, "digest": str},
    ANSWER: {"party": str, "digest": str, "round": int},
    CLOSE: {"round": int, "said": str},
    RESTORED: {"seen": int, "head": str, "version": int},
}


@dataclass(frozen=True)
class Entry:
    """An entry of the ledger.

    Attributes
    ----------
    number
        Number of the entry, from 1.
    text
        JSON in one line.
    hash
        SHA-256 of the text, in hexadecimal.

    """

    number: int
    text: str
    hash: str

    @classmethod
    def after(cls, last: "Entry | None", what: str, *, time: str, **details: Any) -> Self:
        """Return the entry that follows `last`, with a note if the clock has gone back."""
        number, previous = (1, "") if last is None else (last.number + 1, last.hash)
        if last is not None and (back := last.seconds - seconds(time)) > 0:
            details["note"] = f"the clock went back by {back:.0f} s"
        said = {"number": number, "time": time, "what": what, **details, "previous": previous}
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        return cls(number, text, hash_text(text))

    @cached_property
    def says(self) -> dict[str, Any]:
        """Fields of the entry by name; empty if its text is damaged."""
        try:
            found = container.parse(self.text)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    def detail(self, name: str) -> Any:
        """Return a field of the entry; raise if it is missing, which fedgram never writes."""
        if name not in self.says:
            raise StoreError(f"entry {self.number} of the ledger has no {name!r}: restore the store from a copy")
        return self.says[name]

    @property
    def misshapen(self) -> str:
        """Deviation of the text from the form that fedgram writes; "" without one."""
        said = self.says
        what, time = said.get("what"), said.get("time")
        if not isinstance(what, str) or what not in DETAILS:
            return f"expected one of {', '.join(DETAILS)} as what was done, got {what!r:.60}"
        if not isinstance(time, str) or not is_time(time):
            return f"expected a time, got {time!r:.60}"
        for name, kind in DETAILS[what].items():
            if type(said.get(name)) is not kind:
                return f"expected {name!r} of kind {kind.__name__}, got {said.get(name)!r:.60}"
        return ""

    @property
    def seconds(self) -> float:
        """Time of writing in seconds since 1970."""
        time = self.detail("time")
        try:
            return seconds(time)
        except (TypeError, ValueError) as error:
            said = f"entry {self.number} of the ledger has {time!r} as its time"
            raise StoreError(f"{said}: restore the store from a copy") from error


def problems(entries: Iterable[Entry]) -> list[str]:
    """Return the faults of a chain in the order of its entries; an empty list if it is whole."""
    return list(_problems(entries))


def _problems(entries: Iterable[Entry]) -> Iterator[str]:
    last, previous, sure = 0, "", True  # `sure`: the entry before is present and unchanged
    for entry in entries:
        if (missing := entry.number - last - 1) > 0:
            many = f"entries {last + 1} to {entry.number - 1} are" if missing > 1 else f"entry {last + 1} is"
            yield f"{many} missing"
            sure = False
        unchanged = hash_text(entry.text) == entry.hash
        if not unchanged:
            yield f"entry {entry.number} was changed: its text does not fit its hash"
        elif entry.says.get("number") != entry.number:
            yield f"entry {entry.number} is out of order: it was written as entry {entry.says.get('number')}"
        elif sure and entry.says.get("previous") != previous:
            yield f"entry {entry.number} does not follow on entry {last}: one of the two was written anew"
        last, previous, sure = entry.number, entry.hash, unchanged
    if not last:
        yield "the ledger is empty"


def misshapen(entries: Iterable[Entry]) -> list[str]:
    """Return the entries of a whole chain that fedgram would not write, so that other code need not expect them."""
    found = ((entry.number, entry.misshapen) for entry in entries)
    return [f"entry {number} is not as fedgram writes it: {why}" for number, why in found if why]


def check_head(entries: Iterable[Entry], head: str) -> Entry:
    """Return the entry with this hash, or with at least 40 of its first digits; raise if the chain lacks it."""
    head = head.strip().lower()
    if len(head) < SHOWN_HEAD or set(head) - set("0123456789abcdef"):
        raise Mismatch(f"{head[:80]!r} is not a ledger's head: give at least {SHOWN_HEAD} of its digits, or the file")
    for entry in entries:
        if entry.hash.startswith(head) and hash_text(entry.text) == entry.hash:
            return entry
    raise Mismatch(
        f"the ledger has no entry with the head {short(head)}…: entries were rewritten or taken away since it was "
        "given out, or it is another store's, or this store was restored from an older backup"
    )


def members(entries: Iterable[Entry], *, up_to: int) -> set[str]:
    """Return the digests of the contributions that were present after the entry with this number."""
    found: set[str] = set()
    for entry in entries:
        said = entry.says
        if entry.number <= up_to and said.get("what") in CHANGES:
            found.discard(said.get("replaced", ""))
            (found.discard if said["what"] == REMOVE else found.add)(entry.detail("digest"))
    return found


def removed(entries: Iterable[Entry]) -> dict[str, str]:
    """Return removed parties that have not joined since, with the time; a region may have brought them back."""
    found: dict[str, str] = {}
    for entry in entries:
        said = entry.says
        if said.get("what") in CHANGES:
            found.pop(str(said.get("party")), None)
        if said.get("what") == REMOVE:
            found[str(said.get("party"))] = str(said.get("time"))
    return found


PROVES = (
    "The coordinator has stated, with its signature, that this contribution was removed, and that the total after it "
    "is the sum of the contributions that remained."
)
DOES_NOT_PROVE = (
    "That all copies were deleted, or that no older model is in use. From the totals before and after the removal, the "
    "removed sums can be computed as their difference."
)
_STATEMENT: dict[str, type] = {"party": str, "digest": str, "samples": int, "time": str, "number": int, "head": str}
# Fields of both kinds of statement.
RECEIPT: Mapping[str, type] = {**_STATEMENT, "what": str}
CERTIFICATE: Mapping[str, type] = {
    **_STATEMENT,
    **dict.fromkeys(("before", "after", "proves", "does_not_prove"), str),
    "remaining": list,
}


def amendments(entries: Iterable[Entry], *, up_to: int | None = None) -> tuple[Amendment, ...]:
    """Return the amendments in these entries, or in those up to a number; raise for one that fedgram never writes."""
    found = []
    for entry in entries:
        if entry.says.get("what") == AMEND and (up_to is None or entry.number <= up_to):
            try:
                found.append(Amendment.of_fields(entry.detail("amendment")))
            except FedgramError as error:
                raise StoreError(f"entry {entry.number} of the ledger: {error}") from error
    return tuple(found)


def receipt(entry: Entry, entries: Iterable[Entry], *, study: str, key: PrivateKey) -> bytes:
    """Return the signed receipt of an entry that records a joined contribution; `entries` have the amendments."""
    return _signed("receipt", entry, said_by_receipt(entry, entries), study, key)


def said_by_receipt(entry: Entry, entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the content of the receipt of an entry, with the amendments before it where there are any."""
    told = _of_entry(entry, "what", "party", "digest", "samples", "time")
    before = numbered(amendments(entries, up_to=entry.number))
    return told | ({"amendments": list(before)} if before else {})


def certificate(entry: Entry, remaining: Iterable[str], *, study: str, key: PrivateKey) -> bytes:
    """Return the signed certificate of an entry that records a removal; `remaining` are digests."""
    return _signed("certificate", entry, said_by_certificate(entry, remaining), study, key)


def said_by_certificate(entry: Entry, remaining: Iterable[str]) -> dict[str, Any]:
    """Return the content of the certificate of an entry."""
    told = _of_entry(entry, "party", "digest", "samples", "time", "before", "after")
    return told | {"remaining": sorted(remaining), "proves": PROVES, "does_not_prove": DOES_NOT_PROVE}


def _of_entry(entry: Entry, *names: str) -> dict[str, Any]:
    return {name: entry.detail(name) for name in names} | {"number": entry.number, "head": entry.hash}


def _signed(kind: str, entry: Entry, told: dict[str, Any], study: str, key: PrivateKey) -> bytes:
    return fgm.encode(kind, told, study=study, party=told["party"], key=key, created=told["time"])
