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

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidData, StoreError, UnknownName
from fedgram.core.lock import only_writer
from fedgram.exchange import admission, files, ledger
from fedgram.exchange.admission import Terms
from fedgram.exchange.combined import sum_of
from fedgram.exchange.files import File
from fedgram.exchange.header import now
from fedgram.exchange.index import Contribution, Index
from fedgram.exchange.keys import PrivateKey
from fedgram.exchange.ledger import Entry, members
from fedgram.exchange.objects import Objects, Saved, load_total, save_total
from fedgram.exchange.sums import Sum, about, kind_of
from fedgram.core.lock import only_writer
from fedgram.moments.kind import Kind
from fedgram.studies.study import Study

Source: TypeAlias = bytes | str | os.PathLike[str]
Outcome: TypeAlias = Literal["joined", "replaced", "already in", "answered", "refused"]
KEY, INDEX, TOTAL = "coordinator.key", "index.sqlite", "total.bin"
STUDY, KIND = "study", "kind"
# Files that join before the total is saved: after a crash no more than these are read again.
SAVED_EVERY = 64


@dataclass(frozen=True)
class Joined:
    """What became of a file that was to join: its name, party and digest if it could be read, and why it was refused."""

    name: str
    outcome: Outcome
    party: str = ""
    digest: str = ""
    samples: int = 0
    why: str = ""
    receipt: Path | None = None


