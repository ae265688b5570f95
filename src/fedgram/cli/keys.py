"""`fedgram keys`: a party's two keys. The private one signs what it sends, the public one is for the study file."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedgram.cli import Commands
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.exchange.header import party_name
from fedgram.exchange.keys import PrivateKey
from fedgram.exchange.pairs import named_by, new_pair, read_public

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="A party's keys: make a pair, or show the public one.",
)
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]


@app.command(epilog="Example: [bold]fedgram keys new north[/bold]")
def new(
    name: Annotated[str, typer.Argument(help="The party's name, as in the study.", show_default=False)],
    folder: Annotated[Path, typer.Option("--in", help="The folder to write them to.")] = Path(),
    as_json: Json = False,
) -> None:
    """Make a party's keys: NAME.key stays with the party and signs, NAME.pub goes to whoever keeps the study file.

    Existing keys are never overwritten.
    """
    if name in (".", "..") or set(name) & set("/\\"):
        raise InvalidParameter(
            f"{name!r} is a path, and a party's name is wanted: give the name alone, and the folder with --in"
        )
    private, public, key = new_pair(name, folder)
    if as_json:
        typer.echo(json.dumps({"party": name, "key": str(private), "pub": str(public), "public": key.text}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    console.print(escape(f"{private}: the private key. Keep it, show it to nobody, and keep a copy in a safe place."))
    console.print(escape(f"{public}: the public key, for the study file. It may be mailed, or read aloud:"))
    console.print(f"  {key.text}")


@app.command(epilog="Example: [bold]fedgram keys show north.key[/bold]")
def show(
    file: Annotated[Path, typer.Argument(help="A .key or .pub file.", show_default=False)], as_json: Json = False
) -> None:
    """Show the public key of a key file, and whose it is."""
    if file.suffix == ".pub":
        name, key = read_public(file)
    else:
        name, key = party_name(named_by(file)), PrivateKey.load(file).public
    if as_json:
        typer.echo(json.dumps({"party": name, "public": key.text}))
    else:
        terminal.console(soft_wrap=True, highlight=False).print(escape(f"{name}  {key.text}"))
