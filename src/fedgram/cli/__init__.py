"""The command line. Bad input is one clear line and exit code 2; Ctrl-C is exit code 130."""

import sys
import warnings

import typer

from fedgram import __version__
from fedgram.cli import data, flower, keys, study
from fedgram.cli.combine import combine
from fedgram.cli.compare import compare
from fedgram.cli.evaluate import evaluate
from fedgram.cli.inspect import inspect
from fedgram.cli.join import join
from fedgram.cli.log import log
from fedgram.cli.methods import methods
from fedgram.cli.personalize import personalize
from fedgram.cli.predict import predict
from fedgram.cli.publish import publish
from fedgram.cli.remove import remove
from fedgram.cli.report import report
from fedgram.cli.run import run
from fedgram.cli.status import status
from fedgram.cli.summarize import summarize
from fedgram.cli.verify import verify
from fedgram.core import terminal
from fedgram.core.errors import FedgramError
from fedgram.core.terminal import one_line

app = typer.Typer(
    name="fedgram", no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)
app.command()(run)
app.command()(methods)
app.command()(compare)
app.command()(report)
app.command()(predict)
app.command()(summarize)
app.command()(inspect)
app.command()(personalize)
app.command()(evaluate)
for _command in (join, status, publish, remove, combine, log, verify):
    app.command()(_command)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")
app.add_typer(study.app, name="study")
app.add_typer(keys.app, name="keys")


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
