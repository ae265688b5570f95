"""`fedgram flower`: apps, nodes and test certificates for Flower."""

from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli import Commands
from fedgram.cli.options import split_settings
from fedgram.core.extras import needing
from fedgram.core.terminal import echo

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Run across machines with Flower: write an app, start a node, make keys to try it with.",
)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.")],
    method: Annotated[
        str | None,
        typer.Option(help="Which method; see [b]fedgram methods[/]. Else the study's, or afl.", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; repeatable."),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="A study file that all nodes have agreed on; the app carries it.", show_default=False),
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(metavar="NAME.pub", help="Public key of the client NAME, who must have it; repeatable."),
    ] = None,
) -> None:
    """Write a Flower app that needs no code: a commented pyproject.toml.

    Examples:
      fedgram flower new study --method fedhip

      fedgram flower new study --method afl --set gamma=10

      fedgram flower new app --study study.toml

      fedgram flower new study --key keys/ward-1.pub --key keys/ward-2.pub

    """
    from fedgram.engines.flower.project import write_app

    lines = []
    if key:
        with needing("flower", "reading keys"):
            from fedgram.engines.flower.node_keys import key_line
        lines = [key_line(file) for file in key]
    made = write_app(folder, method, split_settings(set_ or []), lines, study=study)
    echo(f"{made / 'pyproject.toml'}: choose there what to run, then: flwr run {made} CONNECTION")


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
    with needing("flower", "making certificates"):
        from fedgram.engines.flower.node_keys import make_certificates
    for path in make_certificates(folder, host=host, nodes=node or []):
        echo(path)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="OPTIONS OF flower-supernode",
)
def node(context: typer.Context) -> None:
    """Start a SuperNode that runs only the app installed with it, and never an app that a SuperLink sends.

    Takes the options of flower-supernode. Example:
      fedgram flower node --insecure --superlink 127.0.0.1:8000 --node-config 'name="ward-1" data="ward-1.csv"'

    """
    with needing("flower", "starting a node"):
        from fedgram.engines.flower.supernode import run
    run("flower-supernode", context.args)
