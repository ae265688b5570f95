"""`fedgram join`: files of parties join a store."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.store_options import Json, StoreFolder, Wait, opened
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.hashing import short
from fedgram.core.progress_bars import count_bar
from fedgram.core.terminal import one_line

ENDING = ".fgm"


def join(
    store: StoreFolder,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Files that parties sent, or folders of .fgm files.", show_default=False),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a party's new file replace its file in the store.")
    ] = False,
    study: Annotated[
        Path | None, typer.Option(help="The study, for a new store. Default: that in the first summary.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The coordinator's private key, for a new store. Default: a new key.", show_default=False),
    ] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Check, keep and add up files from parties: summaries, combined files, and answers to a round.

    A file that is in already changes nothing. A refused file is named, and the others join. Each file that joins gets a
    signed receipt in the store's folder `receipts`, to be sent back.

    Of a folder all .fgm files join, in the order of their names, but not those in folders inside it.

    Exit code 0 if all are in, 2 if a file was refused, or if the store contradicts itself: then no file joins.

    Examples:
      fedgram join store/ north.fgm south.fgm east.fgm

      fedgram join store/ inbox/

      fedgram join store/ north-corrected.fgm --replace

    """
    if store.suffix == ENDING:
        raise InvalidParameter(f"{store} is a file's name: name the store's folder first, then the files that join")
    files = [file for path in paths for file in _files(path)]
    kept = opened(store, wait=wait, study=study, key=key)
    with count_bar("joining", len(files), None if len(files) > 1 else False, transient=True) as advance:
        found = kept.join(*files, replace=replace, progress=advance)
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


def _files(path: Path) -> list[Path]:
    """Return a file, or the .fgm files of a folder, whose number is printed."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == ENDING and file.is_file())
    if not found:
        raise InvalidParameter(f"{path}: expected a folder with {ENDING} files, got one without; name the files")
    terminal.echo(f"{path}: {len(found):,} {ENDING} file{'' if len(found) == 1 else 's'}", err=True)
    return found


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
