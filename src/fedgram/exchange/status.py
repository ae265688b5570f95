"""How a store stands: who is in, with how much, under which thresholds and keys, and what the ledger says."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedgram.exchange import ledger
from fedgram.exchange.asking import waited_for
from fedgram.exchange.records import Contribution
from fedgram.exchange.running import problems
from fedgram.exchange.store import Store
from fedgram.moments.validation import SiteValidation

LISTED, FIRST, NONE = "listed in the study", "remembered from its first file", "not signed"
PUBLICATION = ("version", "method", "time", "samples", "digest")


def status(store: Store, sites: Mapping[str, SiteValidation] | None = None) -> dict[str, Any]:
    """Return everything that a coordinator wants to know at a glance, ready for JSON.

    `sites` are the errors of leaving each party out, where they have been computed.
    """
    wrong = problems(store)
    with store.index.reading():
        return _status(store, sites, wrong)


def _status(store: Store, sites: Mapping[str, SiteValidation] | None, wrong: list[str]) -> dict[str, Any]:
    study, contributions, entries = store.terms.study, store.contributions(), store.log()
    listed = {} if study is None else dict(study.parties)
    leaves = store.index.leaves()
    present = {leaf.party for leaf in leaves} | {each.party for each in contributions}
    said = [entry.says for entry in entries if not entry.misshapen]  # those are among the problems
    return {
        "store": str(store.path),
        "study": {"name": "" if study is None else study.name, "fingerprint": store.terms.fingerprint},
        "coordinator": store.public_key,
        "samples": sum(each.samples for each in contributions),
        "bytes": sum(each.size for each in contributions),
        "parties": len(leaves),
        "thresholds": None
        if study is None
        else {"minimum_samples": study.minimum_samples, "minimum_cell": study.minimum_cell},
        "classes": [str(label) for label in store.terms.kind.classes] if study is None or study.classes else [],
        "contributions": [_row(store, each, listed, sites) for each in contributions],
        "missing": [name for name in listed if name not in present],
        "removed": [{"party": party, "time": time} for party, time in store.removed().items()],
        "waiting": waited_for(store),
        "publications": [{name: each[name] for name in PUBLICATION} for each in said if each["what"] == ledger.PUBLISH],
        "ledger": {"entries": len(entries), "head": entries[-1].hash, "problems": wrong},
    }


def others(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield who is not in, or is waited for: what they are, and their names."""
    removed = [f"{each['party']} ({each['time']})" for each in found["removed"]]
    named = {"missing": found["missing"], "removed": removed, "has not answered the round": found["waiting"]}
    for what, names in named.items():
        if names:
            yield what, ", ".join(names)


def _row(
    store: Store, each: Contribution, listed: Mapping[str, str], sites: Mapping[str, SiteValidation] | None
) -> dict[str, Any]:
    leaves = store.index.leaves(each.digest)
    found = {
        "party": each.party,
        "kind": each.kind,
        "samples": each.samples,
        "counts": list(each.counts),
        "smallest_cell": min((count for count in each.counts if count), default=0),
        "bytes": each.size,
        "joined": each.joined,
        "created": each.created,
        "digest": each.digest,
        "signer": each.signer,
        "key": LISTED if listed.get(each.party) else FIRST if each.signer else NONE,
        "summaries": len(leaves),
    }
    if sites is not None and each.party in sites:
        found["errors"] = {name: getattr(sites[each.party], name).brier for name in ("left_out", "pooled", "own")}
    return found
