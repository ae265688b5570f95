"""A receipt or a certificate as one HTML page that works offline and prints well."""

from string import Template

from fedgram.exchange.pages.page_parts import asset, escaped
from fedgram.exchange.store.statements import Statement


def statement_page(statement: Statement) -> str:
    """Return the page of a receipt or certificate as HTML."""
    template = asset("statement.html")
    sentences = "".join(
        f"<section><h2>{heading}</h2><p>{escaped(text)}</p></section>"
        if heading
        else f'<p class="said">{escaped(text)}</p>'
        for heading, text in statement.sentences()
    )
    facts = "".join(
        f'<tr><th scope="row">{escaped(heading)}</th><td>{escaped(text)}</td></tr>'
        for heading, text in statement.facts()
    )
    return Template(template).substitute(title=escaped(statement.title), sentences=sentences, facts=facts)
