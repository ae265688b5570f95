"""`fedgram flower`: apps and test certificates for Flower."""

from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.run import split_settings
from fedgram.errors import MissingExtra

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Run across machines with Flower: write an app, make keys to try it with.",
)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.")],
    method: Annotated[str, typer.Option(help="Which method; see [b]fedgram methods[/].")] = "afl",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; repeatable."),
    ] = None,
) -> None:
    """Write a Flower app that needs no code: a commented pyproject.toml.

    Examples:
      fedgram flower new study --method fedhip

      fedgram flower new study --method afl --set gamma=10

    """
    from fedgram.engines.flower.project import write_app

    made = write_app(folder, method, split_settings(set_ or []))
    typer.echo(f"{made / 'pyproject.toml'}: choose there what to run, then: flwr run {made} CONNECTION")


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.")],
    node: Annotated[list[str] | None, typer.Option(help="Name of a node that gets keys; repeatable.")] = None,
    host: Annotated[str, typer.Option(help="Address at which nodes reach the SuperLink.")] = "127.0.0.1",
) -> None:
    """Make certificates and keys to try TLS and SuperNode authentication with. They are good for 30 days.

    Example:
      fedgram flower certificates keys --node hospital-a --node hospital-b

    """
    try:
        from fedgram.engines.flower.certificates import make_certificates
    except ImportError as error:
        raise MissingExtra(
            f"certificates need the 'flower' extra ({error.name} is missing): pip install 'fedgram[flower]'"
        ) from error
    for path in make_certificates(folder, host=host, nodes=node or []):
        typer.echo(path)
