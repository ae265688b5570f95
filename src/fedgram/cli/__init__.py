"""The command line. Bad input is one clear line and exit code 2; Ctrl-C is exit code 130.

With `--json` an error is one line of JSON on standard error, too: `{"error": "…"}`.
"""

import json
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from fedgram import __version__
from fedgram.core import terminal
from fedgram.core.errors import FedgramError
from fedgram.core.terminal import one_line

# Commands by user, as `--help` shows them. A command is the function of its name in the module of its name, or the
# commands of that module's `app`.
GROUPS = {
    "Researcher: experiments on one machine": ("run", "compare", "report", "methods", "check", "data"),
    "Party: its own table": ("study", "keys", "summarize", "inspect", "personalize", "predict", "evaluate"),
    "Coordinator: files of many parties, or Flower nodes": (
        *("join", "status", "describe", "publish", "coefficients", "remove"),
        *("amend", "combine", "log", "verify", "flower"),
    ),
}
COMMANDS = {name: group for group, names in GROUPS.items() for name in names}


class Commands(TyperGroup):
    """Commands with a suggestion of the nearest name for a misspelt command.

    Versions of typer and its libraries differ in their own suggestions: some give them twice, some not at all.
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
        if hasattr(module, "app"):
            command: Any = typer.main.get_group(module.app)
            command.name = name
        else:
            alone = typer.Typer(add_completion=False)
            alone.command()(getattr(module, name))
            command = typer.main.get_command(alone)
        command.rich_help_panel = COMMANDS[name]
        return command


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

      fedgram run --data patients.csv --outcome diagnosis --client-column hospital

      fedgram summarize study.toml north.csv --key north.key

      fedgram publish store

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

    def fail(message: str) -> NoReturn:
        if "--json" in sys.argv:
            print(json.dumps({"error": " ".join(message.splitlines())}), file=sys.stderr)
        else:
            errors.print(f"[red]error:[/] {one_line(message)}")
        sys.exit(2)

    warnings.showwarning = show_warning
    try:
        app()  # exits by itself: 2 for wrong usage, 130 for Ctrl-C
    except FedgramError as error:
        fail(str(error))
    except OSError as error:  # a path that the system refuses, wherever it was first looked at
        where = "" if error.filename is None else f"cannot use {_shortened(str(error.filename))}: "
        fail(f"{where}{error.strerror or error}")
    except MemoryError as error:
        fail(f"not enough memory for this: {str(error) or 'use fewer samples or features'}")


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:200]}…"
