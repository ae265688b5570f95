"""Parts that the pages share: escaped texts, tables, and a whole page that works offline."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from fedgram.core.hashing import readable
from fedgram.core.terminal import visible
from fedgram.exchange.store.ledger import Entry
from fedgram.studies.study import Study

_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>"""


def asset(name: str) -> str:
    """Return the text of a style sheet or template of the pages."""
    return files("fedgram.exchange.pages").joinpath("assets", name).read_text(encoding="utf-8")


def whole_page(title: str, parts: Iterable[str], *styles: str) -> str:
    """Return a page of parts in HTML; empty parts are left out.

    Parameters
    ----------
    title
        The title as plain text.
    parts
        The parts of the page's body.
    styles
        The names of style sheets beside the common one.

    """
    head = _HEAD.format(title=escaped(title), style="".join(map(asset, ("status.css", *styles))))
    return "\n".join([head, *filter(None, parts), "</main>", "</body>", "</html>", ""])


def escaped(text: str) -> str:
    """Return a text escaped for HTML: names come from others' files."""
    return escape(visible(text))


def table_of(
    heads: Iterable[str],
    lines: Iterable[Sequence[str]],
    numbers: Iterable[int] = (),
    *,
    label: str = "",
) -> str:
    """Return a table that scrolls sideways where the page is narrow.

    Parameters
    ----------
    heads, lines
        The cells, which are HTML already.
    numbers
        The places of columns of numbers.
    label
        The table's name as plain text. A table with a name can be scrolled by keyboard, and its first column has the
        heads of its rows.

    """
    kinds = dict.fromkeys(numbers, ' class="number"')
    first = '<th scope="row">{}</th>' if label else f"<td{kinds.get(0, '')}>{{}}</td>"
    head = "".join(f'<th scope="col"{kinds.get(place, "")}>{name}</th>' for place, name in enumerate(heads))
    body = "".join(
        f"<tr>{first.format(line[0])}"
        + "".join(f"<td{kinds.get(place, '')}>{cell}</td>" for place, cell in enumerate(line[1:], 1))
        + "</tr>"
        for line in lines
    )
    named = f' role="region" tabindex="0" aria-label="{escaped(label)}"' if label else ""
    return f'<div class="wide"{named}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(heading: str, content: str) -> str:
    """Return content in HTML under a heading."""
    return f"<section><h2>{escaped(heading)}</h2>{content}</section>"


def pairs(found: Iterable[tuple[str, str]]) -> str:
    """Return names with values, of a page with `results.css`."""
    shown = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in found)
    return f"<dl>{shown}</dl>"


def source(study: Study | None, entry: Entry | None) -> str:
    """Return the section with the study, the last entry of the store's ledger, and the version of fedgram."""
    from fedgram import __version__

    found = [("Study", study.name), ("Fingerprint", readable(study.fingerprint))] if study else []
    if entry is not None:
        found += [("Ledger", f"entry {entry.number:,} of {entry.detail('time')}"), ("Head of the ledger", entry.hash)]
    found.append(("Made with", f"fedgram {__version__}"))
    return section("Source", f'<div class="source">{pairs(found)}</div>')
