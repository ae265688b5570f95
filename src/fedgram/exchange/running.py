"""The running total of a store, so that nothing has to be added up anew, and how far its ledger has been checked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fedgram.core.errors import StoreError
from fedgram.core.files import PRIVATE, read_regular, replace_file, sweep_unfinished
from fedgram.core.hashing import hash_text
from fedgram.exchange.combined import part_of, sum_of
from fedgram.exchange.ledger import Entry, members, problems
from fedgram.exchange.objects import Saved, load_total, save_total
from fedgram.exchange.sums import Sum

if TYPE_CHECKING:
    from fedgram.exchange.store import Store

TOTAL, CHECKED = "total.bin", "checked.json"
# Files that join before the total is saved: after a crash no more than these are read again.
SAVED_EVERY = 64


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


def _checked(store: "Store", saved: Saved | None) -> Saved:
    entries, kind = store.log(), store.terms.kind
    if wrong := problems(entries):
        raise StoreError(
            f"the ledger of {store.path} is damaged, so nothing is counted or changed: {wrong[0]}; restore the store "
            "from a copy, fedgram log names all that is wrong"
        )
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
