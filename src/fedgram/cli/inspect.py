"""`fedgram inspect`: the passport of an exchanged file, which tells whether it may be sent or used."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli.output_files import Force, check_free, check_output
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter, RefusedMessage
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.terminal import one_line
from fedgram.exchange.format import fgm
from fedgram.exchange.format.coordinator import ABOUT_STORES, check_agreed, receiver_in
from fedgram.exchange.pages.passport import RED, Passport, passport_page
from fedgram.exchange.pages.statement_page import statement_page
from fedgram.exchange.store.statements import Statement
from fedgram.secure.signing_keys import PrivateKey, PublicKey
from fedgram.studies import Study

StudyOption = Annotated[
    Path | None,
    typer.Option("--study", help="The agreed study: a file of another study is refused.", show_default=False),
]


def inspect(
    file: Annotated[Path, typer.Argument(help="A .fgm file.", show_default=False)],
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write it as one page, to be printed and signed.")
    ] = None,
    study: StudyOption = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="The private key that opens a sealed file: the coordinator's.", show_default=False),
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")] = False,
) -> None:
    """Show the passport of a file: its party, its content, the thresholds that it passed, and what it reveals.

    Of a receipt or a certificate it shows what the coordinator states; of a certificate also what it proves.

    The file is checked like a file from a stranger, and its signature must fit. If its study names a coordinator,
    rounds and published models must be signed by it.

    Of a sealed file only the receiver is shown, unless --key is the receiver's private key.

    Examples:
      fedgram inspect north.fgm

      fedgram inspect north.fgm --html north.html

      fedgram inspect north-sealed.fgm --key coordinator.key

    """
    opening = None if key is None else PrivateKey.load(key)
    if opening is None and (receiver := fgm.sealed_to(file)) is not None:
        _show_sealed(file, receiver, html=html, study=study, as_json=as_json)
        return
    read = fgm.read(file, key=opening)
    agreed = None if study is None else Study.read(study)
    changes = [] if agreed is None else check_agreed(read, agreed)
    passport = Statement.of(read, agreed) if read.header.kind in ABOUT_STORES else Passport.of(read, agreed)
    if html is not None:
        check_page(html, file, study, key, force=force)
        write_page(html, passport)
    if as_json:
        typer.echo(json.dumps(passport.fields()))
        return
    if isinstance(passport, Statement):
        _show_statement(passport)
    else:
        show(passport)
    for text in changes:
        terminal.echo(f"since {study}: {text}")
    if html is not None:
        terminal.echo(f"wrote {html}")


def check_page(html: Path, *inputs: Path | None, force: bool) -> None:
    """Raise if a page would be written over a file that the command reads or writes, or over an earlier file."""
    check_output("--html", html, *inputs)
    if html.absolute() in {given.absolute() for given in inputs if given is not None}:
        raise InvalidParameter(f"--html {html} is the file that --out names: give another name")
    check_free("--html", html, force=force)


def write_page(html: Path, passport: Passport | Statement) -> None:
    """Write a passport or a statement as one page."""
    page = statement_page(passport) if isinstance(passport, Statement) else passport_page(passport)
    with writing(html):
        replace_file(html, page.encode(), mode=0o644)


def _show_sealed(file: Path, receiver: PublicKey, *, html: Path | None, study: Path | None, as_json: bool) -> None:
    """Print the receiver of a sealed file; raise if it is not the coordinator of the agreed study."""
    if html is not None:
        raise InvalidParameter(
            f"{file} is sealed to {receiver}, and its passport is inside: give --key with the private key that belongs "
            "to it; the party writes the page with fedgram summarize --html"
        )
    agreed = None if study is None else Study.read(study)
    if agreed is not None and (wanted := receiver_in(agreed)) != receiver:
        raise RefusedMessage(
            f"{file} is sealed to {receiver}, and study {agreed.name!r} names {wanted} as its coordinator's: seal it "
            "with this study"
        )
    size = file.stat().st_size
    if as_json:
        typer.echo(json.dumps({"kind": "sealed", "sealed_to": receiver.text, "size": size}))
        return
    whose = "" if agreed is None else f"the coordinator of study {agreed.name!r}, "
    terminal.echo(f"{file}: sealed to {whose}{receiver}, {size:,} bytes; --key with its private key shows the content")


def _show_statement(statement: Statement) -> None:
    """Print a receipt or a certificate."""
    console = terminal.console(highlight=False)
    console.print(f"[bold]{one_line(statement.title)}[/bold]\n")
    for heading, text in statement.sentences():
        console.print(one_line(f"{heading}: {text}" if heading else text))
    console.print()
    console.print(_facts(statement.facts()))


def _facts(found: Iterable[tuple[str, str]]) -> Table:
    """Return a table of headings and texts."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for heading, text in found:
        facts.add_row(heading, escape(text))
    return facts


def show(passport: Passport) -> None:
    """Print a passport."""
    console = terminal.console(highlight=False)
    console.print(_facts(passport.facts()))
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
    for danger in passport.dangers:
        colour = "bold red" if danger.level == RED else "bold yellow"
        console.print(f"[{colour}]{danger.level.capitalize()}.[/] {escape(danger.text)}")
