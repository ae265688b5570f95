"""`fedgram study`: draft what the parties agree on, check a party's table against it, show what it says."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli import Commands
from fedgram.cli.outputs import Force, check_free
from fedgram.core import terminal
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.files import replace_file, writing
from fedgram.core.hashing import readable
from fedgram.exchange.pairs import read_public
from fedgram.studies import Study
from fedgram.studies.checking import Findings, check_table
from fedgram.studies.drafting import draft
from fedgram.studies.identity import named
from fedgram.studies.media import identify
from fedgram.studies.parties import with_coordinator, with_keys
from fedgram.studies.study import read_text

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="What parties with tables agree on: draft a study, check a table against it, show it.",
)
MOST_SHOWN = 40  # names of columns: an image has a thousand
DoesNotFit = 1  # exit code of `check` where rows break a rule

StudyFile = Annotated[Path, typer.Argument(help="The study file.", show_default=False)]
TableArgument = Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]


@app.command(epilog="Example: [bold]fedgram study new north.csv --outcome diagnosis --name stroke-2026[/bold]")
def new(
    table: TableArgument,
    outcome: Annotated[str | None, typer.Option(help="The column that is to be predicted.")] = None,
    name: Annotated[str, typer.Option(help="What the study is called.")] = "my-study",
    client_column: Annotated[
        str | None, typer.Option(help="The column that names each row's client; it is not used to predict.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column that is not to be used; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("study.toml"),
    force: Force = False,
) -> None:
    """Draft a study file from one party's table: kinds are guessed, comments say where you must decide."""
    check_free("--out", out, force=force)
    text = draft(table, outcome, name=name, client=client_column, ignore=tuple(drop or ()))
    study = Study.parse(text, where=f"the study drafted from {table}")
    with writing(out):
        replace_file(out, text.encode())
    console = terminal.console()
    for line in study.about():
        console.print(escape(line))
    console.print(f"wrote {escape(str(out))}: read it through, it has comments where you must decide")


@app.command(epilog="Example: [bold]fedgram study check study.toml south.csv[/bold]")
def check(
    study: StudyFile,
    table: TableArgument,
    client_column: Annotated[str | None, typer.Option(help="The column that names each row's client.")] = None,
    as_json: Json = False,
) -> None:
    """Say what in a table does not fit the study, by line. Nothing of it leaves this machine.

    Exit code 0 if every row fits, 1 if some break a rule, 2 if the table cannot be used at all.
    """
    agreed = Study.read(study)
    found = check_table(agreed, table, group=client_column)
    if as_json:
        typer.echo(
            json.dumps({"rows": found.rows, "fit": found.good, "classes": found.classes, "broken": found.counts})
        )
    else:
        _show(agreed, found, table)
    if not found.fits:
        raise typer.Exit(DoesNotFit)


@app.command(epilog="Example: [bold]fedgram study show study.toml[/bold]")
def show(study: StudyFile, as_json: Json = False) -> None:
    """Show what a study says: columns and how they are used, and the fingerprint that all parties must see alike."""
    agreed = Study.read(study)
    if as_json:
        typer.echo(json.dumps(agreed.to_fields() | {"fingerprint": agreed.fingerprint, "sent": agreed.sent}))
        return
    console = terminal.console()
    console.print(f"[bold]{escape(agreed.name)}[/bold]  fingerprint {readable(agreed.fingerprint)}", soft_wrap=True)
    table = Table("column", "kind", "what", "sent as", box=None, header_style="bold")
    for name, column in agreed.columns.items():
        details = ", ".join(f"{key} {value}" for key, value in agreed.plain(name).items() if value != "")
        table.add_row(escape(name), column.kind, escape(details), escape(_shortened(column.sent(name))))
    console.print(table)
    classes = f": {', '.join(map(str, agreed.classes))}" if agreed.classes else " (a number)"
    console.print(escape(f"outcome {', '.join(agreed.outcomes)}{classes}"))
    if agreed.parties:
        console.print("parties, and the public keys that their names belong to:")
        for name, key in agreed.parties.items():
            console.print(escape(f"  {name}  {key or 'none yet'}"), soft_wrap=True, highlight=False)
    if agreed.coordinator:
        console.print(escape(f"coordinator, whose key signs rounds and models: {agreed.coordinator}"), soft_wrap=True)
    console.print(
        f"a party sends nothing of fewer than {agreed.minimum_samples} samples, or {agreed.minimum_cell} of a class"
    )


