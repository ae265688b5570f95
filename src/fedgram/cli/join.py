"""`fedgram join`: the coordinator takes files in."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.stores import Json, StoreFolder, Wait, opened
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.hashing import short
from fedgram.core.progress import count_bar
from fedgram.core.terminal import one_line


def join(
    store: StoreFolder,
    paths: Annotated[list[Path], typer.Argument(metavar="FILES", help="Files that parties sent.", show_default=False)],
    replace: Annotated[
        bool, typer.Option("--replace", help="Let another file of a party that is in take its place.")
    ] = False,
    study: Annotated[
        Path | None, typer.Option(help="The study, for a new store. Default: the one in the first summary.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The coordinator's private key, for a new store. Default: a fresh one.", show_default=False),
    ] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Check files that parties sent, keep them, and add them up: summaries, combined ones, and answers to a round.

    A file that is in already changes nothing. One that is refused is named, and the others are taken. Each that joins
    gets a signed receipt in the store's folder `receipts`, to be sent back.

    Exit code 0 if all are in, 2 if one was refused, or if the store contradicts itself: then nothing is taken.

    Examples:
      fedgram join store/ north.fgm south.fgm east.fgm

      fedgram join store/ north-corrected.fgm --replace

    """
    if store.suffix == ".fgm":
        raise InvalidParameter(f"{store} is a file's name: name the store's folder first, then the files that join")
    kept = opened(store, wait=wait, study=study, key=key)
    with count_bar("joining", len(paths), None if len(paths) > 1 else False, transient=True) as advance:
        found = kept.join(*paths, replace=replace, progress=advance)
    if as_json:
        typer.echo(json.dumps({"files": [asdict(each) | {"receipt": _text(each.receipt)} for each in found]}))
    else:
        console, errors = terminal.console(soft_wrap=True), terminal.console(stderr=True, soft_wrap=True)
        for each in found:
            if each.outcome == "refused":
                errors.print(f"[red]error:[/] {one_line(each.why)}", highlight=False)
            else:
                receipt = "" if each.receipt is None else f", receipt {each.receipt}"
                said = f"{each.party}: {each.outcome}, {each.samples:,} samples, {short(each.digest)}{receipt}"
                console.print(one_line(said), highlight=False)
    if any(each.outcome == "refused" for each in found):
        raise typer.Exit(2)


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
