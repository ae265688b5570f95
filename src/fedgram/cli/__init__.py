"""The command line. Bad input is one clear line and exit code 2; Ctrl-C is exit code 130."""

import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedgram import __version__
from fedgram.core import terminal
from fedgram.core.errors import FedgramError
from fedgram.core.terminal import one_line

# In the order in which `--help` shows them. A command is the function of its name in the module of its name, or the
# commands of that module's `app`.
COMMANDS = (
    *("run", "methods", "compare", "report", "predict", "summarize", "inspect", "personalize", "evaluate"),
    *("join", "status", "publish", "remove", "combine", "log", "verify", "data", "flower", "study", "keys"),
)


class Commands(TyperGroup):
    """Commands of which the nearest is suggested where a name is misspelt.

    Versions of typer and of what is below it differ in whether they suggest a command: some do twice, some not at all.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"suggest_commands": False})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        near = () if args[0] in self.commands else get_close_matches(args[0], self.commands)
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)


class OnDemand(Commands):
    """Commands whose modules are imported when they are asked for; importing all of them takes twice as long."""

    def __init__(self, **options: Any) -> None:
        options["commands"] = {name: TyperCommand(name) for name in COMMANDS}  # stand-ins, for lists and suggestions
        super().__init__(**options)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a command by its name."""
        if name not in COMMANDS:
            return None
        module = import_module(f"fedgram.cli.{name}")
        if not hasattr(module, "app"):
            alone = typer.Typer(add_completion=False)
            alone.command()(getattr(module, name))
            return typer.main.get_command(alone)
        group = typer.main.get_group(module.app)
        group.name = name
        return group


app = typer.Typer(
    name="fedgram",
    cls=OnDemand,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Federated learning in one message: exact global and personal models from sums of moments.

    Examples:
      fedgram run --method afl --data digits --clients 20 --partition dirichlet:0.1

      fedgram methods

    """
    if show:
        typer.echo(f"fedgram {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    sys.stdout, sys.stderr = terminal.unbroken(sys.stdout), terminal.unbroken(sys.stderr)
    errors = terminal.console(stderr=True, soft_wrap=True, highlight=False)

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        terminal.fresh_line(errors)
        errors.print(f"[yellow]warning:[/] {one_line(message)}")

    warnings.showwarning = show_warning
    try:
        app()  # exits by itself: 2 for wrong usage, 130 for Ctrl-C
    except FedgramError as error:
        errors.print(f"[red]error:[/] {one_line(error)}")
        sys.exit(2)
    except OSError as error:  # a path that the system refuses, wherever it was first looked at
        where = "" if error.filename is None else f"cannot use {_shortened(str(error.filename))}: "
        errors.print(f"[red]error:[/] {one_line(f'{where}{error.strerror or error}')}")
        sys.exit(2)
    except MemoryError as error:
        errors.print(f"[red]error:[/] not enough memory for this: {one_line(error) or 'use fewer samples or features'}")
        sys.exit(2)


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:200]}…"
