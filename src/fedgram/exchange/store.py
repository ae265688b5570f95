"""The coordinator's store: who has joined, their sum, and a ledger of everything that was done.

>>> import tempfile
>>> from fedgram import Moments
>>> from fedgram.exchange import files
>>> moments = Moments.of([[1.0], [2.0]], ["ill", "well"], classes=["ill", "well"])
>>> store = Store(tempfile.mkdtemp())
>>> [joined] = store.join(files.encode("summary", moments, study="", party="north", samples=2))
>>> joined.outcome, store.total().n
('joined', 2)
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from fedgram.core.errors import InvalidData, StoreError, UnknownName
from fedgram.core.files import private_folder, writing
from fedgram.core.lock import only_writer
from fedgram.exchange import certificates, files, ledger
from fedgram.exchange.admission import Terms
from fedgram.exchange.combined import Combined, sum_of
from fedgram.exchange.coordinator import check_store_key
from fedgram.exchange.creation import SECRET, NothingAccepted, prepare, settings_of, settled_by, terms_in
from fedgram.exchange.files import Source, name_of
from fedgram.exchange.header import now, party_name
from fedgram.exchange.index import Index
from fedgram.exchange.keys import PrivateKey
from fedgram.exchange.ledger import Entry, members
from fedgram.exchange.objects import Objects
from fedgram.exchange.records import Contribution
from fedgram.exchange.running import Saving, caught_up, check_whole, unmoved
from fedgram.exchange.sums import Sum
from fedgram.studies.identity import check_same
from fedgram.studies.study import Study

if TYPE_CHECKING:
    from fedgram.exchange.publishing import Publication

Outcome: TypeAlias = Literal["joined", "replaced", "already in", "answered", "refused"]
KEY, INDEX = "coordinator.key", "index.sqlite"


@dataclass(frozen=True)
class Joined:
    """What became of a file: joined or not, whose it is if it could be read, its receipt, and why it was refused."""

    name: str
    outcome: Outcome
    party: str = ""
    digest: str = ""
    samples: int = 0
    why: str = ""
    receipt: Path | None = None


class Store:
    """A folder that holds the contributions to one study, their sum in fixed point, and the ledger.

    `study` is needed once, when the folder is new, and so is `key`, the coordinator's private key, where the study
    names who that is; by default a new store makes a key of its own. With `wait`, a change waits while another process
    makes one, after `wait` has been called with who it is; without, it is refused. `clock` says what time it is, as
    files have it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        study: Study | str | os.PathLike[str] | None = None,
        wait: Callable[[str], None] | None = None,
        key: PrivateKey | str | os.PathLike[str] | None = None,
        clock: Callable[[], str] = now,
    ) -> None:
        self.path = Path(path)
        self._wait, self._clock = wait, clock
        self._given = study if study is None or isinstance(study, Study) else Study.read(study)
        self._given_key = key if key is None or isinstance(key, PrivateKey) else PrivateKey.load(key)
        self.objects = Objects(self.path / "contributions")
        self.answers = Objects(self.path / "answers")
        self.published = Objects(self.path / "published")
        self._index: Index | None = None
        self._open()

    # What is there
    @property
    def index(self) -> Index:
        """The index; refused for a folder that is no store."""
        if self._index is None:
            raise StoreError(f"{self.path} is not a store: fedgram join makes one of the first files that come")
        return self._index

    @property
    def is_new(self) -> bool:
        """Whether nothing has joined yet and there is no study either."""
        return self._index is None

    @cached_property
    def terms(self) -> Terms:
        """What all contributions have in common."""
        return terms_in(self.index)

    @cached_property
    def secret(self) -> bytes:
        """What marks of contributions are hashed with, so that those of two stores cannot be compared."""
        found = self.index.get(SECRET)
        if not found:
            raise StoreError(f"the index of {self.path} has lost its setting {SECRET!r}: restore the store from a copy")
        return found

    @property
    def has_key(self) -> bool:
        """Whether the key is there; a store that has lost it still lets parties leave."""
        return (self.path / KEY).exists()

    @cached_property
    def key(self) -> PrivateKey:
        """The coordinator's own key, which signs receipts, certificates and what is published."""
        found = PrivateKey.load(self.path / KEY)
        if self._index is not None and found.public.text != self.public_key:
            raise StoreError(
                f"{self.path} has the key {found.public}, and its ledger began with {self.public_key}: put the right "
                f"{KEY} back from a copy"
            )
        return found

    @property
    def public_key(self) -> str:
        """The coordinator's public key, as the ledger's first entry has it; reading a store needs no private key."""
        first = self.index.first() or self.log()[0]  # which refuses an empty ledger
        return str(first.says.get("key", ""))

    def contributions(self) -> list[Contribution]:
        """Return who is in, in the order in which they joined."""
        return self.index.contributions()

    def contribution(self, party: str) -> Contribution:
        """Return a party's contribution."""
        found = self.index.contribution(party=party)
        if found is None:
            for each in self.contributions():
                if any(leaf.party == party for leaf in self.index.leaves(each.digest)):
                    raise InvalidData(
                        f"{party!r} is in as part of {each.party!r}: remove it there, combine again, and join the new "
                        "file with --replace"
                    )
            if (time := self.removed().get(party)) is not None:
                raise InvalidData(f"{party!r} was removed already, at {time}: Store.certificate gives its certificate")
            raise UnknownName("contributor", party, [each.party for each in self.contributions()])
        return found

    def log(self) -> list[Entry]:
        """Return the ledger, which has at least the entry that the store began with."""
        entries = self.index.entries()
        if not entries:
            raise StoreError(f"the ledger of {self.path} is empty: restore the store from a copy")
        return entries

    # Changes
    def join(
        self, *sources: Source, replace: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> list[Joined]:
        """Add files to the total, each once; one that is refused does not keep the others out.

        Another file of a party that is in is refused, unless `replace`.
        """
        from fedgram.exchange.joining import join  # which needs this module

        try:
            with self._writing(sources) as saving:
                return join(self, saving, sources, replace=replace, progress=progress)
        except NothingAccepted as error:
            return [Joined(name_of(source), "refused", why=why) for source, why in zip(sources, error.why, strict=True)]

    def remove(self, party: str) -> Entry:
        """Take a party's contribution out of the total, and delete its file; return the ledger's entry of it.

        The total is then what it would be if the party had never joined, to the bit.
        """
        with self._writing() as saving:
            gone = self.contribution(party)
            before = saving.total
            after = before - sum_of(self.objects.read(gone.digest))
            with self.index.changing():
                entry = self.append(
                    ledger.REMOVE,
                    party=party,
                    digest=gone.digest,
                    samples=gone.samples,
                    before=before.digest,
                    after=after.digest,
                )
                self.index.drop(gone, self.latest())
                self.index.end_rounds()
            saving.change(after, entry, left=True)
        return entry

    def certificate(self, party: str) -> bytes:
        """Return the signed certificate of a party's last removal, as a file's bytes."""
        check_whole(self)
        removed = [entry for entry in self.log() if entry.says.get("what") == ledger.REMOVE]
        for entry in reversed(removed):
            if entry.detail("party") == party:
                remaining = members(self.log(), up_to=entry.number)
                return certificates.certificate(entry, remaining, study=self.terms.fingerprint, key=self.key)
        raise UnknownName("party that was removed", party, {entry.detail("party") for entry in removed})

    def publish(self, method: str | None = None, **settings: Any) -> "Publication":
        """Return the global model of all contributions as a signed file, by default of the study's method."""
        from fedgram.exchange.publishing import publish  # which needs this module

        return publish(self, method, settings)

    def combine(self, name: str) -> bytes:
        """Return all contributions as one summary of summaries, under a name of their own, as a file's bytes."""
        party_name(name)
        study = self.terms.fingerprint if self.terms.study is None else self.terms.study
        with self.changing() as saving:  # so that the sum is that of the summaries that are listed
            held = Combined(saving.total, self.index.leaves())
        if not (n := held.total.n):
            raise InvalidData(f"{self.path} has no contributions, so there is nothing to combine: join some first")
        about: dict[str, Any] = {"samples": n, "columns": self.terms.kind.columns, "created": self._clock()}
        return files.encode("combined", held, study=study, party=name, key=self.key, **about)

    def append(self, what: str, **details: Any) -> Entry:
        """Write an entry of the ledger; inside a transaction."""
        entry = Entry.after(self.index.last(), what, time=self._clock(), software=files.software(), **details)
        self.index.append(entry)
        return entry

    def latest(self) -> str:
        """Return the time, or a later one that the ledger has: a clock that went back makes nothing fresh again."""
        return max(self._clock(), self.index.latest())

    def total(self) -> Sum:
        """Return the sum of all contributions, in fixed point."""
        saved, _ = unmoved(self, lambda: caught_up(self))
        return saved.total

    def removed(self) -> dict[str, str]:
        """Return who was removed and is not in now, neither with a file nor as part of a region, with the time."""
        with self.index.reading():
            present = {leaf.party for leaf in self.index.leaves()} | {each.party for each in self.contributions()}
            return {party: time for party, time in ledger.removed(self.log()).items() if party not in present}

    # Inside
    @contextmanager
    def changing(self) -> Iterator["Saving"]:
        """Keep other processes from changing the store; what a change leaves of the total is saved at the end."""
        with self._writing() as saving:
            yield saving

    @contextmanager
    def _writing(self, first: Iterable[Source] = ()) -> Iterator["Saving"]:
        remedy = "wait until it is done, and try again"
        with writing(self.path):
            private_folder(self.path)
        with only_writer(self.path, wait=self._wait, who="coordinator", remedy=remedy):
            self._open()  # another process may have made it meanwhile
            if self._index is None:
                self._create(first)
            saving = Saving(self)
            if self.has_key or self._given_key is not None or (self.terms.study and self.terms.study.coordinator):
                check_store_key(self.path, self.terms.study, self.key.public, self._given_key)
            try:
                yield saving
            finally:
                saving.close()

    def _open(self) -> None:
        if self._index is not None or not (self.path / INDEX).exists():
            return
        index = Index(self.path / INDEX)
        if not index.ready:  # killed while it was made: nothing has been accepted yet
            index.close()
            return
        index.check_schema()
        self._index = index
        if self._given is not None:
            terms, remedy = self.terms, "use another folder for another study"
            check_same(
                f"the store {self.path}", self._given, terms.fingerprint, terms.study, remedy=remedy, error=StoreError
            )

    def _create(self, first: Iterable[Source]) -> None:
        """Make a new store; the study, or without one the kind of the moments, is settled for good."""
        terms = Terms.of(self._given) if self._given is not None else settled_by(first, self._clock())
        check_store_key(self.path, terms.study, None, self._given_key)
        prepare(self.objects.folder, self.path / INDEX, self.path / KEY, self._given_key)
        said = {"study": terms.fingerprint, "key": self.key.public.text}
        entry = Entry.after(None, ledger.OPEN, time=self._clock(), software=files.software(), **said)
        self._index = Index.created(self.path / INDEX, settings_of(terms), entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._index is not None:
            self._index.close()
