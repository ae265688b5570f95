"""`fedgram check`: the contract of methods, for a method of the user's own."""

import traceback
import warnings
from inspect import getsourcefile
from pathlib import Path
from typing import Annotated

import typer

from fedgram import checks
from fedgram.cli.options import split_settings
from fedgram.core import terminal
from fedgram.core.terminal import one_line
from fedgram.protocol.method import Method
from fedgram.protocol.named_methods import resolve
from fedgram.protocol.parameters import configured, read_settings


def check(
    method: Annotated[str, typer.Argument(help="A method: your own file.py, module:Class, or a name.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter for the checks; repeatable."),
    ] = None,
) -> None:
    """Check that a method keeps the contract of methods. Exit code 1 if a check fails.

    The checks fit the method to small data, several times. A method that is slow with its defaults names smaller
    settings in `quick`; the checks use those, and --set has the last word.

    Examples:
      fedgram check my_method.py

      fedgram check package.module:Average --set rounds=2

    """
    cls = resolve(method)
    checked = configured(cls, {**cls.quick, **read_settings(cls, split_settings(set_ or []))})
    console = terminal.console(highlight=False, soft_wrap=True)
    failed = 0
    for one in checks.CHECKS:
        # The data are the contract's own, so a warning about them says nothing about the method.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = _fault(one, checked)
        failed += fault is not None
        what = one_line(one.__name__.replace("_", " "))
        console.print(f"[green]passed[/]  {what}" if fault is None else f"[red]failed[/]  {what}: {one_line(fault)}")
    console.print(f"{checked.name}: {len(checks.CHECKS) - failed} of {len(checks.CHECKS)} checks passed", markup=False)
    if failed:
        raise typer.Exit(1)


def _fault(one: checks.Check, method: Method) -> str | None:
    """Return the reason why a check fails, None if it passes."""
    try:
        one(method)
    except AssertionError as found:
        return str(found)
    except Exception as ended:
        error: BaseException = ended
        while error.__cause__ is not None:  # a client's own error, where the run ended with the client's name
            error = error.__cause__
        source = getsourcefile(type(method))
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
        where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
        return f"{type(error).__name__}: {error}{where}"
    return None