class Store:
    """A folder that holds the contributions to one study, their sum in fixed point, and the ledger.

    `study` is needed once, when the folder is new. With `wait`, a change waits while another process makes one, after
    `wait` has been called with who it is; without, it is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        study: Study | str | os.PathLike[str] | None = None,
        wait: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._wait = wait
        self._given = study if study is None or isinstance(study, Study) else Study.read(study)
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
        kept = self.index.get(STUDY)
        if kept is not None:
            return Terms.of(wire.decode(kept))
        kind = self.index.get(KIND)
        assert kind is not None
        return Terms(None, kind_of(json.loads(kind)))

    @cached_property
    def key(self) -> PrivateKey:
        """The coordinator's own key, which signs receipts, certificates and what is published."""
        return PrivateKey.load(self.path / KEY)

    def contributions(self) -> list[Contribution]:
        """Return who is in, in the order in which they joined."""
        return self.index.contributions()

    def contribution(self, party: str) -> Contribution:
        """Return a party's contribution."""
        found = self.index.contribution(party=party)
        if found is None:
            raise UnknownName("contributor", party, [each.party for each in self.contributions()])
        return found

    def log(self) -> list[Entry]:
        """Return the ledger."""
        return self.index.entries()

    # Changes
    def join(
        self, *sources: Source, replace: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> list[Joined]:
        """Add files to the total, each once; one that is refused does not keep the others out.

        Another file of a party that is in is refused, unless `replace`.
        """
        found = []
        with self._writing(sources) as saving:
            for source in sources:
                name = "bytes" if isinstance(source, bytes) else os.fspath(source)
                try:
                    found.append(self._join(source, name, replace=replace, saving=saving))
                except StoreError:  # not the file's fault
                    raise
                except FedgramError as error:
                    found.append(Joined(name, "refused", why=str(error)))
                progress(1)
        return found

    def remove(self, party: str) -> Entry:
        """Take a party's contribution out of the total, and delete its file; return the ledger's entry of it.

        The total is then what it would be if the party had never joined, to the bit.
        """
        with self._writing() as saving:
            gone = self.contribution(party)
            before = saving.total
            after = before - sum_of(self.objects.read(gone.digest))
            with self.index.changing():
                self.index.drop(gone)
                self.index.end_rounds()
                entry = self.append(
                    ledger.REMOVE,
                    party=party,
                    digest=gone.digest,
                    samples=gone.samples,
                    before=before.digest,
                    after=after.digest,
                )
            saving.change(after, entry)
        return entry

    def append(self, what: str, **details: Any) -> Entry:
        """Write an entry of the ledger; inside a transaction."""
        entry = Entry.after(self.index.last(), what, time=now(), software=files.software(), **details)
        self.index.append(entry)
        return entry

    def total(self) -> Sum:
        """Return the sum of all contributions, in fixed point."""
        return self._caught_up().total

    # Inside
    @contextmanager
    def changing(self) -> Iterator["Saving"]:
        """Keep other processes from changing the store; what a change leaves of the total is saved at the end."""
        with self._writing() as saving:
            yield saving

    @contextmanager
    def _writing(self, first: Iterable[Source] = ()) -> Iterator["Saving"]:
        remedy = "wait until it is done, and try again"
        with only_writer(self.path, wait=self._wait, who="coordinator", remedy=remedy):
            self._open()  # another process may have made it meanwhile
            if self._index is None:
                self._create(first)
            saving = Saving(self, self._caught_up())
            try:
                yield saving
            finally:
                saving.save()

    def _open(self) -> None:
        if self._index is not None or not (self.path / INDEX).exists():
            return
        index = Index(self.path / INDEX)
        if not index.ready:  # killed while it was made: nothing has been accepted yet
            index.close()
            return
        index.check_schema()
        self._index = index
        if self._given is not None and self._given.fingerprint != self.terms.fingerprint:
            raise StoreError(
                f"{self.path} is a store of study {self.terms.fingerprint or 'none'}, not of {self._given.name!r} "
                f"{self._given.fingerprint}: use another folder for another study"
            )

    def _create(self, first: Iterable[Source]) -> None:
        """Make a new store; the study, or without one the kind of the first file, is settled for good."""
        study, kind = (self._given, None) if self._given is not None else _first(first)
        settings = {STUDY: wire.encode(study)} if kind is None else {KIND: json.dumps(about(kind)).encode()}
        if not (self.path / KEY).exists():
            PrivateKey.new().save(self.path / KEY)
        said = {"study": "" if study is None else study.fingerprint, "key": self.key.public.text}
        entry = Entry.after(None, ledger.OPEN, time=now(), software=files.software(), **said)
        self._index = Index.created(self.path / INDEX, settings, entry)

    def _join(self, source: Source, name: str, *, replace: bool, saving: "Saving") -> Joined:
        file = files.read(source, name=name)
        header, index = file.header, self.index
        found = Joined(name, "joined", header.party, file.digest, header.samples)
        admission.check_study(file, self.terms)
        signer = admission.check_name(file, self.terms, index)
        if header.kind == "answer":
            return self._answer(file, found)
        file.of_kind("summary", "combined")
        if index.contribution(digest=file.digest) is not None:
            return _with(found, outcome="already in")
        former = index.contribution(party=header.party)
        if former is not None and not replace:
            raise InvalidData(
                f"{name} refused: {header.party!r} has joined with another file, {former.digest[:16]}: give --replace "
                "if this one is to take its place"
            )
        part = sum_of(file)
        admission.check_moments(file, part, self.terms)
        leaves = admission.check_overlaps(file, index, replaced=former)
        total = saving.total if former is None else saving.total - sum_of(self.objects.read(former.digest))
        total = total + part
        self.objects.add(file.digest, file.data)
        joined = Contribution(
            file.digest, header.party, header.kind, part.n, tuple(part.counts.tolist()), file.size, signer,
            header.created, now(),
        )  # fmt: skip
        with index.changing():
            details: dict[str, Any] = {"party": header.party, "digest": file.digest, "samples": part.n, "signer": signer}
            if former is not None:
                index.drop(former)
                details["replaced"] = former.digest
            index.add(joined, leaves)
            index.bind(header.party, signer)
            index.end_rounds()
            entry = self.append(ledger.JOIN if former is None else ledger.REPLACE, **details)
        saving.change(total, entry)
        return found if former is None else _with(found, outcome="replaced")

    def _answer(self, file: File, about: Joined) -> Joined:
        from fedgram.exchange.asking import take_answer  # which needs this module

        return _with(about, outcome="answered" if take_answer(self, file) else "already in")

    def _caught_up(self) -> Saved:
        """Return the total up to the ledger's last entry.

        What was saved may be older, after a crash: then what has joined or left since is added and taken away.
        """
        entries = self.log()
        saved = load_total(self.path / TOTAL)
        heads = {entry.number: entry.hash for entry in entries}
        if saved is None or heads.get(saved.number) != saved.head or saved.total.kind != self.terms.kind:
            saved = Saved(0, "", Sum.empty(self.terms.kind))
        then, total = members(entries, up_to=saved.number), saved.total
        current = {each.digest for each in self.contributions()}
        for digest in sorted(then - current):
            total = total - sum_of(self.objects.read(digest))
        for digest in sorted(current - then):
            total = total + sum_of(self.objects.read(digest))
        return Saved(entries[-1].number, entries[-1].hash, total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._index is not None:
            self._index.close()


class Saving:
    """The total while it changes, saved now and then, and at the end."""

    def __init__(self, store: Store, saved: Saved) -> None:
        self._store, self._saved, self._unsaved = store, saved, 0

    @property
    def total(self) -> Sum:
        """The total now."""
        return self._saved.total

    def change(self, total: Sum, entry: Entry) -> None:
        """Take a new total, up to this entry of the ledger."""
        self._saved = Saved(entry.number, entry.hash, total)
        self._unsaved += 1
        if self._unsaved >= SAVED_EVERY:
            self.save()

    def save(self) -> None:
        """Write the total if it has changed; only then may files go that are not in it any more."""
        if self._unsaved:
            save_total(self._store.path / TOTAL, self._saved)
            self._unsaved = 0
            self._store.objects.sweep({each.digest for each in self._store.contributions()})


def _with(joined: Joined, **changes: Any) -> Joined:
    return replace(joined, **changes)


def _first(sources: Iterable[Source]) -> tuple[Study | None, Kind | None]:
    """Return the study of the first summary, or where it names none, the kind of its moments."""
    for source in sources:
        try:
            file = files.read(source).of_kind("summary", "combined")
        except FedgramError:
            continue
        if file.study is not None:
            return file.study, None
        if not file.header.study:
            return None, sum_of(file).kind
    raise InvalidData("a new store must know its study: begin with a summary that has it in it, or give --study")
