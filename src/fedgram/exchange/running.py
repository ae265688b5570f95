"""The running total of a store, so that nothing has to be added up anew, and how far its ledger has been checked."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedgram.core.errors import FedgramError, FolderInUse, StoreError
from fedgram.core.files import PRIVATE, read_regular, replace_file, sweep_unfinished
from fedgram.core.hashing import hash_text
from fedgram.exchange import ledger
from fedgram.exchange.combined import part_of, sum_of
from fedgram.exchange.files import read
from fedgram.exchange.keys import PublicKey
from fedgram.exchange.ledger import PUBLISH, ROUND, Entry, members
from fedgram.exchange.objects import ENDING, Saved, is_forged, load_total, said_by_total, save_total
from fedgram.exchange.rows import differences, run_differences
from fedgram.exchange.sums import Sum
from fedgram.protocol.fit import Fit

if TYPE_CHECKING:
    from fedgram.exchange.store import Store

T = TypeVar("T")
TOTAL, CHECKED, RECEIPTS = "total.bin", "checked.json", "receipts"
# Files that join before the total is saved: after a crash no more than these are read again.
SAVED_EVERY = 64
TRIES = 5  # to read a store that others are changing


@dataclass(frozen=True)
class Checkpoint:
    """What a change may rely on without reading the ledger again: it was whole up to this entry, the saved total is
    that of the contributions then, and nobody has written to the index or to the folder of files since.

    After a crash, or when somebody has edited or copied the store, it does not fit, and everything is checked again.
    """

    number: int
    head: str
    total: int  # the entry up to which the saved total goes; those after it do not change it
    stamp: str

    @classmethod
    def of(cls, store: "Store", saved: Saved) -> "Checkpoint | None":
        """Return the checkpoint that fits the store as it is now; None while it cannot be told."""
        last, index, folder = store.index.last(), store.index.stamp(), store.objects.folder
        if last is None or not index or hash_text(last.text) != last.hash:
            return None
        files = folder.stat().st_mtime_ns if folder.exists() else 0
        return cls(last.number, last.hash, saved.number, f"{index} {files}")

    def save(self, store: "Store") -> None:
        """Write it; one that is lost costs only a whole check."""
        with suppress(OSError):
            replace_file(store.path / CHECKED, json.dumps(asdict(self)).encode(), mode=PRIVATE)

    def fits(self, store: "Store") -> bool:
        """Whether it is the one that was written last."""
        try:
            return bool(json.loads(read_regular(store.path / CHECKED, most=1 << 12)) == asdict(self))
        except (OSError, ValueError):
            return False


class Saving:
    """The total while it changes, saved now and then, and at the end."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        # Where all had to be checked, a crash may have left files that nothing names: they go when the total is saved.
        self._saved, self._untidy = caught_up(store)
        self._unsaved = int(self._untidy)

    @property
    def total(self) -> Sum:
        """The total now."""
        return self._saved.total

    def change(self, total: Sum, entry: Entry, *, left: bool) -> None:
        """Take a new total, up to this entry of the ledger; `left` says that something has left it."""
        self._saved = Saved(entry.number, entry.hash, total)
        self._unsaved += 1
        self._untidy |= left

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all changes inside or none, with one wait for the disk besides those for the files themselves."""
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
        """Write the total if it has changed; only then may files go that are not in it any more."""
        if self._unsaved:
            save_total(self._store.path / TOTAL, self._saved, self._store.key if self._store.has_key else None)
            self._unsaved = 0
            # Whoever joins or leaves ends the rounds, and answers that came to them are not kept.
            self._store.answers.sweep(self._store.index.answers().values())
            if self._untidy:
                # What the ledger has as joined stays, even where somebody has deleted its row: it can be restored.
                joined = members(self._store.log(), up_to=self._saved.number)
                self._store.published.tidy(publications(self._store.log()))
                self._store.objects.sweep(joined | {each.digest for each in self._store.contributions()})
                # A total from before a removal would still show who has left, as its difference to the new one.
                sweep_unfinished(self._store.path / TOTAL)
                self._untidy = False

    def close(self) -> None:
        """Save, and note how far all has been checked."""
        self.save()
        self._store.index.checkpoint()
        found = Checkpoint.of(self._store, self._saved)
        if found is not None and not found.fits(self._store):
            found.save(self._store)


def caught_up(store: "Store") -> tuple[Saved, bool]:
    """Return the total up to the ledger's last entry, and whether the whole ledger had to be checked for it.

    What was saved may be older, after a crash: then what has joined or left since is added and taken away. A ledger
    that is not whole is refused, since it cannot say what a saved total holds.
    """
    saved = load_total(store.path / TOTAL, store.public_key)
    if saved is not None and saved.total.kind == store.terms.kind:
        checkpoint = Checkpoint.of(store, saved)
        if checkpoint is not None and checkpoint.fits(store):
            return saved, False
    return _checked(store, saved), True


def problems(store: "Store") -> list[str]:
    """Say what is wrong with a store: its ledger, what the index or a signed file says otherwise, and its total."""
    files = FilesSay.of(store)
    with store.index.reading():
        entries = store.log()
        found = _contradictions(store, entries, files)
        if ledger.problems(entries) or ledger.misshapen(entries):
            return found
        found += run_differences(store.index, entries)
    if is_forged(store.path / TOTAL, store.public_key):
        found.append(f"{TOTAL} is not as the store signed it: it is not used, the next change adds all files up anew")
    return found


def check_whole(store: "Store") -> None:
    """Refuse a store whose ledger is damaged, or cut off, or says something else than the index.

    It cannot be made good here: what has left, and when, is in the index alone, and entries are in the ledger alone.
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
    """What a store's own files say of its ledger: the heads that they carry, and what was published.

    They are read before the ledger, and each was written after what it says was in the ledger: so a change that another
    process makes meanwhile is never taken for a contradiction.
    """

    heads: Sequence[tuple[str, int, str, Path | None]]
    published: Sequence[str]

    @classmethod
    def of(cls, store: "Store") -> "FilesSay":
        """Read them."""
        heads: list[tuple[str, int, str, Path | None]] = []
        with suppress(FedgramError):  # a first entry without the store's key, which is told with the ledger
            heads += _heads_at_hand(store)
        return cls(heads, store.published.digests())


