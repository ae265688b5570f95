"""`fedgram status`: the status of a store."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedgram.cli.output_files import Force, check_free
from fedgram.cli.publish import site_tables, validated
from fedgram.cli.store_options import NOT_RIGHT, Json, StoreFolder, check_outside, existing
from fedgram.core import terminal
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.hashing import readable, short
from fedgram.core.terminal import human_size, one_line
from fedgram.exchange.pages.store_status import FIRST, NONE, others, status_page
from fedgram.exchange.pages.store_status import status as status_of
from fedgram.exchange.store.saved_total import problems


def status(
    store: StoreFolder,
    html: Annotated[Path | None, typer.Option(help="Also write it as one page that works offline.")] = None,
    sites: Annotated[
        bool | None,
        typer.Option("--sites/--no-sites", help="Predict each party by the others' model. Default: for the page."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show the parties of a store with samples and keys, missing parties, and whether the ledger is whole.

    Exit code 0 if it is, 1 if an entry is missing or changed, or the index contradicts it.

    Examples:
      fedgram status store/ --html status.html

    """
    kept = existing(store)
    if html is not None:
        check_outside("--html", html, store)
        check_free("--html", html, force=force)
    if sites is None:  # with a damaged ledger there is no total to compare with, and the page says so
        sites = None if html is not None and not problems(kept) else False
    errors = validated(kept, wanted=sites)
    found = status_of(kept, errors)
    if html is not None:
        with writing(html):
            replace_file(html, status_page(found, kept.log()).encode())
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found)
        for table in site_tables(kept, errors):
            terminal.console().print(table)
        if html is not None:
            terminal.console(soft_wrap=True, highlight=False).print(one_line(f"wrote {html}"))
    if found["ledger"]["problems"]:
        raise typer.Exit(NOT_RIGHT)


def _show(found: dict[str, Any]) -> None:
    console = terminal.console(highlight=False, soft_wrap=True)
    study = found["study"]
    console.print(
        one_line(f"study {study['name']} {readable(study['fingerprint'])}, coordinator's key {found['coordinator']}")
    )
    console.print(f"{found['parties']:,} parties, {found['samples']:,} samples, {human_size(found['bytes'])}")
    smallest = ["smallest class"] if found["classes"] else []  # a number has no classes
    table = Table("party", "samples", *smallest, "size", "joined", "key", box=None, header_style="bold")
    for column in table.columns[:-1]:  # names, figures and times stay whole
        column.no_wrap, column.overflow = True, "ignore"
    for each in found["contributions"]:
        name = each["party"] + (f" ({each['summaries']:,} summaries)" if each["kind"] == "combined" else "")
        figures = (
            f"{each['samples']:,}",
            *([f"{each['smallest_cell']:,}"] if smallest else ()),
            human_size(each["bytes"]),
            each["joined"],
            each["key"],
        )
        table.add_row(one_line(name), *figures)
    console.print(table)
    if any(each["key"] in (FIRST, NONE) for each in found["contributions"]):
        console.print("keys that the study does not list came with the first file: trust them no more than its sender")
    for what, names in others(found):
        console.print(one_line(f"{what}: {names}"))
    if study["agreement"] != study["genesis"]:
        console.print(f"agreement {readable(study['agreement'])}, at the beginning {readable(study['genesis'])}")
    for each in found["amendments"]:
        console.print(one_line(f"amendment {each['number']}: {each['text']}"))
    for each in found["publications"][-3:]:
        console.print(
            f"published version {each['version']}: {each['method']}, {each['samples']:,} samples, {each['time']}"
        )
    ledger = found["ledger"]
    console.print(f"ledger: {ledger['entries']:,} entries, head {short(ledger['head'])}")
    for problem in ledger["problems"]:
        console.print(f"[red]{one_line(problem)}[/red]")
