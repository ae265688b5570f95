"""How files enter a store: checked, written, then named in the index and the ledger in one transaction."""

from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InvalidData, StoreError
from fedgram.core.files import PRIVATE, private_folder, replace_file, writing
from fedgram.core.wire.container import MOST_HEADER
from fedgram.exchange import admission, certificates, files, ledger
from fedgram.exchange.asking import take_answer
from fedgram.exchange.combined import LEAF_BYTES, MOST_LEAVES, sum_of
from fedgram.exchange.files import File, Source, name_of
from fedgram.exchange.ledger import Entry
from fedgram.exchange.marks import marks_of
from fedgram.exchange.records import Contribution
from fedgram.exchange.rounds import MOST_FEATURES
from fedgram.exchange.running import RECEIPTS, Saving
from fedgram.exchange.store import Joined, Store
from fedgram.exchange.sums import Sum, size
from fedgram.moments import packing
from fedgram.moments.moments import Moments

# Files that are accepted together: each is on the disk by then, and the index and its ledger wait for it only once.
GROUP = 16


def join(
    store: Store, saving: Saving, sources: Sequence[Source], *, replace: bool, progress: Callable[[int], None]
) -> list[Joined]:
    """Add files to the total; what is refused is named, and the others go on."""
    found: list[Joined] = []
    for start in range(0, len(sources), GROUP):
        with saving.together():
            group = []
            for source in sources[start : start + GROUP]:
                group.append(_tried(store, saving, source, replace=replace))
                progress(1)
        found += (each if entry is None else changed(each, receipt=_receipt(store, entry)) for each, entry in group)
    return found


def most_bytes(store: Store) -> dict[str, int]:
    """Return how many bytes a file of each kind can have in this store: larger ones are refused before they are read.

    Parties answer with moments of more columns than they have only while a round is open.
    """
    kind = store.terms.kind
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
    most = most_bytes(store)
    try:
        with store.index.changing(), files.refusing(name):  # a file that is refused half-way leaves nothing behind
            return _join(store, saving, files.read(source, name=name, most=most), replace=replace)
    except StoreError:  # not the file's fault
        raise
    except FedgramError as error:
        return Joined(name, "refused", why=str(error)), None


def _join(store: Store, saving: Saving, file: File, *, replace: bool) -> tuple[Joined, Entry | None]:
    """Add a file, unless it is in; return also the ledger's entry by which it is, which a receipt is made of."""
    header, index = file.header, store.index
    found = Joined(file.name, "joined", header.party, file.digest, header.samples)
    file.of_kind("summary", "combined", "answer")
    remembered = index.key_of(header.party)
    if header.kind == "answer":
        admission.check_study(file, store.terms)
        admission.check_name(file, store.terms, remembered=remembered)
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
    # First the file, then the index that names it: what a crash leaves in between counts as never having come.
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


def _receipt(store: Store, entry: Entry) -> Path:
    """Write the receipt of an entry; it is not synced, since it can be made again."""
    path = store.path / RECEIPTS / certificates.file_name(entry.says["party"], entry.number)
    with writing(path, StoreError):
        private_folder(path.parent)
        data = certificates.receipt(entry, study=store.terms.fingerprint, key=store.key)
        replace_file(path, data, mode=PRIVATE)
    return path
