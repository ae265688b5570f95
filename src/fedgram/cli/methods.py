"""`fedgram methods`: the list of methods, or one method's hyper-parameters."""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Annotated

import typer
from rich.table import Table

from fedgram.core import terminal
from fedgram.core.schema import describe
from fedgram.experiments.variants import show
from fedgram.protocol.method import Method
from fedgram.protocol.named_methods import resolve
from fedgram.protocol.parameters import parameter_notes, parameter_types
from fedgram.protocol.registry import registry


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method (a name, a file.py or module:Class), to see its hyper-parameters.")
    ] = None,
) -> None:
    """List the methods, or one method's hyper-parameters.

    Examples:
      fedgram methods

      fedgram methods afl

    """
    console = terminal.console()
    if name is None:
        table = Table("method", "models", "what it is", box=None, pad_edge=False)
        for known, cls in registry.items():
            table.add_row(known, "personal" if cls.personal else "global", _first_line(cls))
        console.print(table)
        return
    cls = resolve(name)
    console.print(_first_line(cls), markup=False)
    console.print()
    table = Table("parameter", "what it is", box=None, pad_edge=False)
    for default, about in _parameters(cls):
        table.add_row(terminal.one_line(default), terminal.one_line(about))
    console.print(table)


def _parameters(cls: type[Method]) -> Iterator[tuple[str, str]]:
    """Yield each hyper-parameter with its default, and its description with the values that it takes."""
    kinds, notes = parameter_types(cls), parameter_notes(cls)
    for field in fields(cls):
        default = "" if field.default is MISSING else f" = {show(field.default)}"
        kind = f"Takes {describe(kinds[field.name])}."
        yield f"{field.name}{default}", " ".join(filter(None, (notes.get(field.name), kind)))


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]
