"""A receipt or a certificate as one HTML page that works offline and prints well."""

from html import escape
from importlib.resources import files
from string import Template

from fedgram.core.terminal import visible
from fedgram.exchange.store.statements import Statement


def statement_page(statement: Statement) -> str:
    """Return the page of a receipt or certificate as HTML."""
    template = files("fedgram.exchange.pages").joinpath("assets", "statement.html").read_text(encoding="utf-8")
    sentences = "".join(
        f"<section><h2>{heading}</h2><p>{_text(text)}</p></section>"
        if heading
        else f'<p class="said">{_text(text)}</p>'
        for heading, text in statement.sentences()
    )
    facts = "".join(
        f'<tr><th scope="row">{_text(heading)}</th><td>{_text(text)}</td></tr>' for heading, text in statement.facts()
    )
    return Template(template).substitute(title=_text(statement.title), sentences=sentences, facts=facts)


def _text(text: str) -> str:
    """Return a text escaped for HTML: names come from others' files."""
    return escape(visible(text))
