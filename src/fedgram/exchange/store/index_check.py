"""Comparison of a store's index with its ledger and its files: an index can be edited by hand."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedgram.core.errors import Mismatch
from fedgram.core.hashing import hash_bytes
from fedgram.exchange.format.fgm import File
from fedgram.exchange.store.combined import leaves_of, part_of
from fedgram.exchange.store.index import Contribution, Index, Leaf
from fedgram.exchange.store.ledger import ANSWER, CHANGES, CLOSE, REMOVE, ROUND, Entry

# Columns of a contribution that the ledger also has, and their names there.
IN_LEDGER = {"party": "party", "samples": "samples", "signer": "signer", "joined": "time"}


def differences(index: Index, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the contradictions between an index and an undamaged ledger."""
    changes = [entry for entry in entries if entry.says.get("what") in CHANGES]
    joined, left = _by_ledger(changes)
    yield from _in_the_index(index, joined)
    yield from _keys(index, changes)
    yield from _departed(index, joined, left)
    latest = max((str(entry.detail("time")) for entry in entries), default="")
    if index.latest() < latest:
        yield f"the index has {index.latest() or 'nothing'} as the latest time, and the ledger has {latest}"


def run_differences(index: Index, entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the contradictions between index and ledger about the rounds and answers of the present run."""
    asked, said, answers = _run_by_ledger(entries)
    rounds = index.rounds()
    for number in sorted(asked.keys() - {each.number for each in rounds}) if rounds else ():
        yield f"round {number} is missing in the index, and the ledger says that it was asked"
    for each in rounds:
        if asked.get(each.number) != each.digest:
            yield f"round {each.number} of the index, {each.digest[:16]}, is not one that the ledger says was asked"
        if each.said is not None and said.get(each.number) != hash_bytes([each.said]):
            yield f"round {each.number}: the index has another sum of its answers than the ledger"
    for party, digest in index.answers().items():
        if answers.get(party) != digest:
            yield f"the answer {digest[:16]} of {party!r} is in the index, and the ledger does not say so"


def check_row(row: Contribution, leaves: list[Leaf], file: File) -> None:
    """Raise if a file's header contradicts its row in the index."""
    header, part = file.header, part_of(file)
    said = {name: getattr(header, name) for name in ("digest", "party", "kind", "samples", "signer", "created")}
    said |= {"size": file.size, "counts": tuple(part.counts.tolist())}
    for name, value in said.items():
        if (kept := getattr(row, name)) != value:
            raise Mismatch(f"{_named(row.digest, header.party)}: the index has {_pair(name, kept, value)} in its file")
    if {leaf.digest: leaf for leaf in leaves} != {leaf.digest: leaf for leaf in leaves_of(file)}:
        raise Mismatch(f"{_named(row.digest, header.party)}: the index lists other summaries in it than its file")


def _by_ledger(changes: Iterable[Entry]) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """Return the entries by which present contributions joined, and by which others left last, by digest."""
    joined: dict[str, Entry] = {}
    left: dict[str, Entry] = {}
    for entry in changes:
        digest, replaced = entry.detail("digest"), entry.says.get("replaced")
        for out in [replaced] if replaced else [digest] if entry.says["what"] == REMOVE else []:
            joined.pop(out, None)
            left[out] = entry
        if entry.says["what"] != REMOVE:
            joined[digest] = entry
            left.pop(digest, None)
    return joined, left


def _run_by_ledger(entries: Iterable[Entry]) -> tuple[dict[int, str], dict[int, str], dict[str, str]]:
    """Return the digests of the last run's rounds, the hashes of their sums, and the answers by party."""
    asked: dict[int, str] = {}
    said: dict[int, str] = {}
    answers: dict[str, str] = {}
    for entry in entries:
        what = entry.says.get("what")
        if what in CHANGES or (what == ROUND and entry.detail("round") == 1):  # a new run begins
            asked, said = {}, {}
        if what in (*CHANGES, ROUND):
            answers = {}
        if what == ROUND:
            asked[entry.detail("round")] = entry.detail("digest")
        elif what == CLOSE:
            said[entry.detail("round")] = entry.detail("said")
        elif what == ANSWER:
            answers[entry.detail("party")] = entry.detail("digest")
    return asked, said, answers


def _in_the_index(index: Index, joined: dict[str, Entry]) -> Iterator[str]:
    """Yield contradictions about present contributions, row by row."""
    present = {each.digest: each for each in index.contributions()}
    for digest, row in present.items():
        if (entry := joined.get(digest)) is None:
            yield f"contribution {digest[:16]} is in the index, and the ledger does not say so"
            continue
        for column, name in IN_LEDGER.items():
            kept, said = getattr(row, column), entry.says.get(name)
            if kept != said:
                where = f"entry {entry.number} of the ledger"
                yield f"{_named(digest, entry.says.get('party'))}: the index has {_pair(column, kept, said)} in {where}"
        leaves = index.leaves(digest)
        if sum(leaf.samples for leaf in leaves) != entry.says.get("samples"):
            yield f"{_named(digest, row.party)}: the summaries in it do not have its samples"
        if row.kind == "summary" and [(leaf.digest, leaf.party) for leaf in leaves] != [(digest, row.party)]:
            yield f"{_named(digest, row.party)}: the index lists it as the summary of another party"
    for digest in joined.keys() - present.keys():
        yield f"contribution {digest[:16]} is missing, which the ledger has as joined"


def _keys(index: Index, changes: Iterable[Entry]) -> Iterator[str]:
    """Yield names whose key is not the signer of their last file."""
    said = {entry.says.get("party"): entry.says.get("signer") for entry in changes if entry.says["what"] != REMOVE}
    kept = index.names()
    for party, signer in said.items():
        if (found := kept.get(str(party))) != signer:
            yield f"{party!r}: the index has {_pair('key', found, signer)} in the ledger"


def _departed(index: Index, joined: dict[str, Entry], left: dict[str, Entry]) -> Iterator[str]:
    """Yield contradictions about departures, whose rows keep them from returning without a new signature.

    The ledger has contributions only. So the leaves of a region that has left, and the hashes of contents, are not
    compared; the region itself is.
    """
    gone = {each.digest: each for each in index.gone()}
    back = {leaf.digest for leaf in index.leaves()}  # perhaps as part of a region
    for digest, entry in left.items():
        party, time = entry.says.get("party"), str(entry.detail("time"))
        if (row := gone.get(digest)) is None:
            if digest not in back:
                number = entry.number
                yield f"{_named(digest, party)}: it left with entry {number}, and the index does not know it any more"
            continue
        if row.party != party:
            yield f"{_named(digest, party)}: it has left, and the index has {_pair('party', row.party, party)}"
        if row.time < time:
            yield f"{_named(digest, party)}: the index has {_pair('time', row.time, time)} in the ledger"
    for digest in {each.contribution for each in gone.values()} - left.keys() - joined.keys():
        yield f"contribution {digest[:16]} has left by the index, and the ledger does not say so"


def _named(digest: str, party: Any) -> str:
    return f"contribution {digest[:16]} of {party!r}"


def _pair(name: str, kept: Any, said: Any) -> str:
    return f"{name} {kept!r}, and it is {said!r}"
