"""The passport as one page: pictures, style and text in one HTML file that works offline and prints well."""

from html import escape
from importlib.resources import files
from string import Template

from fedgram.core.hashing import readable
from fedgram.core.terminal import visible
from fedgram.exchange.passport import Passport
from fedgram.exchange.pictures import bars


def passport_page(passport: Passport) -> str:
    """Return the page as text."""
    template = files("fedgram.exchange").joinpath("assets", "passport.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=_text(f"Passport of {passport.party}’s {passport.kind} file"),
        lede=_text(f"{passport.study} {readable(passport.fingerprint)} · {passport.created}"),
        reveals=_text(" ".join(passport.reveals)),
        facts="".join(_fact(heading, text) for heading, text in passport.facts()),
        sections=_classes(passport) + _columns(passport),
    )


def _classes(passport: Passport) -> str:
    if not passport.classes:
        return ""
    counts = {visible(label): count for label, count in passport.classes.items()}
    return _section("Samples per class", bars(counts, of=passport.samples, title="samples per class"))


def _columns(passport: Passport) -> str:
    if not passport.columns:
        return ""
    counts = {visible(column.name): column.missing for column in passport.columns if column.missing is not None}
    missing = (
        bars(counts, of=passport.samples, title="missing values per column")
        if counts
        else "<p>The study lets no value be missing.</p>"
    )
    rows = "".join(
        f"<tr><td>{_text(column.name)}</td><td>{_text(column.kind)}</td><td>{_text(column.details)}</td>"
        f'<td class="number">{"–" if column.missing is None else f"{column.missing:,}"}</td></tr>'
        for column in passport.columns
    )
    heads = '<tr><th>column</th><th>kind</th><th>what</th><th class="number">missing</th></tr>'
    note = '<p class="lede">– stands where the study lets no value be missing.</p>'
    table = f"<table><thead>{heads}</thead><tbody>{rows}</tbody></table>{note}"
    return _section("Missing values per column", missing) + _section("Columns", table)


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>{content}</section>"


def _fact(heading: str, text: str) -> str:
    failed = ' class="bad"' if "NOT PASSED" in text else ""
    return f'<tr><th scope="row">{_text(heading)}</th><td{failed}>{_text(text)}</td></tr>'


def _text(text: str) -> str:
    return escape(visible(text))
