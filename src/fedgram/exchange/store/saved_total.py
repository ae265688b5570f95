"""The saved total of a store, which spares adding all files up anew, and the checkpoint of its checked ledger."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedgram.core import container, wire
from fedgram.core.container import MOST_BYTES
from fedgram.core.errors import FedgramError, FolderInUse, StoreError
from fedgram.core.filesystem import PRIVATE, read_regular, replace_file, replacing, sweep_unfinished, writing
from fedgram.core.hashing import hash_text
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.format.fgm import read
from fedgram.exchange.store import ledger, objects, seen_head
from fedgram.exchange.store.combined import part_of, sum_of
from fedgram.exchange.store.index_check import differences, run_differences
from fedgram.exchange.store.ledger import CHANGES, PUBLISH, ROUND, Entry, members
from fedgram.protocol.fit import Fit
from fedgram.secure.signing_keys import PrivateKey, PublicKey

if TYPE_CHECKING:
    from fedgram.exchange.store.study_store import Store

T = TypeVar("T")
TOTAL, CHECKED, RECEIPTS = "total.bin", "checked.json", "receipts"
# Number of files that join before the total is saved; at most as many are read again after a crash.
SAVED_EVERY = 64
KIND = "total"  # the kind of file that a total is signed as
TRIES = 5  # of reading a store that other processes are changing


@dataclass(frozen=True)
class Saved:
    """A total, and the ledger's last entry that it includes."""

    number: int
    head: str
    total: Sum

    @property
    def signed(self) -> bytes:
        """The bytes that the store's key signs, so that only it can write a total."""
        return f"{self.number} {self.head} {self.total.digest}".encode()


def save_total(path: Path, saved: Saved, key: PrivateKey | None) -> None:
    """Write a signed total in the place of the last; without a key it is not trusted, and made anew when needed."""
    signature = "" if key is None else key.sign(KIND, saved.signed).hex()
    data = wire.encode({"number": saved.number, "head": saved.head, "total": saved.total, "signature": signature})
    with writing(path, StoreError, remedy=objects.REMEDY):
        with replacing(path, mode=PRIVATE) as file:
            objects.write_whole(file.fileno(), data)
        objects.sync(path.parent)


def load_total(path: Path, key: str) -> Saved | None:
    """Return the saved total; None if it is missing, damaged or not signed with `key`, and must be made anew."""
    found = _found_total(path)
    return found[0] if found is not None and _signed_by(*found, key) else None


def is_forged(path: Path, key: str) -> bool:
    """Return whether an undamaged total exists that another key has signed."""
    found = _found_total(path)
    return found is not None and found[1] != "" and not _signed_by(*found, key)


def said_by_total(path: Path, key: str) -> Saved | None:
    """Return the saved total even without a signature, as a store without its key writes it."""
    found = _found_total(path)
    return None if found is None or is_forged(path, key) else found[0]


def _found_total(path: Path) -> tuple[Saved, str] | None:
    try:
        data = read_regular(path, most=MOST_BYTES)
        container.check_digest(data)
        found = wire.decode(data)
        saved, signature = Saved(found["number"], found["head"], found["total"]), str(found.get("signature", ""))
    except (OSError, FedgramError, KeyError, TypeError, AttributeError):
        return None
    return (saved, signature) if isinstance(saved.total, Sum) and isinstance(saved.number, int) else None


