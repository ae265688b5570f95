"""The status of a store, as values and as one HTML page that works offline.

Contributions, thresholds, keys, publications, and faults of the ledger.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgram.core.errors import StoreError
from fedgram.core.hashing import readable, short
from fedgram.exchange.pages.page_parts import escaped, table_of, whole_page
from fedgram.exchange.rounds.round_server import waited_for
from fedgram.exchange.store import ledger
from fedgram.exchange.store.admission import Terms
from fedgram.exchange.store.index import Contribution
from fedgram.exchange.store.ledger import Entry
from fedgram.exchange.store.saved_total import problems
from fedgram.exchange.store.study_store import Store
from fedgram.protocol.sites import SiteError, SiteValidation
from fedgram.studies.study import Study

LISTED, FIRST, NONE = "listed in the study", "remembered from its first file", "not signed"
FORMER = "its key before an amendment"
PUBLICATION = ("version", "method", "time", "samples", "digest")


def status(store: Store, sites: Mapping[str, SiteValidation] | None = None) -> dict[str, Any]:
    """Return the status of a store as plain values, ready for JSON.

    `sites` are the errors of leaving each party out, if they have been computed.
    """
    wrong = problems(store)
    with store.index.reading():
        return _status(store, sites, wrong)


def _status(store: Store, sites: Mapping[str, SiteValidation] | None, wrong: list[str]) -> dict[str, Any]:
    try:
        terms = store.terms
    except StoreError:  # forged amendments, which the problems name
        terms = store.genesis
    study, contributions, entries = terms.study, store.contributions(), store.log()
    listed = {} if study is None else study.parties
    leaves = store.index.leaves()
    present = {leaf.party for leaf in leaves} | {each.party for each in contributions}
    said = [entry.says for entry in entries if not entry.misshapen]  # the problems list the others
    return {
        "store": str(store.path),
        "study": {"name": "" if study is None else study.name, "fingerprint": terms.fingerprint}
        | {"agreement": terms.agreement, "genesis": terms.began},
        "amendments": [each.plain() | {"text": each.line} for each in terms.amendments],
        "coordinator": store.public_key,
        "samples": sum(each.samples for each in contributions),
        "bytes": sum(each.size for each in contributions),
        "parties": len(leaves),
        "thresholds": None
        if study is None
        else {"minimum_samples": study.minimum_samples, "minimum_cell": study.minimum_cell},
        "classes": [str(label) for label in terms.schema.classes] if study is None or study.classes else [],
        "contributions": [_row(store, each, terms, sites) for each in contributions],
        "missing": [name for name in listed if name not in present],
        "removed": [{"party": party, "time": time} for party, time in store.removed().items()],
        "waiting": waited_for(store),
        "publications": [{name: each[name] for name in PUBLICATION} for each in said if each["what"] == ledger.PUBLISH],
        "ledger": {"entries": len(entries), "head": entries[-1].hash, "problems": wrong},
    }


def others(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield groups of absent parties with their names: missing, removed, or not answering."""
    removed = [f"{each['party']} ({each['time']})" for each in found["removed"]]
    named = {"missing": found["missing"], "removed": removed, "has not answered the round": found["waiting"]}
    for what, names in named.items():
        if names:
            yield what, ", ".join(names)


def _row(store: Store, each: Contribution, terms: Terms, sites: Mapping[str, SiteValidation] | None) -> dict[str, Any]:
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
        "key": _key(each, terms.key_of(each.party)),
        "summaries": len(leaves),
    }
    if sites is not None and each.party in sites:
        found["errors"] = {name: site_errors(getattr(sites[each.party], name), terms.study) for name in _MODELS}
    return found


def _key(each: Contribution, known: str) -> str:
    if not each.signer:
        return NONE
    return FIRST if not known else LISTED if known == each.signer else FORMER


def figure(value: float) -> str:
    """Return a count, or an error with three digits after the point or four in all."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if value < 1 else f"{value:,.4g}"


MOST_ENTRIES = 1000  # newest entries of the ledger that are shown
WIDTH = 220  # pixels of the longest bar


def status_page(found: dict[str, Any], entries: Sequence[Entry]) -> str:
    """Return the page of a store's status as HTML."""
    study, ledger = found["study"], found["ledger"]
    parts = [
        f"<h1>{escaped(study['name'] or 'Store')}</h1>",
        f"<p>Study <code>{escaped(readable(study['fingerprint']) or 'none')}</code>, coordinator’s key "
        f"<code>{escaped(found['coordinator'])}</code></p>",
        _figures(found),
        "<h2>Who is in</h2>",
        _contributions(found),
        _notes(found),
        _sites(found),
        _amendments(found),
        "<h2>Publications</h2>",
        _publications(found),
        "<h2>Ledger</h2>",
        _ledger_state(ledger),
        _entries(entries),
    ]
    return whole_page(f"{study['name'] or 'store'}: status", parts)


def _figures(found: dict[str, Any]) -> str:
    limits = found["thresholds"]
    tiles = [(f"{found['parties']:,}", "parties"), (f"{found['samples']:,}", "samples")]
    if limits is not None:
        tiles.append((f"{limits['minimum_samples']:,}", "minimum per party"))
        if found["classes"]:
            tiles.append((f"{limits['minimum_cell']:,}", "minimum per class"))
    shown = "".join(f"<div><b>{figure}</b><span>{name}</span></div>" for figure, name in tiles)
    return f'<section class="figures">{shown}</section>'


