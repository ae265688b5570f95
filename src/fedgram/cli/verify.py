"""`fedgram verify`: what a store or a certificate states, computed again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.stores import NOT_RIGHT, Json, StoreFolder, check_kind, existing
from fedgram.core import terminal
from fedgram.core.errors import Mismatch
from fedgram.core.hashing import short
from fedgram.core.progress import spinner
from fedgram.core.terminal import one_line
from fedgram.exchange import files
from fedgram.exchange.running import problems
from fedgram.exchange.verification import check_total
from fedgram.exchange.verification import verify as verified


def verify(
    store: StoreFolder,
    certificate: Annotated[
        Path | None, typer.Argument(help="A certificate of a removal. Default: the store itself.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Add up the store's files anew, and compare: with what a certificate states, or with the running total.

    Exit code 0 if all is right, 1 if not.

    Examples:
      fedgram verify store/ south-removed.fgm

      fedgram verify store/

    """
    kept = existing(store)
    file = None if certificate is None else files.read(certificate)
    if file is not None:
        check_kind(file, "certificate", remedy="give what fedgram remove wrote, such as north-removed.fgm")
    wrong, right = [], []
    try:
        with spinner("adding up"):
            if file is not None:
                right = verified(kept, file)
            else:
                wrong += problems(kept)
                if not wrong:  # there is no total to compare with where the ledger is damaged
                    right = [f"the {len(kept.contributions()):,} files add up to the total, {short(check_total(kept))}"]
    except Mismatch as error:
        wrong.append(str(error))
    if as_json:
        typer.echo(json.dumps({"right": right, "wrong": wrong}))
    console, errors = terminal.console(soft_wrap=True, highlight=False), terminal.console(stderr=True, soft_wrap=True)
    for text in () if as_json else right:
        console.print(one_line(text))
    for text in wrong:
        errors.print(f"[red]error:[/] {one_line(text)}", highlight=False)
    if wrong:
        raise typer.Exit(NOT_RIGHT)
