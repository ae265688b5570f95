"""A store's status as one page that needs no network: who is in, how well they are predicted, and the ledger."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from fedgram.core.hashing import readable, short
from fedgram.core.terminal import visible
from fedgram.exchange.ledger import Entry
from fedgram.exchange.status import others

MOST_ENTRIES = 1000  # of the ledger that are shown, the newest
WIDTH = 220  # of a bar


def status_page(found: dict[str, Any], entries: Sequence[Entry]) -> str:
    """Return the page of what `status` found."""
    study, ledger = found["study"], found["ledger"]
    style = files("fedgram.exchange").joinpath("assets/status.css").read_text()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(study['name'] or 'store')}: status</title><style>{style}</style></head><body><main>",
        f"<h1>{_text(study['name'] or 'Store')}</h1>",
        f"<p>Study <code>{_text(readable(study['fingerprint']) or 'none')}</code>, coordinator’s key "
        f"<code>{_text(found['coordinator'])}</code></p>",
        _figures(found),
        "<h2>Who is in</h2>",
        _contributions(found),
        _notes(found),
        _sites(found),
        "<h2>Publications</h2>",
        _publications(found),
        "<h2>Ledger</h2>",
        _ledger_state(ledger),
        _entries(entries),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part)


def _figures(found: dict[str, Any]) -> str:
    limits = found["thresholds"]
    tiles = [(f"{found['parties']:,}", "parties"), (f"{found['samples']:,}", "samples")]
    if limits is not None:
        tiles += [
            (f"{limits['minimum_samples']:,}", "samples a party must have"),
            (f"{limits['minimum_cell']:,}", "samples of each class that it has"),
        ]
    shown = "".join(f"<div><b>{figure}</b><span>{name}</span></div>" for figure, name in tiles)
    return f'<section class="figures">{shown}</section>'


def _contributions(found: dict[str, Any]) -> str:
    rows, most = found["contributions"], max((each["samples"] for each in found["contributions"]), default=1)
    lines = [
        [
            _text(each["party"]) + (f" <i>({each['summaries']:,} summaries)</i>" if each["kind"] == "combined" else ""),
            _bar(each["samples"], most, f"{each['samples']:,}"),
            f"{each['smallest_cell']:,}",
            f"{each['bytes']:,}",
            _time(each["joined"]),
            _text(each["key"]),
            f"<code>{short(each['digest'])}</code>",
        ]
        for each in rows
    ]
    heads = ("party", "samples", "smallest class", "bytes", "joined", "key", "contribution")
    return _table(heads, lines, numbers=(2, 3)) if lines else "<p>Nobody yet.</p>"


def _notes(found: dict[str, Any]) -> str:
    said = []
    if any(each["key"] != "listed in the study" for each in found["contributions"]):
        said.append("Keys that the study does not list are only as good as the way in which the first file came.")
    said += (f"{what.capitalize()}: {_text(names)}." for what, names in others(found))
    return "".join(f"<p>{text}</p>" for text in said)


def _sites(found: dict[str, Any]) -> str:
    """Return how well each party is predicted by the model of the others."""
    judged = [each for each in found["contributions"] if "errors" in each]
    if not judged:
        return ""
    most = max(error for each in judged for error in each["errors"].values()) or 1.0
    lines = [
        [_text(each["party"]), *(_bar(each["errors"][name], most, f"{each['errors'][name]:.3f}") for name in _MODELS)]
        for each in judged
    ]
    return (
        "<h2>Leaving one out</h2><p>Mean squared error of least squares on each party’s samples. The model of the "
        "others has not seen them; the other two have, and look better than they are.</p>"
        + _table(("party", *_MODELS.values()), lines)
    )


_MODELS = {"left_out": "by the model of the others", "pooled": "by the model of all", "own": "by its own model"}


def _publications(found: dict[str, Any]) -> str:
    names = ("version", "method", "time", "samples", "digest")
    lines = [[_text(str(each[name])[:20]) for name in names] for each in reversed(found["publications"])]
    return _table(names, lines, numbers=(0, 3)) if lines else "<p>None yet.</p>"


def _ledger_state(ledger: dict[str, Any]) -> str:
    if ledger["problems"]:
        listed = "".join(f"<li>{_text(problem)}</li>" for problem in ledger["problems"])
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
        what, who = (_text(str(said.get(name, ""))) for name in ("what", "party"))
        head = f"<code>{_text(short(entry.hash))}</code>"
        lines.append([f"{entry.number}", _time(str(said.get("time", ""))), what, who, _text(details), head])
    return _table(("", "time", "what", "who", "details", "hash"), lines, numbers=(0,))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return short(text) if len(text) > 40 and " " not in text else text


def _bar(value: float, most: float, label: str) -> str:
    wide = max(1.0, WIDTH * value / most)
    return (
        f'<svg width="{WIDTH + 60}" height="16" role="img" aria-label="{label}">'
        f'<rect width="{wide:.1f}" height="12" y="2" rx="2"/><text x="{wide + 5:.1f}" y="12">{label}</text></svg>'
    )


def _table(heads: Iterable[str], lines: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML already."""
    kinds = dict.fromkeys(numbers, ' class="number"')
    head = "".join(f"<th{kinds.get(place, '')}>{name}</th>" for place, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{kinds.get(place, '')}>{cell}</td>" for place, cell in enumerate(line)) + "</tr>"
        for line in lines
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _time(text: str) -> str:
    return f"<time>{_text(text)}</time>"


def _text(text: str) -> str:
    """Return a text as HTML shows it: names come from others' files."""
    return escape(visible(text))
