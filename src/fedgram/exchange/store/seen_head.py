"""The newest head of a store's ledger that was seen outside the store: by it an older backup is noticed.

It stands in a file beside the folder, `store.head` for `store`, so that restoring the folder leaves it as it is. Each
change writes it, signed with the store's key. A receipt, certificate or publication that is given to be verified counts
as well. Without the file, as on another machine, nothing is compared.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram.core import container
from fedgram.core.errors import FedgramError
from fedgram.core.filesystem import PRIVATE, read_regular, replace_file
from fedgram.core.hashing import short
from fedgram.exchange.store.ledger import PUBLISH, RESTORED, Entry
from fedgram.secure.signing_keys import PublicKey

if TYPE_CHECKING:
    from fedgram.exchange.store.study_store import Store

KIND = "head"  # the kind of file that a head is signed as


@dataclass(frozen=True)
class Seen:
    """An entry of the ledger that was seen.

    Attributes
    ----------
    first
        Hash of the ledger's first entry, which tells ledgers apart.
    number, head
        Number and hash of the entry; a publication tells only the number of its own entry, and the hash is "" then.
    version
        Number of the newest publication that was seen.

    """

    first: str
    number: int
    head: str
    version: int

    @property
    def signed(self) -> bytes:
        """The bytes that the store's key signs."""
        return f"{self.first} {self.number} {self.head} {self.version}".encode()


def path_of(store: Path) -> Path:
    """Return the path of the file beside a store's folder."""
    folder = store.resolve()
    return folder.parent / f"{folder.name}.head"


def load(store: "Store") -> Seen | None:
    """Return the entry in the file beside a store; None if it is missing, damaged, or of another ledger or key."""
    first = store.index.first()
    try:
        found = container.parse(read_regular(path_of(store.path), most=1 << 12))
        seen = Seen(found["first"], found["number"], found["head"], found["version"])
        if first is None or first.hash != seen.first:
            return None
        PublicKey(first.says["key"]).verify(KIND, seen.signed, bytes.fromhex(found["signature"]))
    except (OSError, FedgramError, ValueError, LookupError, TypeError):
        return None
    return seen


def save(store: "Store", seen: Seen) -> None:
    """Write the file beside a store that has its key; where it cannot be written, backups go unnoticed."""
    if store.has_key:
        told = asdict(seen) | {"signature": store.key.sign(KIND, seen.signed).hex()}
        with suppress(OSError):
            replace_file(path_of(store.path), json.dumps(told).encode(), mode=PRIVATE)


def note(store: "Store", known: Seen | None) -> None:
    """Write the present head of a store beside it, where `known` was."""
    last = store.index.last()
    if last is None or (known is not None and known.head == last.hash):
        return
    if known is None:
        entries = store.log()
        save(store, Seen(entries[0].hash, last.number, last.hash, last_version(entries)))
    else:
        save(store, Seen(known.first, last.number, last.hash, max(known.version, last_version([last]))))


def last_version(entries: Sequence[Entry]) -> int:
    """Return the number of the last publication, also of those that an older backup has lost."""
    return max((each.detail("version") for each in entries if each.says.get("what") in (PUBLISH, RESTORED)), default=0)


def note_statement(store: "Store", entries: Sequence[Entry], number: int, told: Mapping[str, Any]) -> str:
    """Return a text on how a statement is newer than the ledger: `number` is its entry, `told` its content.

    Returns "" if it is not newer. Otherwise its entry counts as seen from now on.
    """
    if number <= len(entries) or is_accepted(entries, number):
        return ""
    version = told.get("version")
    head = told["head"] if told.get("number") == number else ""
    found = Seen(entries[0].hash, number, head, version if type(version) is int else last_version(entries))
    known = load(store)
    if known is None or known.number < number:
        save(store, found)
    return lost(store, found)


def is_accepted(entries: Sequence[Entry], number: int) -> bool:
    """Return whether the ledger says that an entry of this number was lost with an older backup."""
    return any(each.says.get("what") == RESTORED and each.number <= number <= each.detail("seen") for each in entries)


def lost(store: "Store", seen: Seen | None) -> str:
    """Return a text on the entries that a ledger has lost since `seen`; "" if it still has the entry seen."""
    last = store.index.last()
    if seen is None or last is None:
        return ""
    if seen.number > last.number:
        first = last.number + 1
        missing = f"entries {first} to {seen.number} are" if seen.number > first else f"entry {first} is"
        what = f"the ledger ends with entry {last.number}, and {missing} missing, which it had"
    elif seen.head not in ("", last.hash) and store.index.entry(seen.number).hash != seen.head:
        what = f"entry {seen.number} is another one than the ledger had (head {short(seen.head)})"
    else:
        return ""
    return (
        f"the store {store.path} was restored from an older backup: {what}; put the newest backup in its place, or if "
        f"there is none, go on with fedgram log {store.path} --accept-restored, and then repeat the changes made "
        "since, removals first"
    )