def unmoved(store: "Store", read: Callable[[], T]) -> T:
    """Return what `read` makes of a store and its files, read anew where a change by another process was in the way.

    Files are read one by one, and one that leaves the store is deleted: the store is not damaged by that.
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
    if (began := entries[0].detail("study")) != store.terms.fingerprint:
        found.append(f"the index has study {store.terms.fingerprint or 'none'}, and the ledger began with {began}")
    return found


def _cut_off(store: "Store", entries: Sequence[Entry], files: FilesSay) -> Iterator[str]:
    """Say which heads that this store has signed are not in its ledger: entries were taken away, or written anew."""
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
    """Return the digests of all that was published, and of all rounds that were asked."""
    return {str(entry.says.get("digest")) for entry in entries if entry.says.get("what") in (PUBLISH, ROUND)}


def _is_signed(path: Path, key: PublicKey) -> bool:
    try:
        read(path, checked=True).verify(key)
    except FedgramError:
        return False
    return True


def _heads_at_hand(store: "Store") -> Iterator[tuple[str, int, str, Path | None]]:
    """Yield what the running total, receipts and publications say of the ledger: name, entry's number and head.

    With the path, where the signature has not been looked at: what another key has signed says nothing of this ledger.
    """
    saved = said_by_total(store.path / TOTAL, store.public_key)
    if saved is not None:
        yield TOTAL, saved.number, saved.head, None
    for folder in (store.path / RECEIPTS, store.published.folder):
        for path in sorted(folder.glob(f"*{ENDING}")):
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
        entries, kind = store.log(), store.terms.kind
        current = {each.digest for each in store.contributions()}
    heads = {entry.number: entry.hash for entry in entries}
    then, total = set[str](), Sum.empty(kind)
    if saved is not None and heads.get(saved.number) == saved.head and saved.total.kind == kind:
        counted = members(entries, up_to=saved.number)
        # An older total that was put back may hold contributions whose files are gone: then all are added up anew.
        with suppress(StoreError):
            then, total = counted & current, _without(store, saved.total, counted - current)
    for digest in sorted(current - then):
        total = total.plus(part_of(store.objects.read(digest)))
    return Saved(entries[-1].number, entries[-1].hash, total)


def _without(store: "Store", total: Sum, digests: set[str]) -> Sum:
    for digest in sorted(digests):
        total = total - sum_of(store.objects.read(digest))
    return total
