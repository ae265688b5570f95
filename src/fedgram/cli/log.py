"""`fedgram log`: the ledger, verified."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli.stores import NOT_RIGHT, Json, StoreFolder, check_kind, existing
from fedgram.core import terminal
from fedgram.core.errors import Mismatch
from fedgram.core.hashing import short
from fedgram.core.terminal import one_line
from fedgram.exchange import files
from fedgram.exchange.ledger import check_head
from fedgram.exchange.running import problems
from fedgram.exchange.store import Store
from fedgram.exchange.verification import STATEMENTS, check_statement

HIDDEN = ("number", "time", "what", "party", "previous", "software", "note")


def log(
    store: StoreFolder,
    expect: Annotated[
        str | None,
        typer.Option(help="A head that the ledger must have, or a receipt, certificate or publication that has it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the ledger, and print what was done: joined, replaced, removed, published.

    Exit code 0 if it is whole, 1 if an entry was changed, moved or taken away, or if something says otherwise: the
    index, a file that the store has signed (total, receipts, publications), or the expected head or file.

    Examples:
      fedgram log store/

      fedgram log store/ --expect receipts/north-2.fgm

    """
    kept = existing(store)
    entries, wrong = kept.log(), problems(kept)
    if expect is not None:
        try:
            _check(kept, expect)
        except Mismatch as error:
            wrong.append(str(error))
    if as_json:
        said = [entry.says | {"hash": entry.hash} for entry in entries]
        typer.echo(json.dumps({"entries": said, "head": entries[-1].hash, "problems": wrong}))
    else:
        table = Table("", "time", "what", "who", "details", box=None, header_style="bold")
        table.columns[-1].overflow = "fold"  # keys stay whole
        for entry in entries:
            about = entry.says
            texts = [str(about.get(name, "")) for name in ("time", "what", "party")]
            table.add_row(str(entry.number), *map(escape, texts), escape(_details(about)))
        console = terminal.console(soft_wrap=True, highlight=False)
        console.print(table)
        console.print(f"head {entries[-1].hash}")
        console.print("the ledger is whole" if not wrong else "")
    errors = terminal.console(stderr=True, soft_wrap=True, highlight=False)
    for text in wrong:
        errors.print(f"[red]error:[/] {one_line(text)}")
    if wrong:
        raise typer.Exit(NOT_RIGHT)


def _details(about: dict[str, Any]) -> str:
    shown = [f"{name} {_short(value)}" for name, value in about.items() if name not in HIDDEN]
    return ", ".join([*shown, *([str(about["note"])] if "note" in about else [])])


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return short(text) if len(text) == 64 else text


def _check(store: Store, expect: str) -> None:
    """Refuse a head that the ledger lacks, or a file that states something else than the ledger."""
    if Path(expect).is_file():
        file = files.read(expect)
        check_kind(file, *STATEMENTS, remedy="give one of these: the coordinator sends them, a receipt of each join")
        check_statement(store, file)
    else:
        check_head(store.log(), expect)
