"""Checks before commands write: never over their own input, nor over an earlier file without --force."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedgram.core.errors import InvalidParameter
from fedgram.exchange.store.delivery import write_again

Force = Annotated[bool, typer.Option("--force", help="Write over an earlier file that holds something else.")]


def check_output(option: str, target: Path, *inputs: Path | None) -> None:
    """Raise if a command would write over a file that it reads, under any name, or into a folder that is not there."""
    folder = target.absolute().parent
    if not folder.is_dir():
        raise InvalidParameter(f"{option}: cannot write {target}: {folder} is not a folder; make it, or give another")
    for given in inputs:
        if given is not None and target.exists() and given.exists() and target.samefile(given):
            raise InvalidParameter(
                f"{option} {target} is {given} itself, which would be overwritten: give another name"
            )


def check_free(option: str, target: Path, *, force: bool) -> None:
    """Raise for an earlier file, or a folder with files, unless `force` is set."""
    if force or not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    there = "has files in it" if target.is_dir() else "exists"
    raise InvalidParameter(f"{target} {there}: give another name with {option}, or --force to write over it")


def write_file(target: Path, data: bytes, *, force: bool) -> None:
    """Write an exchanged file; raise if an earlier file holds something else, unless `force` is set."""
    write_again(target, data, force=force)
