"""Arguments, options and checks that the commands of a store share."""

from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.output_files import check_output
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import one_line
from fedgram.exchange.format.fgm import File
from fedgram.exchange.store import seen_head
from fedgram.exchange.store.saved_total import TOTAL
from fedgram.exchange.store.study_store import INDEX, KEY, Store

NOT_RIGHT = 1  # exit code if a check finds something wrong
StoreFolder = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another coordinator changes the store; else stop.")]


def opened(path: Path, *, wait: bool = False, study: Path | None = None, key: Path | None = None) -> Store:
    """Return the store at a path, which need not exist yet."""

    def told(busy: str) -> None:
        errors = terminal.console(stderr=True)
        terminal.fresh_line(errors)
        errors.print(f"waiting: {one_line(busy)}")

    return Store(path, study=study, wait=told if wait else None, key=key)


def existing(path: Path, *, wait: bool = False, study: Path | None = None) -> Store:
    """Return the store at a path, after finishing or undoing a killed command.

    Raises if it does not exist, or is of another study than a given one.
    """
    store = opened(path, wait=wait, study=study)
    if store.is_new:
        raise InvalidParameter(f"{path} is not a store: fedgram join makes a store from the first files")
    store.finish_interrupted()
    return store


def check_outside(option: str, target: Path, store: Path) -> None:
    """Raise if a command would write over a store's index, key or total, or the file beside it."""
    check_output(option, target, *(store / name for name in (INDEX, KEY, TOTAL)), seen_head.path_of(store))


def check_kind(file: File, *kinds: str, remedy: str) -> None:
    """Raise for a file of another kind: that is wrong usage, not a fault of the store."""
    if file.header.kind not in kinds:
        wanted = " or ".join(f"a {'publication' if kind == 'global' else kind}" for kind in kinds)
        raise InvalidParameter(f"{file.name} is a {file.header.kind} file, not {wanted}: {remedy}")
