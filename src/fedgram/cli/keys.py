"""`fedgram keys`: a party's key files. The private one signs and opens files, the public one is for the study file."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedgram.cli import Commands
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.exchange.format.header import party_name
from fedgram.exchange.format.key_files import named_by, new_pair, read_public, rotated
from fedgram.secure.signing_keys import PrivateKey

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="A party's keys: make a pair, replace it, or show the public key.",
)
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]


@app.command(epilog="Example: [bold]fedgram keys new north[/bold]")
def new(
    name: Annotated[str, typer.Argument(help="The party's name, as in the study.", show_default=False)],
    folder: Annotated[Path, typer.Option("--out", help="The folder to write them to.")] = Path(),
    as_json: Json = False,
) -> None:
    """Make a party's keys: NAME.key stays with the party, NAME.pub goes into the study file.

    NAME.key signs the party's files and opens files that are sealed to it. Only its owner may read it (mode 600). On
    Windows a mode does not protect a file: keep it in a folder that other users of the machine cannot open. Existing
    keys are never overwritten.
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
    console.print(escape(f"{private}: the private key. Never show it to others, and keep a copy in a safe place."))
    console.print(escape(f"{public}: the public key, for the study file. It may be mailed:"))
    console.print(f"  {key.text}")


@app.command(epilog="Example: [bold]fedgram keys rotate north.key --out new-keys[/bold]")
def rotate(
    file: Annotated[Path, typer.Argument(help="The party's present .key file.", show_default=False)],
    folder: Annotated[Path, typer.Option("--out", help="The folder to write them to.")] = Path("new-keys"),
    as_json: Json = False,
) -> None:
    """Make new keys of a party, and a statement that the present key signs: NAME.rotation, for the coordinator.

    The new key counts after the coordinator's fedgram amend STORE --rotate NAME.rotation. If the present key is lost,
    make new keys with fedgram keys new, and send the .pub file.
    """
    (private, public, statement, *records), rotation = rotated(file, folder)
    if as_json:
        files = {"key": str(private), "pub": str(public), "rotation": str(statement), "records": [*map(str, records)]}
        typer.echo(json.dumps({"party": rotation.party, **files, "public": rotation.key}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    console.print(escape(f"{private}: the new private key. Never show it to others, and keep a copy in a safe place."))
    console.print(escape(f"{public}: the new public key"))
    console.print(escape(f"{statement}: send it to the coordinator; sign with the new key once it has been entered"))
    for record in records:
        console.print(escape(f"{record}: a copy of the record of what you have sent; copy it again if you send more"))


@app.command(epilog="Example: [bold]fedgram keys show north.key[/bold]")
def show(
    file: Annotated[Path, typer.Argument(help="A .key or .pub file.", show_default=False)], as_json: Json = False
) -> None:
    """Show the public key of a key file, and its party."""
    if file.suffix == ".pub":
        name, key = read_public(file)
    else:
        name, key = party_name(named_by(file)), PrivateKey.load(file).public
    if as_json:
        typer.echo(json.dumps({"party": name, "public": key.text}))
    else:
        terminal.console(soft_wrap=True, highlight=False).print(escape(f"{name}  {key.text}"))