@app.command(epilog="Example: [bold]fedgram study backbone encoder.onnx:128[/bold]")
def backbone(
    spec: Annotated[str, typer.Argument(help="A backbone, such as lite0:96, minilm or FILE.onnx.", show_default=False)],
) -> None:
    """Print what a study says of a backbone, so that all parties have the same: its digest and number of features."""
    digest, features = identify(spec)
    typer.echo(f"digest = {json.dumps(digest)}\nfeatures = {features}")


@app.command(epilog="Example: [bold]fedgram study keys study.toml north.pub south.pub[/bold]")
def keys(
    study: StudyFile,
    public: Annotated[list[Path] | None, typer.Argument(help="The parties' .pub files.", show_default=False)] = None,
    coordinator: Annotated[
        Path | None, typer.Option(help="The coordinator's .pub file: nobody else's rounds and models are taken.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Enter the public keys that the parties have sent into the study file; names are bound to them from then on.

    The fingerprint changes with it: send the new file to all parties before anyone summarizes.
    """
    if not public and coordinator is None:
        raise InvalidParameter("whose keys? give .pub files, or --coordinator with the coordinator's")
    collected: dict[str, str] = {}
    for path in public or ():
        name, key = read_public(path)
        if collected.setdefault(name, key.text) != key.text:
            raise InvalidParameter(f"{path}: {name!r} has another key in a file before: use one of them")
    text = read_text(study)
    text = with_keys(text, collected, where=str(study)) if collected else text
    if coordinator is not None:
        text = with_coordinator(text, read_public(coordinator)[1].text, where=str(study))
    with writing(study):
        replace_file(study, text.encode())
    agreed = Study.read(study)
    lacking = [name for name, key in agreed.parties.items() if not key]
    if as_json:
        typer.echo(json.dumps({"fingerprint": agreed.fingerprint, "keys": collected, "lacking": lacking}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    entered = len(collected) + (coordinator is not None)
    keys_entered = "1 key entered" if entered == 1 else f"{entered} keys entered"
    console.print(escape(f"{study}: {keys_entered}, fingerprint {readable(agreed.fingerprint)}"))
    if lacking:
        console.print(escape(f"still without a key: {', '.join(lacking)}"))


def _shortened(names: tuple[str, ...]) -> str:
    return ", ".join(names if len(names) <= MOST_SHOWN else (*names[:2], "…", names[-1]))


def _show(study: Study, found: Findings, path: Path) -> None:
    console = terminal.console()
    if not found.rows:
        raise InvalidData(f"{path} has no rows")
    console.print(escape(f"study {named(study)}"), soft_wrap=True, highlight=False)
    counts = ", ".join(f"{count:,} {label}" for label, count in found.classes.items())
    console.print(
        escape(f"{found.good:,} of {found.rows:,} rows fit study {study.name!r}" + (f": {counts}" if counts else ""))
    )
    few = [label for label, count in found.classes.items() if 0 < count < study.minimum_cell]
    if found.good < study.minimum_samples:
        console.print(f"this party would send nothing: the study's minimum_samples is {study.minimum_samples}")
    elif few:
        why = f"minimum_cell is {study.minimum_cell}, and it has fewer {', '.join(few)}"
        console.print(escape(f"this party would send nothing: {why}"))
    for column, count in found.missing.items():
        if count:
            console.print(escape(f"{column}: {count:,} row{'s' if count > 1 else ''}"))
    for line in found.lines():
        console.print(f"[red]{escape(line)}[/red]")
