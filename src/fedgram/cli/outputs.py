"""Where commands may write: nothing is written over what a command reads, nor over an earlier file without --force."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedgram.core.errors import FedgramError, InvalidParameter
from fedgram.exchange import files

Force = Annotated[bool, typer.Option("--force", help="Write over an earlier file that holds something else.")]


def check_output(option: str, target: Path, *inputs: Path | None) -> None:
    """Refuse to write over one of the files that a command reads, by whatever name."""
    for given in inputs:
        if given is not None and target.exists() and given.exists() and target.samefile(given):
            raise InvalidParameter(
                f"{option} {target} is {given} itself, which would be overwritten: give another name"
            )


def check_free(option: str, target: Path, *, force: bool) -> None:
    """Refuse to write over an earlier file, or into a folder with files, unless `force` is given."""
    if force or not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    there = "has files in it" if target.is_dir() else "exists"
    raise InvalidParameter(f"{target} {there}: give another name with {option}, or --force to write over it")


def write_file(target: Path, data: bytes, *, force: bool) -> None:
    """Write an exchanged file; an earlier one stays unless it holds the same, signed or not, or `force` is given."""
    if target.exists() and not force and _digest(target) != files.read(data, checked=True).digest:
        raise InvalidParameter(
            f"{target} exists and holds something else: give another name with --out, or --force to write over it"
        )
    files.write(target, data)


def _digest(path: Path) -> str | None:
    """Return the digest of an exchanged file, None of any other."""
    try:
        return files.read(path, checked=True).digest
    except FedgramError:
        return None
