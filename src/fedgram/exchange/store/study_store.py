"""The coordinator's store: contributions, their sum, and a ledger of all changes.

>>> import tempfile
>>> from fedgram import Moments
>>> from fedgram.exchange.format import fgm
>>> moments = Moments.of([[1.0], [2.0]], ["ill", "well"], classes=["ill", "well"])
>>> store = Store(tempfile.mkdtemp())
>>> [joined] = store.join(fgm.encode("summary", moments, study="", party="north", samples=2))
>>> joined.outcome, store.total().n
('joined', 2)
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property
from pathlib import Path
from secrets import token_bytes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from fedgram.core import wire
from fedgram.core.container import MOST_HEADER
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Mismatch, StoreError, UnknownName
from fedgram.core.filesystem import (
    PRIVATE,
    file_name,
    only_writer,
    private_folder,
    replace_file,
    sweep_unfinished,
    writing,
)
from fedgram.core.hashing import readable
from fedgram.exchange.format import fgm
from fedgram.exchange.format.amendments import differences
from fedgram.exchange.format.coordinator import check_store_key
from fedgram.exchange.format.exact_sums import Sum, about, schema_of, size
from fedgram.exchange.format.fgm import MOST_FEATURES, File, Source, name_of
from fedgram.exchange.format.header import now, party_name
from fedgram.exchange.format.signing_keys import PrivateKey, PublicKey
from fedgram.exchange.store import admission, ledger, seen_head
from fedgram.exchange.store.admission import Terms, check_alone, marks_of
from fedgram.exchange.store.combined import LEAF_BYTES, MOST_LEAVES, Combined, part_of, sum_of
from fedgram.exchange.store.delivery import delivering, is_under_way, recover, target_of
from fedgram.exchange.store.index import Contribution, Index
from fedgram.exchange.store.ledger import Entry, members
from fedgram.exchange.store.objects import Objects, sync
from fedgram.exchange.store.saved_total import RECEIPTS, Saving, caught_up, check_whole, unmoved
from fedgram.moments import packing
from fedgram.moments.moments import Moments
from fedgram.studies.study import Study, check_same

if TYPE_CHECKING:
    from fedgram.exchange.store.publishing import Publication
    from fedgram.inference.table import Coefficients
    from fedgram.studies.table_one import TableOne

Outcome: TypeAlias = Literal["joined", "replaced", "already in", "answered", "refused"]
KEY, INDEX = "coordinator.key", "index.sqlite"
STUDY, KIND, SECRET = "study", "kind", "secret"  # settings of the index
RECEIPTED = "receipted"  # setting: number of the entry up to which all receipts have been written
# Files in a transaction: each file is synced by itself, index and ledger only once.
GROUP = 16


@dataclass(frozen=True)
class Joined:
    """Outcome of joining a file.

    Attributes
    ----------
    name
        Name of the file.
    outcome
        "joined", "replaced", "already in", "answered" or "refused".
    party, digest, samples
        Those of the file's header, if it could be read.
    why
        Reason of a refusal.
    receipt
        Path of the signed receipt, if the file joined.

    """

    name: str
    outcome: Outcome
    party: str = ""
    digest: str = ""
    samples: int = 0
    why: str = ""
    receipt: Path | None = None


class Store:
    """A folder that holds the contributions to one study, their sum in fixed point, and the ledger.

    Parameters
    ----------
    path
        The folder; a new store begins there with the first change.
    study
        The study or its file, needed once, when the folder is new. Without it the first file that joins decides.
    wait
        Function that is called with the name of another process that is changing the store, before waiting for it.
        Without it a change raises then.
    key
        The coordinator's private key or its file, needed once if the study names a coordinator. By default a new store
        makes a key of its own.
    clock
        Function that returns the present time, as files write it.

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
        self._terms: tuple[int, Terms] | None = None
        self._is_writing = False
        self._open()

    # Reading
    @property
    def index(self) -> Index:
        """The index; raises if the folder is not a store."""
        if self._index is None:
            raise StoreError(f"{self.path} is not a store: fedgram join makes a store from the first files that come")
        return self._index

    @property
    def is_new(self) -> bool:
        """Whether the store has not begun: it has neither a study nor files."""
        return self._index is None

    @cached_property
    def genesis(self) -> Terms:
        """The study that the store began with, and the schema of all contributions."""
        return terms_in(self.index)

    @property
    def terms(self) -> Terms:
        """The study with its amendments, and the schema of all contributions; raises for forged amendments."""
        # Another process may amend the study at any time, except while this one changes the store.
        if self._terms is None or not (self._is_writing or self._terms[0] == self.index.version()):
            version = self.index.version()
            amendments, found = ledger.amendments(self.index.amendments()), self.genesis
            try:
                found = found.amended(amendments, PublicKey(self.public_key)) if amendments else found
            except FedgramError as error:
                raise StoreError(f"the ledger of {self.path}: {error}; restore the store from a copy") from error
            self._terms = version, found
        return self._terms[1]

    @cached_property
    def secret(self) -> bytes:
        """Secret that is hashed into marks of contributions, so that marks of two stores cannot be compared."""
        found = self.index.get(SECRET)
        if not found:
            raise StoreError(f"the index of {self.path} has lost its setting {SECRET!r}: restore the store from a copy")
        return found

    @property
    def has_key(self) -> bool:
        """Whether the private key exists; a store that has lost it still lets parties leave."""
        return (self.path / KEY).exists()

    @cached_property
    def key(self) -> PrivateKey:
        """The coordinator's private key, which signs receipts, certificates and publications."""
        if not self.has_key:
            raise StoreError(f"{self.path} has lost its private key: put {KEY} back from a copy")
        found = PrivateKey.load(self.path / KEY)
        if self._index is not None and found.public.text != self.public_key:
            raise StoreError(
                f"{self.path} has the key {found.public}, and its ledger began with {self.public_key}: put the right "
                f"{KEY} back from a copy"
            )
        return found

    @property
    def public_key(self) -> str:
        """The coordinator's public key, from the ledger's first entry: reading needs no private key."""
        first = self.index.first() or self.log()[0]  # `log` raises for an empty ledger
        return str(first.says.get("key", ""))

    def contributions(self) -> list[Contribution]:
        """Return all contributions, in the order in which they joined."""
        return self.index.contributions()

    def contribution(self, party: str) -> Contribution:
        """Return a party's contribution; raise if it has not joined by itself."""
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
        """Return the entries of the ledger, at least the first; raise if it is empty."""
        entries = self.index.entries()
        if not entries:
            raise StoreError(f"the ledger of {self.path} is empty: restore the store from a copy")
        return entries

    # Changes
    def join(
        self, *sources: Source, replace: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> list[Joined]:
        """Add files to the total and return the outcome of each; a refused file does not stop the others.

        A file that is in already changes nothing.

        Parameters
        ----------
        sources
            Paths or bytes of files: summaries, combined files and answers to the open round.
        replace
            Whether another file of a party may take the place of its present file; otherwise it is refused.
        progress
            Function that is called with 1 after each file.

        """
        try:
            with self._writing(sources) as saving:
                return _join_all(self, saving, sources, replace=replace, progress=progress)
        except NothingAccepted as error:
            return [Joined(name_of(source), "refused", why=why) for source, why in zip(sources, error.why, strict=True)]

    def remove(self, party: str, *, out: str | os.PathLike[str] | None = None, force: bool = False) -> Entry:
        """Subtract a party's contribution from the total, delete its file, and return the ledger's entry of it.

        The total is then, bit for bit, what it would be if the party had never joined.

        Parameters
        ----------
        party
            Name of the party.
        out
            The file to write the certificate to, or a folder for `PARTY-removed.fgm`; None writes none. If it cannot be
            written, nothing is removed.
        force
            Whether an earlier file there may be written over.

        """
        path = target_of(out, f"{file_name(party)}-removed.fgm")
        with self._writing() as saving:
            gone = self.contribution(party)
            with delivering(self, path, force=force) as stage, saving.together():
                entry = self.take_out(saving, gone)
                if path is not None:
                    stage(self._certificate(entry))
        return entry

    def take_out(self, saving: "Saving", gone: Contribution) -> Entry:
        """Subtract a contribution from the total, inside a change, and return the ledger's entry of it."""
        before = saving.total
        after = before - sum_of(self.objects.read(gone.digest))
        about = {"party": gone.party, "digest": gone.digest, "samples": gone.samples}
        with self.index.changing():
            entry = self.append(ledger.REMOVE, **about, before=before.digest, after=after.digest)
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
                return self._certificate(entry)
        raise UnknownName("party that was removed", party, {entry.detail("party") for entry in removed})

    def _certificate(self, entry: Entry) -> bytes:
        remaining = members(self.log(), up_to=entry.number)
        return ledger.certificate(entry, remaining, study=self.terms.fingerprint, key=self.key)

    def publish(
        self,
        method: str | None = None,
        *,
        out: str | os.PathLike[str] | None = None,
        force: bool = False,
        **settings: Any,
    ) -> "Publication":
        """Return the global model of all contributions as a signed file.

        Parameters
        ----------
        method
            Name of a method of one message; by default the study's.
        out
            The file to write, or a folder for `global.fgm`; None leaves the publication in the store only. If it cannot
            be written, nothing is published.
        force
            Whether an earlier file there that holds something else may be written over.
        settings
            Hyper-parameters of the method.

        """
        from fedgram.exchange.store.publishing import publish  # which needs this module

        return publish(self, method, settings, out=out, force=force)

    def coefficients(self, **options: Any) -> "Coefficients":
        """Return the regression table of all contributions to a study with a numeric outcome.

        Parameters
        ----------
        options
            Those of `fedgram.studies.design.Request`, such as `columns`, `site_effects` and `level`.

        """
        from fedgram.exchange.store.store_table import table_of  # which needs this module
        from fedgram.studies.design import Request

        return table_of(self, Request(**options))

    def combine(self, name: str) -> bytes:
        """Return all contributions as one combined file of a region with this name, as bytes."""
        party_name(name)
        study = self.terms.fingerprint if self.terms.study is None else self.terms.study
        with self.changing() as saving:  # so that sum and list of summaries belong together
            held = Combined(saving.total, self.index.leaves())
        if not (n := held.total.n):
            raise InvalidData(f"{self.path} has no contributions, so there is nothing to combine: join some first")
        about: dict[str, Any] = {"samples": n, "columns": self.terms.schema.columns, "created": self._clock()}
        return fgm.encode("combined", held, study=study, party=name, key=self.key, **about)

    def append(self, what: str, **details: Any) -> Entry:
        """Write and return an entry of the ledger, inside a transaction."""
        entry = Entry.after(self.index.last(), what, time=self._clock(), software=fgm.software(), **details)
        self.index.append(entry)
        if what == ledger.AMEND:
            self._terms = None
        return entry

    def accept_restored(self) -> Entry:
        """Go on with an older backup, and return the ledger's entry of it, which says what was seen.

        Until then a store that lacks an entry that was seen outside it changes nothing.
        """
        with self._writing(restored=True):
            seen = seen_head.load(self)
            if seen is None or not seen_head.lost(self, seen):
                raise InvalidData(f"{self.path} is not known to be older than it was: nothing is to be accepted")
            with self.index.changing():
                return self.append(ledger.RESTORED, seen=seen.number, head=seen.head, version=seen.version)

    def latest(self) -> str:
        """Return the present time, or the index's latest if that is later, as after a clock was set back."""
        return max(self._clock(), self.index.latest())

    def total(self) -> Sum:
        """Return the sum of all contributions, in fixed point."""
        saved, _ = unmoved(self, lambda: caught_up(self))
        return saved.total

    def describe(self) -> "TableOne":
        """Return the descriptives of all contributions, by contribution and pooled, in the study's units."""
        from fedgram.exchange.store.describing import describe  # which needs this module

        return describe(self)

    def removed(self) -> dict[str, str]:
        """Return removed parties that are not in now, neither by a file nor as part of a region, with the time."""
        with self.index.reading():
            present = {leaf.party for leaf in self.index.leaves()} | {each.party for each in self.contributions()}
            return {party: time for party, time in ledger.removed(self.log()).items() if party not in present}

    # Internal
    @contextmanager
    def changing(self) -> Iterator["Saving"]:
        """Keep other processes from changing the store, and save the total at the end."""
        with self._writing() as saving:
            yield saving

    @contextmanager
    def _writing(self, first: Iterable[Source] = (), *, restored: bool = False) -> Iterator["Saving"]:
        remedy = "wait until it is done, and try again"
        with writing(self.path):
            private_folder(self.path)
        with only_writer(self.path, wait=self._wait, who="coordinator", remedy=remedy):
            self._open()  # another process may have made it meanwhile
            if self._index is None:
                self._create(first)
            saving = Saving(self)
            study = self.terms.study
            if self.has_key or self._given_key is not None or (study and study.coordinator):
                check_store_key(self.path, study, self.key.public, self._given_key)
            seen = seen_head.load(self)
            if not restored and (older := seen_head.lost(self, seen)):
                raise StoreError(older)
            try:
                self._is_writing = True
                self._recover()
                yield saving
            finally:
                self._terms, self._is_writing = None, False  # an amendment may have been undone
                saving.close()
                seen_head.note(self, seen)

    def finish_interrupted(self) -> None:
        """Finish or undo what a killed process has left, if this process may change the store now."""
        with suppress(FedgramError, OSError):
            if self._index is not None and (is_under_way(self) or list(self._without_receipts())):
                with self._writing():
                    pass

    def _recover(self) -> None:
        if failed := recover(self):
            warnings.warn(failed, Doubtful, stacklevel=3)
        if self.has_key:
            _give_receipts(self, self._without_receipts())

    def _without_receipts(self) -> Iterator[Entry]:
        """Yield the entries of joined files whose receipts may not have been written."""
        done = self.index.get(RECEIPTED) or b"0"
        for entry in self.index.entries(after=int(done) if done.isdigit() else 0):
            if entry.says.get("what") in (ledger.JOIN, ledger.REPLACE):
                yield entry

    def _open(self) -> None:
        if self._index is not None or not (self.path / INDEX).exists():
            return
        index = Index(self.path / INDEX)
        if not index.ready:  # its process was killed before it was complete: nothing has been accepted yet
            index.close()
            return
        index.check_schema()
        self._index = index
        if self._given is not None:
            self._check_given(self._given)

    def _check_given(self, given: Study) -> None:
        """Raise if a study is not the store's, now or at its beginning."""
        terms, what = self.terms, f"the store {self.path}"
        remedy = "use another folder for another study"
        check_same(what, given, terms.fingerprint, terms.study, remedy=remedy, error=StoreError)
        if terms.study is not None and not terms.is_known(given):
            listed = "; ".join(differences(terms.study, given))
            raise StoreError(
                f"{what} has a study with the same rules, but in the file that is given {listed}: leave --study out; "
                "parties and keys change with fedgram amend"
            )

    def _create(self, first: Iterable[Source]) -> None:
        """Make a new store, which fixes its study or, without a study, the schema of its moments."""
        terms = Terms.of(self._given) if self._given is not None else settled_by(first, self._clock(), self._given_key)
        check_store_key(self.path, terms.study, None, self._given_key)
        prepare(self.objects.folder, self.path / INDEX, self.path / KEY, self._given_key)
        said = {"study": terms.fingerprint, "genesis": terms.began, "key": self.key.public.text}
        entry = Entry.after(None, ledger.OPEN, time=self._clock(), software=fgm.software(), **said)
        self._index = Index.created(self.path / INDEX, settings_of(terms), entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._index is not None:
            self._index.close()


class NothingAccepted(InvalidData):
    """Raised if none of the files can begin a store; `why` has the reason for each file, in their order."""

    def __init__(self, why: list[str]) -> None:
        super().__init__("a new store has the study of the first file that it accepts: give one, or --study")
        self.why = why


def settled_by(sources: Iterable[fgm.Source], now: str, key: PrivateKey | None) -> Terms:
    """Return the terms of the first file that a new store with this key would accept."""
    why = []
    for source in sources:
        try:
            with fgm.refusing(fgm.name_of(source)):
                terms = _settled_by(fgm.read(source, key=key).of_kind("summary", "combined"), now)
        except FedgramError as error:
            why.append(str(error))
        else:
            return terms
    raise NothingAccepted(why)


def _settled_by(file: fgm.File, now: str) -> Terms:
    if file.study is None and file.header.study:
        raise Mismatch(
            f"{file.name} refused: it names study {readable(file.header.study)}, but does not contain it: a new "
            "store needs its study, give --study"
        )
    terms = Terms(None, part_of(file).schema) if file.study is None else Terms.of(file.study)
    Sum.empty(terms.schema).plus(check_alone(file, terms, now=now))
    return terms


def settings_of(terms: Terms) -> dict[str, bytes]:
    """Return the settings of a new index: the study or the schema of the moments, and a secret for marks."""
    kept = (
        {KIND: json.dumps(about(terms.schema)).encode()} if terms.study is None else {STUDY: wire.encode(terms.study)}
    )
    return kept | {SECRET: token_bytes(32)}


def terms_in(index: Index) -> Terms:
    """Return the terms in the settings of an index."""
    study, kind = index.get(STUDY), index.get(KIND)
    try:
        if study is None and kind is not None:
            return Terms(None, schema_of(json.loads(kind)))
        found = wire.decode(study or b"", sender=str(index.path))
        if isinstance(found, Study):
            return Terms.of(found)
    except (FedgramError, ValueError, KeyError, TypeError, RecursionError):
        pass
    what = STUDY if study is not None or kind is None else KIND
    raise StoreError(f"the index {index.path} has lost its setting {what!r}: restore the store from a copy")


def prepare(contributions: Path, index: Path, key: Path, given: PrivateKey | None = None) -> None:
    """Write the coordinator's key for a new store: the given key or a new one.

    Raises if the folder has contributions or a key but no index, as a store that has lost it.
    """
    found = [contributions.name] if contributions.is_dir() and any(contributions.iterdir()) else []
    if key.exists() and not index.exists():
        found.append(key.name)
    if found:
        raise StoreError(
            f"{index.parent} has {' and '.join(found)} but no index, so no new store is made there: restore "
            f"{index.name} from a copy, or use another folder"
        )
    with writing(index, StoreError):
        index.touch(mode=PRIVATE)  # before the key, so that a crash never leaves a key without an index
    _make_key(key, given)


def _make_key(path: Path, given: PrivateKey | None) -> None:
    """Write the store's key, all of it or nothing; keep a usable key that a crash has left."""
    with suppress(FedgramError):
        left = PrivateKey.load(path)
        if given is None or left.public == given.public:
            return
    made = path.with_name(f".{path.name}.new")
    with writing(path, StoreError):
        made.unlink(missing_ok=True)
        (given or PrivateKey.new()).save(made)
        sync(made)
        os.replace(made, path)


def _join_all(
    store: Store, saving: Saving, sources: Sequence[Source], *, replace: bool, progress: Callable[[int], None]
) -> list[Joined]:
    """Add files to the total and return the outcome of each."""
    found: list[Joined] = []
    key = store.key  # signs the receipts: without it no file joins
    for start in range(0, len(sources), GROUP):
        with saving.together():
            if start:
                _note_receipts(store)  # of the group before
            group = []
            for source in sources[start : start + GROUP]:
                group.append(_tried(store, saving, source, replace=replace))
                progress(1)
        found += (
            each if entry is None else changed(each, receipt=_receipt(store, entry, key)) for each, entry in group
        )
    _note_receipts(store)
    return found


def _give_receipts(store: Store, entries: Iterable[Entry]) -> None:
    """Write the receipts that a killed process has not written."""
    missing = list(entries)
    for entry in missing:
        path = _receipt_path(store, entry)
        if path.parent.exists():
            sweep_unfinished(path)
        if not path.exists():
            _receipt(store, entry, store.key)
    if missing:
        _note_receipts(store)


def _note_receipts(store: Store) -> None:
    """Note in the index that all receipts up to the last entry have been written."""
    last = store.index.last()
    if last is not None:
        with store.index.changing():
            store.index.set(RECEIPTED, str(last.number).encode())


def most_bytes(store: Store) -> dict[str, int]:
    """Return the largest size in bytes of each kind of file in this store; larger files are refused before reading.

    Only while a round is open may parties send moments of more columns than they have.
    """
    kind = store.terms.schema
    classes, rounds = len(kind.classes), store.index.rounds()
    numbers = size(kind) + classes
    features = MOST_FEATURES if rounds and rounds[-1].said is None else 0
    return {
        "summary": MOST_HEADER + 8 * numbers,
        "answer": MOST_HEADER + 8 * max(numbers, packing.size(features) + classes * (features + 1)),
        "combined": MOST_HEADER + 16 * numbers + LEAF_BYTES * MOST_LEAVES,
    }


def _tried(store: Store, saving: Saving, source: Source, *, replace: bool) -> tuple[Joined, Entry | None]:
    name = name_of(source)
    most, key = most_bytes(store), store.key if store.has_key else None
    try:
        with store.index.changing(), fgm.refusing(name):  # a file refused half-way leaves no rows
            return _join_one(store, saving, fgm.read(source, name=name, most=most, key=key), replace=replace)
    except StoreError:  # not the file's fault
        raise
    except FedgramError as error:
        return Joined(name, "refused", why=str(error)), None


def _join_one(store: Store, saving: Saving, file: File, *, replace: bool) -> tuple[Joined, Entry | None]:
    """Add a file, unless it is in; return the outcome, and the ledger's entry for its receipt."""
    header, index = file.header, store.index
    found = Joined(file.name, "joined", header.party, file.digest, header.samples)
    file.of_kind("summary", "combined", "answer")
    remembered = index.key_of(header.party)
    if header.kind == "answer":
        admission.check_study(file, store.terms)
        admission.check_name(file, store.terms, remembered=remembered)
        from fedgram.exchange.rounds.round_server import take_answer  # which needs this module

        new = take_answer(store, file, replace=replace)
        return changed(found, outcome="answered" if new else "already in"), None
    part = admission.check_alone(file, store.terms, now=store.latest(), remembered=remembered)
    if index.contribution(digest=file.digest) is not None:
        return changed(found, outcome="already in"), index.entry_of(file.digest)
    former = index.contribution(party=header.party)
    if former is not None and not replace:
        raise InvalidData(
            f"{file.name} refused: {header.party!r} has joined with another file, {former.digest[:16]}: give --replace "
            "if this one is to take its place"
        )
    entry = _add(store, saving, file, part, former)
    return changed(found, outcome="joined" if former is None else "replaced"), entry


def _add(store: Store, saving: Saving, file: File, part: Moments | Sum, former: Contribution | None) -> Entry:
    header, index = file.header, store.index
    marks = marks_of(part, store.secret) if isinstance(part, Moments) else []
    leaves = admission.check_overlaps(file, index, store.objects, replaced=former, marks=marks, now=store.latest())
    total = saving.total if former is None else saving.total - sum_of(store.objects.read(former.digest))
    total = total.plus(part)
    # The file first, then the index that names it: a file that a crash leaves in between does not count.
    store.objects.add(file.digest, file.data, settle=False)
    details: dict[str, Any] = {"party": header.party, "digest": file.digest, "samples": part.n, "signer": header.signer}
    if former is None:
        entry = store.append(ledger.JOIN, **details)
    else:
        entry = store.append(ledger.REPLACE, **details, replaced=former.digest)
        index.drop(former, store.latest())
    joined = Contribution(
        digest=file.digest,
        party=header.party,
        kind=header.kind,
        samples=part.n,
        counts=tuple(part.counts.tolist()),
        size=file.size,
        signer=header.signer,
        created=header.created,
        joined=entry.says["time"],
    )
    index.add(joined, leaves, marks)
    index.bind(joined.party, joined.signer)
    index.end_rounds()
    saving.change(total, entry, left=former is not None)
    return entry


def _receipt(store: Store, entry: Entry, key: PrivateKey) -> Path:
    """Write the receipt of an entry without syncing it, since it can be made again."""
    path = _receipt_path(store, entry)
    with writing(path, StoreError):
        private_folder(path.parent)
        data = ledger.receipt(entry, store.index.amendments(), study=store.terms.fingerprint, key=key)
        replace_file(path, data, mode=PRIVATE)
    return path


def _receipt_path(store: Store, entry: Entry) -> Path:
    return store.path / RECEIPTS / f"{file_name(entry.detail('party'))}-{entry.number}.fgm"
