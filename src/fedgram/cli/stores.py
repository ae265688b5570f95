"""What the commands of a store share."""

from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.outputs import check_output
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import one_line
from fedgram.exchange.files import File
from fedgram.exchange.running import TOTAL
from fedgram.exchange.store import INDEX, KEY, Store

NOT_RIGHT = 1  # exit code of what was checked, and found not to be right
StoreFolder = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another coordinator changes the store; else stop.")]


def opened(path: Path, *, wait: bool = False, study: Path | None = None, key: Path | None = None) -> Store:
    """Return a store, which only joining may make."""

    def told(busy: str) -> None:
        errors = terminal.console(stderr=True)
        terminal.fresh_line(errors)
        errors.print(f"waiting: {one_line(busy)}")

    return Store(path, study=study, wait=told if wait else None, key=key)


def existing(path: Path, *, wait: bool = False) -> Store:
    """Return a store that is there."""
    store = opened(path, wait=wait)
    if store.is_new:
        raise InvalidParameter(f"{path} is not a store: fedgram join makes one of the first files that come")
    return store


def check_outside(option: str, target: Path, store: Path) -> None:
    """Refuse to write over a store's index, key or total."""
    check_output(option, target, *(store / name for name in (INDEX, KEY, TOTAL)))


def check_kind(file: File, *kinds: str, remedy: str) -> None:
    """Refuse a file of another kind as wrong usage: it says nothing about whether the store is right."""
    if file.header.kind not in kinds:
        wanted = " or ".join(f"a {'publication' if kind == 'global' else kind}" for kind in kinds)
        raise InvalidParameter(f"{file.name} is a {file.header.kind} file, not {wanted}: {remedy}")


def size(count: int) -> str:
    """Return a number of bytes for people.

    >>> size(6_553_600)
    '6.6 MB'
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"
