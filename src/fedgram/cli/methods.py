"""`fedgram methods`: the list of methods, or one method's hyper-parameters."""

from dataclasses import fields
from typing import Annotated

import typer
from rich.table import Table

from fedgram.core import terminal
from fedgram.core.schema import describe
from fedgram.protocol.named_methods import resolve
from fedgram.protocol.parameters import parameter_types
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
    console.print(_first_line(cls))
    table = Table("parameter", "default", "kind", box=None, pad_edge=False)
    kinds = parameter_types(cls)
    for field in fields(cls):
        table.add_row(field.name, str(field.default), describe(kinds[field.name]))
    console.print(table)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]
