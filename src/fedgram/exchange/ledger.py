"""The ledger: what a store has done, in a chain in which every entry holds the hash of the one before.

An entry that is changed, missing or in another place is therefore noticed. Whoever keeps the store could still write
the whole chain anew: signed receipts and publications carry the hash of its last entry, the head, and `check_head`
says whether a head that somebody was given is in the chain.

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

from fedgram.core import strict_json
from fedgram.core.errors import Mismatch, StoreError
from fedgram.core.hashing import hash_text, short
from fedgram.exchange.header import is_time, seconds

OPEN, JOIN, REPLACE, REMOVE, PUBLISH = "open", "join", "replace", "remove", "publish"
ROUND, ANSWER, CLOSE = "round", "answer", "close"  # a round is asked, answered by a party, and answered by all
SHOWN_HEAD = 40  # hexadecimal digits of a head: another chain with the same 16 is found in minutes
# What changes the total.
CHANGES = (JOIN, REPLACE, REMOVE)
_CHANGE: dict[str, type] = {"party": str, "digest": str, "samples": int}
# What an entry of each kind says besides its number, time, kind and the hash before it.
DETAILS: Mapping[str, Mapping[str, type]] = {
    OPEN: {"study": str, "key": str},
    JOIN: {**_CHANGE, "signer": str},
    REPLACE: {**_CHANGE, "signer": str, "replaced": str},
    REMOVE: {**_CHANGE, "before": str, "after": str},
    PUBLISH: {"version": int, "method": str, "settings": dict, "digest": str, "samples": int, "total": str},
    ROUND: {"method": str, "round": int, "digest": str},
    ANSWER: {"party": str, "digest": str, "round": int},
    CLOSE: {"round": int, "said": str},
}


@dataclass(frozen=True)
class Entry:
    """One entry: its number from 1, its text (JSON in one line), and the text's SHA-256."""

    number: int
    text: str
    hash: str

    @classmethod
    def after(cls, last: "Entry | None", what: str, *, time: str, **details: Any) -> Self:
        """Return the entry that follows `last`; a clock that has gone back is noted in it."""
        number, previous = (1, "") if last is None else (last.number + 1, last.hash)
        if last is not None and (back := last.seconds - seconds(time)) > 0:
            details["note"] = f"the clock went back by {back:.0f} s"
        said = {"number": number, "time": time, "what": what, **details, "previous": previous}
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        return cls(number, text, hash_text(text))

    @cached_property
    def says(self) -> dict[str, Any]:
        """What the entry says, by name; nothing where its text is damaged."""
        try:
            found = strict_json.parse(self.text)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    def detail(self, name: str) -> Any:
        """Return one thing that the entry says; refuse an entry that lacks it, which fedgram never writes."""
        if name not in self.says:
            raise StoreError(f"entry {self.number} of the ledger has no {name!r}: restore the store from a copy")
        return self.says[name]

    @property
    def misshapen(self) -> str:
        """What its text says otherwise than fedgram writes it; "" where nothing is."""
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
        """When it was written, in seconds since 1970."""
        time = self.detail("time")
        try:
            return seconds(time)
        except (TypeError, ValueError) as error:
            said = f"entry {self.number} of the ledger has {time!r} as its time"
            raise StoreError(f"{said}: restore the store from a copy") from error


def problems(entries: Iterable[Entry]) -> list[str]:
    """Say what is wrong with a chain, entry by entry in the order of their numbers; nothing if it is whole."""
    return list(_problems(entries))


def _problems(entries: Iterable[Entry]) -> Iterator[str]:
    last, previous, sure = 0, "", True  # `sure`: the entry before is there and has not been changed
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
    """Say which entries of a whole chain say something else than fedgram writes: no other code need expect that."""
    found = ((entry.number, entry.misshapen) for entry in entries)
    return [f"entry {number} is not as fedgram writes it: {why}" for number, why in found if why]


def check_head(entries: Iterable[Entry], head: str) -> Entry:
    """Return the entry with this hash, or its beginning of at least 40 digits; refuse a head that the chain lacks."""
    head = head.strip().lower()
    if len(head) < SHOWN_HEAD or set(head) - set("0123456789abcdef"):
        raise Mismatch(f"{head[:80]!r} is not a ledger's head: give at least {SHOWN_HEAD} of its digits, or the file")
    for entry in entries:
        if entry.hash.startswith(head) and hash_text(entry.text) == entry.hash:
            return entry
    raise Mismatch(
        f"the ledger has no entry with the head {short(head)}…: entries were rewritten or taken away since it was "
        "given out, or it is another store's"
    )


def members(entries: Iterable[Entry], *, up_to: int) -> set[str]:
    """Return the digests of the contributions that were in after the entry with this number."""
    found: set[str] = set()
    for entry in entries:
        said = entry.says
        if entry.number <= up_to and said.get("what") in CHANGES:
            found.discard(said.get("replaced", ""))
            (found.discard if said["what"] == REMOVE else found.add)(entry.detail("digest"))
    return found


def removed(entries: Iterable[Entry]) -> dict[str, str]:
    """Return who was removed and has not joined since, with the time; a region may have brought it back."""
    found: dict[str, str] = {}
    for entry in entries:
        said = entry.says
        if said.get("what") in CHANGES:
            found.pop(str(said.get("party")), None)
        if said.get("what") == REMOVE:
            found[str(said.get("party"))] = str(said.get("time"))
    return found
