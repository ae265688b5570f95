"""The descriptives of a study ("Table 1") as one HTML page that works offline."""

from collections.abc import Iterable, Sequence

from fedgram.exchange.pages.page_parts import escaped, section, source, table_of, whole_page
from fedgram.exchange.store.ledger import Entry
from fedgram.report.result_tables import Table
from fedgram.studies.study import Study


def descriptives_page(
    study: Study, tables: Iterable[tuple[Table, Sequence[str]]], *, entry: Entry | None = None
) -> str:
    """Return the page of descriptives as HTML.

    Parameters
    ----------
    study
        The study.
    tables
        Each table with the notes below it. Its caption is the heading.
    entry
        The last entry of the store's ledger; None for figures that were not made from a store.

    """
    title = f"Descriptives of {study.name}"
    return whole_page(
        title,
        [
            f"<h1>{escaped(title)}</h1>",
            *(section(table.caption, _shown(table) + _notes(notes)) for table, notes in tables if table.rows),
            source(study, entry),
        ],
        "results.css",
    )


def _shown(table: Table) -> str:
    heads = ["", *map(escaped, table.full_heads)]
    lines = [[escaped(entry.text) for entry in row] for row in table.rows]
    return table_of(heads, lines, range(1, len(heads)), label=table.caption)


def _notes(notes: Sequence[str]) -> str:
    return f"<ol>{''.join(f'<li>{escaped(note)}</li>' for note in notes)}</ol>" if notes else ""