def _contributions(found: dict[str, Any]) -> str:
    rows, most = found["contributions"], max((each["samples"] for each in found["contributions"]), default=1)
    lines = [
        [
            escaped(each["party"])
            + (f" <i>({each['summaries']:,} summaries)</i>" if each["kind"] == "combined" else ""),
            _bar(each["samples"], most),
            *([f"{each['smallest_cell']:,}"] if found["classes"] else ()),
            f"{each['bytes']:,}",
            _time(each["joined"]),
            escaped(each["key"]),
            f"<code>{short(each['digest'])}</code>",
        ]
        for each in rows
    ]
    smallest = ["smallest class"] if found["classes"] else []
    heads = ("party", "samples", *smallest, "bytes", "joined", "key", "contribution")
    return table_of(heads, lines, numbers=(2, 2 + len(smallest))) if lines else "<p>No contributions yet.</p>"


def _notes(found: dict[str, Any]) -> str:
    said = []
    if any(each["key"] in (FIRST, NONE) for each in found["contributions"]):
        said.append("Keys that the study does not list came with the first file: trust them no more than its sender.")
    said += (f"{what.capitalize()}: {escaped(names)}." for what, names in others(found))
    return "".join(f"<p>{text}</p>" for text in said)


def site_errors(error: SiteError, study: Study | None) -> dict[str, float]:
    """Return a model's errors at a party by their names: the Brier score, or the RMSE of each numeric outcome."""
    if study is None or study.classes:
        return {"Brier score": error.brier}
    units = {name: getattr(study.columns[name], "unit", "") for name in study.numeric_outcomes}
    names = (f"RMSE of {name}" + (f" in {unit}" if unit else "") for name, unit in units.items())
    return dict(zip(names, error.rmse.tolist(), strict=True))


def how_well(what: str) -> str:
    """Return the heading of errors at each party."""
    return f"How well a model of the other parties predicts each party ({what}; lower is better)."


def _amendments(found: dict[str, Any]) -> str:
    """Return the section on parties and keys that have changed since the parties agreed."""
    if not found["amendments"]:
        return ""
    began, now = (escaped(readable(found["study"][name])) for name in ("genesis", "agreement"))
    agreed = f"<p>The study’s agreement was <code>{began}</code> at the beginning, and is <code>{now}</code> now.</p>"
    lines = [[f"{each['number']}", escaped(each["text"])] for each in found["amendments"]]
    return f"<h2>Amendments</h2>{agreed if now != began else ''}" + table_of(("", "change"), lines, numbers=(0,))


def _sites(found: dict[str, Any]) -> str:
    """Return the section with the errors at each party of the others' model."""
    judged = [each for each in found["contributions"] if "errors" in each]
    if not judged:
        return ""
    said = [
        "<h2>Leaving one party out</h2><p>All models are least squares. The model of the others has not seen the "
        "party’s samples; the other two have, and look better than they are.</p>"
    ]
    for what in judged[0]["errors"]["own"]:
        most = max(errors[what] for each in judged for errors in each["errors"].values()) or 1.0
        lines = [
            [escaped(each["party"]), *(_bar(each["errors"][model][what], most) for model in _MODELS)] for each in judged
        ]
        said.append(f"<p>{escaped(how_well(what))}</p>" + table_of(("party", *_MODELS.values()), lines))
    return "".join(said)


_MODELS = {"left_out": "by the model of the others", "pooled": "by the model of all", "own": "by its own model"}


def _publications(found: dict[str, Any]) -> str:
    names = ("version", "method", "time", "samples", "digest")
    lines = [[escaped(str(each[name])[:20]) for name in names] for each in reversed(found["publications"])]
    return table_of(names, lines, numbers=(0, 3)) if lines else "<p>None yet.</p>"


def _ledger_state(ledger: dict[str, Any]) -> str:
    if ledger["problems"]:
        listed = "".join(f"<li>{escaped(problem)}</li>" for problem in ledger["problems"])
        return f'<ul class="wrong">{listed}</ul>'
    whole = f"{ledger['entries']:,} entries, each with the hash of the one before"
    return f"<p>{whole}; head <code>{ledger['head']}</code></p>"


def _entries(entries: Sequence[Entry]) -> str:
    hidden = {"number", "time", "what", "party", "previous", "software"}
    lines = []
    for entry in reversed(entries[-MOST_ENTRIES:]):
        said = entry.says
        rest = {name: value for name, value in said.items() if name not in hidden}
        details = ", ".join(f"{name} {_short(value)}" for name, value in rest.items())
        what, who = (escaped(str(said.get(name, ""))) for name in ("what", "party"))
        head = f"<code>{escaped(short(entry.hash))}</code>"
        if said.get("what") == ledger.AMEND:
            details = f"{said.get('change')} (see amendments)"
        lines.append([f"{entry.number}", _time(str(said.get("time", ""))), what, who, escaped(details), head])
    return table_of(("", "time", "what", "who", "details", "hash"), lines, numbers=(0,))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return short(text) if len(text) > 40 and " " not in text else text


def _bar(value: float, most: float) -> str:
    wide, label = max(1.0, WIDTH * value / most), figure(value)
    return (
        f'<svg width="{WIDTH + 60}" height="16" role="img" aria-label="{label}">'
        f'<rect width="{wide:.1f}" height="12" y="2" rx="2"/><text x="{wide + 5:.1f}" y="12">{label}</text></svg>'
    )


def _time(text: str) -> str:
    return f"<time>{escaped(text)}</time>"
