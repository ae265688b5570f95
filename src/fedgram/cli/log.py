"""`fedgram log`: the ledger, verified."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli.store_options import NOT_RIGHT, Json, StoreFolder, check_kind, existing
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.hashing import short
from fedgram.core.terminal import one_line
from fedgram.exchange.format import fgm
from fedgram.exchange.store.ledger import check_head
from fedgram.exchange.store.saved_total import problems
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import STATEMENTS, check_statement

HIDDEN = ("number", "time", "what", "party", "previous", "software", "note", "amendment")


def log(
    store: StoreFolder,
    expect: Annotated[
        str | None,
        typer.Option(help="A head that the ledger must have, or a receipt, certificate or publication with it."),
    ] = None,
    accept_restored: Annotated[
        bool,
        typer.Option("--accept-restored", help="Go on with an older backup; the ledger says so from then on."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify the ledger, and print its entries: joined, replaced, removed, published.

    Exit code 0 if it is whole, 1 if an entry was changed, moved or taken away, or if something contradicts it: the
    index, a file that the store has signed (total, receipts, publications), the file store.head beside the store, or
    the expected head or file.

    A store that was restored from an older backup changes nothing until --accept-restored is given. Then repeat
    the changes made since the backup, removals first.

    Examples:
      fedgram log store/

      fedgram log store/ --expect receipts/north-2.fgm

      fedgram log store/ --accept-restored

    """
    kept = existing(store)
    accepted = kept.accept_restored() if accept_restored else None
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
        if accepted is not None:
            console.print(
                f"accepted as entry {accepted.number}: repeat the changes up to entry "
                f"{accepted.detail('seen')}, removals first; their certificates and receipts say what they were"
            )
    errors = terminal.console(stderr=True, soft_wrap=True, highlight=False)
    for text in wrong:
        errors.print(f"[red]error:[/] {one_line(text)}")
    if wrong:
        raise typer.Exit(NOT_RIGHT)


def _details(about: dict[str, Any]) -> str:
    shown = [f"{name} {_short(value)}" for name, value in about.items() if name not in HIDDEN]
    amendment = about.get("amendment")
    if isinstance(amendment, dict):  # its signatures are in the JSON
        shown += [f"{name} {_short(amendment[name])}" for name in ("key", "contribution") if amendment.get(name)]
    return ", ".join([*shown, *([str(about["note"])] if "note" in about else [])])


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return short(text) if len(text) == 64 else text


def _check(store: Store, expect: str) -> None:
    """Raise if the ledger lacks a head, or a file contradicts the ledger."""
    if Path(expect).is_file():
        file = fgm.read(expect)
        check_kind(file, *STATEMENTS, remedy="give one of these: the coordinator sends them, a receipt of each join")
        check_statement(store, file)
    elif re.fullmatch("[0-9a-fA-F]+", expect.strip()):
        check_head(store.log(), expect)
    else:
        raise InvalidParameter(
            f"--expect: expected a head of the ledger or a file with one, got {expect[:80]!r}, which is neither; give "
            "a receipt, certificate or publication"
        )
