"""How files enter a store: checked, written, then named in the index and the ledger in one transaction."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InvalidData, StoreError
from fedgram.core.files import replace_file, writing
from fedgram.exchange import admission, certificates, files, ledger
from fedgram.exchange.asking import take_answer
from fedgram.exchange.combined import part_of, sum_of
from fedgram.exchange.files import File
from fedgram.exchange.header import now
from fedgram.exchange.ledger import Entry
from fedgram.exchange.records import Contribution
from fedgram.exchange.running import Saving
from fedgram.exchange.store import Joined, Source, Store

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


def _tried(store: Store, saving: Saving, source: Source, *, replace: bool) -> tuple[Joined, Entry | None]:
    name = "bytes" if isinstance(source, bytes) else os.fspath(source)
    try:
        return _join(store, saving, files.read(source, name=name), replace=replace)
    except StoreError:  # not the file's fault
        raise
    except FedgramError as error:
        return Joined(name, "refused", why=str(error)), None


def _join(store: Store, saving: Saving, file: File, *, replace: bool) -> tuple[Joined, Entry | None]:
    """Add a file, unless it is in; return also the ledger's entry by which it is, which a receipt is made of."""
    header, index = file.header, store.index
    found = Joined(file.name, "joined", header.party, file.digest, header.samples)
    file.of_kind("summary", "combined", "answer")
    admission.check_study(file, store.terms)
    signer = admission.check_name(file, store.terms, index)
    if header.kind == "answer":
        new = take_answer(store, file, replace=replace)
        return changed(found, outcome="answered" if new else "already in"), None
    admission.check_sender(file, store.terms)
    if index.contribution(digest=file.digest) is not None:
        return changed(found, outcome="already in"), index.entry_of(file.digest)
    former = index.contribution(party=header.party)
    if former is not None and not replace:
        raise InvalidData(
            f"{file.name} refused: {header.party!r} has joined with another file, {former.digest[:16]}: give --replace "
            "if this one is to take its place"
        )
    entry = _add(store, saving, file, former, signer)
    return changed(found, outcome="joined" if former is None else "replaced"), entry


def _add(store: Store, saving: Saving, file: File, former: Contribution | None, signer: str) -> Entry:
    header, index, part = file.header, store.index, part_of(file)
    admission.check_moments(file, part, store.terms)
    leaves = admission.check_overlaps(file, index, replaced=former)
    total = saving.total if former is None else saving.total - sum_of(store.objects.read(former.digest))
    total = total.plus(part)
    # First the file, then the index that names it: what a crash leaves in between counts as never having come.
    store.objects.add(file.digest, file.data, settle=False)
    joined = Contribution(
        digest=file.digest,
        party=header.party,
        kind=header.kind,
        samples=part.n,
        counts=tuple(part.counts.tolist()),
        size=file.size,
        signer=signer,
        created=header.created,
        joined=now(),
    )
    details: dict[str, Any] = {"party": joined.party, "digest": joined.digest, "samples": part.n, "signer": signer}
    if former is not None:
        index.drop(former)
        details["replaced"] = former.digest
    index.add(joined, leaves)
    index.bind(joined.party, signer)
    index.end_rounds()
    entry = store.append(ledger.JOIN if former is None else ledger.REPLACE, **details)
    saving.change(total, entry)
    return entry


def _receipt(store: Store, entry: Entry) -> Path:
    """Write the receipt of an entry; it is not synced, since it can be made again."""
    path = store.path / "receipts" / certificates.file_name(entry.says["party"], entry.number)
    with writing(path, StoreError):
        path.parent.mkdir(exist_ok=True)
        replace_file(path, certificates.receipt(entry, study=store.terms.fingerprint, key=store.key))
    return path