def _signed_by(saved: Saved, signature: str, key: str) -> bool:
    try:
        PublicKey(key).verify(KIND, saved.signed, bytes.fromhex(signature))
    except (FedgramError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Checkpoint:
    """Record of the last full check, which spares a change from reading the whole ledger.

    The ledger was whole up to this entry, the saved total is that of the contributions then, and neither the index nor
    the folder of files has changed since. After a crash, or when the store was edited or copied, the checkpoint does
    not fit, and everything is checked again.
    """

    number: int
    head: str
    total: int  # number of the last entry that the saved total includes; later entries do not change it
    stamp: str

    @classmethod
    def of(cls, store: "Store", saved: Saved) -> "Checkpoint | None":
        """Return the checkpoint of the store's present state; None while the index has a journal or lacks entries."""
        last, index, folder = store.index.last(), store.index.stamp(), store.objects.folder
        if last is None or not index or hash_text(last.text) != last.hash:
            return None
        files = folder.stat().st_mtime_ns if folder.exists() else 0
        return cls(last.number, last.hash, saved.number, f"{index} {files}")

    def save(self, store: "Store") -> None:
        """Write the checkpoint; losing it costs only a full check."""
        with suppress(OSError):
            replace_file(store.path / CHECKED, json.dumps(asdict(self)).encode(), mode=PRIVATE)

    def fits(self, store: "Store") -> bool:
        """Return whether this is the checkpoint on the disk."""
        try:
            return bool(json.loads(read_regular(store.path / CHECKED, most=1 << 12)) == asdict(self))
        except (OSError, ValueError):
            return False


class Saving:
    """The total during changes, saved from time to time and at the end."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        # After a full check, a crash may have left files that are not in the index: they go when the total is saved.
        self._saved, self._untidy = caught_up(store)
        self._unsaved = int(self._untidy)

    @property
    def total(self) -> Sum:
        """The present total."""
        return self._saved.total

    def change(self, total: Sum, entry: Entry, *, left: bool) -> None:
        """Set a new total, up to this entry of the ledger; `left` says whether a contribution has left it."""
        self._saved = Saved(entry.number, entry.hash, total)
        self._unsaved += 1
        self._untidy |= left

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all changes inside or none, with one sync besides those of the files themselves."""
        before = self._saved, self._unsaved
        try:
            with self._store.index.changing():
                yield
                self._store.objects.settle()
        except BaseException:
            self._saved, self._unsaved = before
            raise
        if self._unsaved >= SAVED_EVERY:
            self.save()

    def save(self) -> None:
        """Write the total if it has changed; only then delete files that it no longer includes."""
        if self._unsaved:
            save_total(self._store.path / TOTAL, self._saved, self._store.key if self._store.has_key else None)
            self._unsaved = 0
            # Joining and leaving end the rounds, and their answers are not kept.
            self._store.answers.sweep(self._store.index.answers().values())
            if self._untidy:
                # Joined contributions stay even if their row was deleted by hand: it can be restored.
                joined = members(self._store.log(), up_to=self._saved.number)
                self._store.published.tidy(publications(self._store.log()))
                self._store.objects.sweep(joined | {each.digest for each in self._store.contributions()})
                # A total from before a removal would still show the removed part, as its difference to the new total.
                sweep_unfinished(self._store.path / TOTAL)
                sweep_unfinished(self._store.path / CHECKED)
                with suppress(OSError):  # the folder around may be another user's
                    sweep_unfinished(seen_head.path_of(self._store.path))
                self._untidy = False

    def close(self) -> None:
        """Save the total and write a checkpoint."""
        self.save()
        self._store.index.checkpoint()
        later = (entry.says.get("what") for entry in self._store.index.entries(after=self._saved.number))
        if any(what in CHANGES for what in later):  # Ctrl-C came between the index and the total
            return
        found = Checkpoint.of(self._store, self._saved)
        if found is not None and not found.fits(self._store):
            found.save(self._store)


def caught_up(store: "Store") -> tuple[Saved, bool]:
    """Return the total up to the ledger's last entry, and whether the whole ledger had to be checked for it.

    After a crash the saved total may be older: then later joins are added, and later removals subtracted. A damaged
    ledger raises, since it cannot tell what a saved total includes.
    """
    saved = load_total(store.path / TOTAL, store.public_key)
    if saved is not None and saved.total.schema == store.genesis.schema:
        checkpoint = Checkpoint.of(store, saved)
        if checkpoint is not None and checkpoint.fits(store):
            return saved, False
    return _checked(store, saved), True


def problems(store: "Store") -> list[str]:
    """Return the faults of a store: of its ledger, of an index or signed file that contradicts it, and of its total."""
    files, seen = FilesSay.of(store), seen_head.load(store)
    with store.index.reading():
        entries = store.log()
        found = _contradictions(store, entries, files)
        if ledger.problems(entries) or ledger.misshapen(entries):
            return found
        found += filter(None, [seen_head.lost(store, seen)])
        found += run_differences(store.index, entries)
    if is_forged(store.path / TOTAL, store.public_key):
        found.append(f"{TOTAL} is not as the store signed it: it is not used, the next change adds all files up anew")
    return found


def check_whole(store: "Store") -> None:
    """Raise if a store's ledger is damaged or cut off, or contradicts the index.

    Neither can be repaired from the other: only the index has departures, and only the ledger has entries.
    """
    files = FilesSay.of(store)
    with store.index.reading():
        wrong = _contradictions(store, store.log(), files)
    if wrong:
        raise StoreError(
            f"the store {store.path} contradicts itself, so nothing is counted or changed: {wrong[0]}; restore the "
            "store from a copy, fedgram log names all that is wrong"
        )


@dataclass(frozen=True)
class FilesSay:
    """Heads of the ledger that a store's own files carry, and the digests of publications.

    These files are read before the ledger, and each was written after the entry that it names. So a change that another
    process makes meanwhile is never taken for a contradiction.
    """

    heads: Sequence[tuple[str, int, str, Path | None]]
    published: Sequence[str]

    @classmethod
    def of(cls, store: "Store") -> "FilesSay":
        """Return the statements of a store's files."""
        heads: list[tuple[str, int, str, Path | None]] = []
        with suppress(FedgramError):  # a first entry without the store's key, which the check of the ledger names
            heads += _heads_at_hand(store)
        return cls(heads, store.published.digests())


def unmoved(store: "Store", read: Callable[[], T]) -> T:
    """Return the result of `read`, which reads a store and its files; repeat it after a change by another process.

    Files are read one at a time, and a file that leaves the store is deleted: that does not mean damage.
    """
    for _ in range(TRIES):
        before = store.index.version()
        try:
            return read()
        except FedgramError:
            if store.index.version() == before:
                raise
    raise FolderInUse(f"another coordinator is writing to {store.path}: try again when it is done")


def _contradictions(store: "Store", entries: Sequence[Entry], files: FilesSay) -> list[str]:
    if wrong := ledger.problems(entries) or ledger.misshapen(entries):
        return wrong
    found = [*_cut_off(store, entries, files), *differences(store.index, entries)]
    for name, own in (("study", store.genesis.fingerprint), ("genesis", store.genesis.began)):
        if (began := entries[0].detail(name)) != own:
            found.append(f"the index has {name} {own or 'none'}, and the ledger began with {began}")
    try:
        store.genesis.amended(ledger.amendments(entries), PublicKey(store.public_key))
    except FedgramError as error:
        found.append(f"the ledger's amendments: {error}")
    return found


def _cut_off(store: "Store", entries: Sequence[Entry], files: FilesSay) -> Iterator[str]:
    """Yield the heads signed by this store that its ledger lacks: entries were taken away or written anew."""
    heads = {entry.number: entry.hash for entry in entries}
    for name, number, head, path in files.heads:
        if heads.get(number) != head and (path is None or _is_signed(path, PublicKey(store.public_key))):
            there = "another one" if number in heads else f"{len(entries)} entries"
            yield (
                f"{name} was signed after entry {number} with the head {head[:16]}, and the ledger has {there}: "
                "entries were taken away or written anew"
            )
    named = publications(entries)
    for digest in files.published:
        if digest not in named:
            yield (
                f"{store.published.path(digest).name} was published, and the ledger does not have it: entries were "
                "taken away or written anew"
            )


def publications(entries: Iterable[Entry]) -> set[str]:
    """Return the digests of all publications and rounds."""
    return {str(entry.says.get("digest")) for entry in entries if entry.says.get("what") in (PUBLISH, ROUND)}


def _is_signed(path: Path, key: PublicKey) -> bool:
    try:
        read(path, checked=True).verify(key)
    except FedgramError:
        return False
    return True


def _heads_at_hand(store: "Store") -> Iterator[tuple[str, int, str, Path | None]]:
    """Yield name, entry number and head of the ledger from the saved total, receipts and publications.

    A path is added if the signature was not verified yet: a file signed with another key says nothing of this ledger.
    """
    saved = said_by_total(store.path / TOTAL, store.public_key)
    if saved is not None:
        yield TOTAL, saved.number, saved.head, None
    for folder in (store.path / RECEIPTS, store.published.folder):
        for path in sorted(folder.glob(f"*{objects.ENDING}")):
            try:
                file = read(path, checked=True)
                told = file.payload.notes["ledger"] if isinstance(file.payload, Fit) else file.payload
                number, head = told["number"], told["head"]
            except (FedgramError, LookupError, TypeError, AttributeError):
                continue
            if isinstance(number, int) and isinstance(head, str):
                yield f"{folder.name}/{path.name}", number, head, path


def _checked(store: "Store", saved: Saved | None) -> Saved:
    check_whole(store)
    with store.index.reading():
        entries, kind = store.log(), store.genesis.schema
        current = {each.digest for each in store.contributions()}
    heads = {entry.number: entry.hash for entry in entries}
    then, total = set[str](), Sum.empty(kind)
    if saved is not None and heads.get(saved.number) == saved.head and saved.total.schema == kind:
        counted = members(entries, up_to=saved.number)
        # An older total that was put back may include contributions whose files are gone: then all are added up anew.
        with suppress(StoreError):
            then, total = counted & current, _without(store, saved.total, counted - current)
    for digest in sorted(current - then):
        total = total.plus(part_of(store.objects.read(digest)))
    return Saved(entries[-1].number, entries[-1].hash, total)


def _without(store: "Store", total: Sum, digests: set[str]) -> Sum:
    for digest in sorted(digests):
        total = total - sum_of(store.objects.read(digest))
    return total
