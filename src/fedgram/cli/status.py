"""`fedgram status`: how a store stands."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedgram.cli.outputs import Force, check_free
from fedgram.cli.publish import site_table, validated
from fedgram.cli.stores import NOT_RIGHT, Json, StoreFolder, check_outside, existing, size
from fedgram.core import terminal
from fedgram.core.files import replace_file, writing
from fedgram.core.hashing import readable, short
from fedgram.core.terminal import one_line
from fedgram.exchange.running import problems
from fedgram.exchange.status import LISTED, others
from fedgram.exchange.status import status as status_of
from fedgram.exchange.status_page import status_page


def status(
    store: StoreFolder,
    html: Annotated[Path | None, typer.Option(help="Write a page that needs no network, too.")] = None,
    sites: Annotated[
        bool | None,
        typer.Option("--sites/--no-sites", help="Predict each party by the others' model. Default: for the page."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show who is in, with how many samples and which keys, who is missing, and whether the ledger is whole.

    Exit code 0 if it is, 1 if an entry is missing or changed, or the index says something else.

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
        if errors:
            terminal.console().print(site_table(errors))
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
    console.print(f"{found['parties']:,} parties, {found['samples']:,} samples, {size(found['bytes'])}")
    table = Table("party", "samples", "smallest class", "size", "joined", "key", box=None, header_style="bold")
    for column in table.columns[:-1]:  # names, figures and times stay whole
        column.no_wrap, column.overflow = True, "ignore"
    for each in found["contributions"]:
        name = each["party"] + (f" ({each['summaries']:,} summaries)" if each["kind"] == "combined" else "")
        figures = f"{each['samples']:,}", f"{each['smallest_cell']:,}", size(each["bytes"]), each["joined"], each["key"]
        table.add_row(one_line(name), *figures)
    console.print(table)
    if any(each["key"] != LISTED for each in found["contributions"]):
        console.print("keys that the study does not list are only as good as the way in which the first file came")
    for what, names in others(found):
        console.print(one_line(f"{what}: {names}"))
    for each in found["publications"][-3:]:
        console.print(
            f"published version {each['version']}: {each['method']}, {each['samples']:,} samples, {each['time']}"
        )
    ledger = found["ledger"]
    console.print(f"ledger: {ledger['entries']:,} entries, head {short(ledger['head'])}")
    for problem in ledger["problems"]:
        console.print(f"[red]{one_line(problem)}[/red]")
