"""The running total of a store, so that nothing has to be added up anew."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedgram.core.errors import StoreError
from fedgram.exchange.combined import part_of, sum_of
from fedgram.exchange.ledger import Entry, members, problems
from fedgram.exchange.objects import Saved, load_total, save_total
from fedgram.exchange.sums import Sum

if TYPE_CHECKING:
    from fedgram.exchange.store import Store

TOTAL = "total.bin"
# Files that join before the total is saved: after a crash no more than these are read again.
SAVED_EVERY = 64


class Saving:
    """The total while it changes, saved now and then, and at the end."""

    def __init__(self, store: "Store", saved: Saved) -> None:
        self._store, self._saved, self._unsaved = store, saved, 0

    @property
    def total(self) -> Sum:
        """The total now."""
        return self._saved.total

    def change(self, total: Sum, entry: Entry) -> None:
        """Take a new total, up to this entry of the ledger."""
        self._saved = Saved(entry.number, entry.hash, total)
        self._unsaved += 1

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
            save_total(self._store.path / TOTAL, self._saved)
            self._unsaved = 0
            self._store.objects.sweep({each.digest for each in self._store.contributions()})


def caught_up(store: "Store") -> Saved:
    """Return the total up to the ledger's last entry.

    What was saved may be older, after a crash: then what has joined or left since is added and taken away. A ledger
    that is not whole is refused, since it cannot say what a saved total holds.
    """
    entries, kind = store.log(), store.terms.kind
    if wrong := problems(entries):
        raise StoreError(
            f"the ledger of {store.path} is damaged, so nothing is counted or changed: {wrong[0]}; restore the store "
            "from a copy, fedgram log names all that is wrong"
        )
    current = {each.digest for each in store.contributions()}
    saved = load_total(store.path / TOTAL)
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
