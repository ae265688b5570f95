"""`fedgram data`: the list of data sets, facts about one, and its download."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli import Commands
from fedgram.core import terminal
from fedgram.data.published import catalog
from fedgram.data.published.catalog import Info

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Data sets by name: list them, fetch one, look at one.",
)

Name = Annotated[str, typer.Argument(help="Name of a data set, as in `fedgram data list`.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]


@app.command("list", epilog="Example: [bold]fedgram data list --json[/bold]")
def list_(as_json: Json = False) -> None:
    """List the data sets that have a name, and whether each is on this machine."""
    infos = [catalog.info(name) for name in catalog.names()]
    if as_json:
        typer.echo(json.dumps([asdict(info) for info in infos]))
        return
    table = Table("name", "what", box=None, header_style="bold")
    for title in ("train", "test", "classes", "MB to fetch"):
        table.add_column(title, justify="right")
    table.add_column("here")
    for info in infos:
        here = "[green]yes[/green]" if info.ready else "no"
        size = f"{info.bytes_to_fetch / 1e6:.0f}"
        table.add_row(info.name, info.about, f"{info.train:,}", f"{info.test:,}", str(info.classes), size, here)
    terminal.console().print(table)


@app.command(
    epilog="Examples: [bold]fedgram data fetch cifar10[/bold]; without network, place the archive that "
    "[bold]fedgram data info cifar10[/bold] names in the folder it names, and run the same command."
)
def fetch(name: Name, as_json: Json = False) -> None:
    """Bring a data set into the cache and verify it; what is there already is only verified."""
    _show(catalog.fetch(name), as_json)


@app.command(epilog="Example: [bold]fedgram data info mnist[/bold]")
def info(name: Name, as_json: Json = False) -> None:
    """Show facts about a data set, its source, and its place on this machine."""
    _show(catalog.info(name), as_json)


def _show(facts: Info, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(facts)))
        return
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("name", facts.name)
    table.add_row("what", facts.about)
    table.add_row("samples", f"{facts.train:,} for training, {facts.test:,} for testing, {facts.classes} classes")
    for source in facts.sources:
        table.add_row("source", escape(source))
    if facts.downloads is not None:
        table.add_row("archives in", escape(facts.downloads))
    if facts.folder is None:
        table.add_row("here", "yes" if facts.ready else f"no; get it with: fedgram data fetch {facts.name}")
    else:
        table.add_row("here", f"{escape(facts.folder)} ({terminal.human_size(facts.bytes_on_disk or 0)})")
        table.add_row("fingerprint", facts.fingerprint)
    terminal.console().print(table)
