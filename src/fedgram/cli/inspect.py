"""`fedgram inspect`: the passport of an exchanged file, for whoever must decide whether it may be sent or used."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli.outputs import Force, check_free, check_output
from fedgram.core import terminal
from fedgram.core.files import replace_file, writing
from fedgram.exchange import files
from fedgram.exchange.coordinator import check_agreed
from fedgram.exchange.page import passport_page
from fedgram.exchange.passport import Passport
from fedgram.studies import Study

StudyOption = Annotated[
    Path | None,
    typer.Option("--study", help="The study that you agreed on: a file of another one is refused.", show_default=False),
]


def inspect(
    file: Annotated[Path, typer.Argument(help="A .fgm file.", show_default=False)],
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write it as one page, to be printed and signed.")
    ] = None,
    study: StudyOption = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")] = False,
) -> None:
    """Show the passport of a file: whose it is, what it holds, which thresholds it passed, what it reveals.

    The file is checked like any that a stranger sends, and its signature must fit. Where its study names a coordinator,
    rounds and published models must be signed by it.

    Examples:
      fedgram inspect north.fgm

      fedgram inspect north.fgm --html north.html

    """
    read = files.read(file)
    if study is not None:
        check_agreed(read, Study.read(study))
    passport = Passport.of(read)
    if html is not None:
        check_output("--html", html, file)
        check_free("--html", html, force=force)
        with writing(html):
            replace_file(html, passport_page(passport).encode(), mode=0o644)
    if as_json:
        typer.echo(json.dumps(passport.fields()))
        return
    show(passport)
    if html is not None:
        terminal.echo(f"wrote {html}")


def show(passport: Passport) -> None:
    """Print a passport."""
    console = terminal.console(highlight=False)
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for heading, text in passport.facts():
        facts.add_row(heading, escape(text))
    console.print(facts)
    if passport.classes:
        classes = Table("class", "samples", box=None, header_style="bold", pad_edge=False)
        classes.columns[1].justify = "right"
        for label, count in passport.classes.items():
            classes.add_row(escape(label), f"{count:,}")
        console.print()
        console.print(classes)
    if passport.columns:
        columns = Table("column", "kind", "what", "missing", box=None, header_style="bold", pad_edge=False)
        columns.columns[3].justify = "right"
        for column in passport.columns:
            missing = "–" if column.missing is None else f"{column.missing:,}"
            columns.add_row(escape(column.name), column.kind, escape(column.details), missing)
        console.print()
        console.print(columns)
    console.print()
    console.print(escape(" ".join(passport.reveals)))
