"""`fedgram study`: draft a study, check a party's table against it, and show it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli import Commands
from fedgram.cli.output_files import Force, check_free
from fedgram.cli.store_options import existing
from fedgram.cli.summarize import DecimalOption, ThousandsOption
from fedgram.core import terminal
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.hashing import readable
from fedgram.exchange.format.fgm import is_exchanged
from fedgram.exchange.format.key_files import read_public
from fedgram.exchange.rounds.party_side import received
from fedgram.studies import Notation, Study, open_table
from fedgram.studies.drafting import draft, with_coordinator, with_keys
from fedgram.studies.media import identify
from fedgram.studies.party_tables import Findings, check_table
from fedgram.studies.study import differences, named, read_text

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="The agreement of parties with tables: draft a study, check a table against it, show it.",
)
MOST_SHOWN = 40  # names of columns: an image has a thousand
DoesNotFit = Differ = 1  # exit codes of `check` where `summarize` would refuse the table, and of `diff`

StudyFile = Annotated[Path, typer.Argument(help="The study file.", show_default=False)]
TableArgument = Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]


@app.command(epilog="Example: [bold]fedgram study new north.csv --outcome diagnosis --name stroke-2026[/bold]")
def new(
    table: TableArgument,
    outcome: Annotated[str | None, typer.Option("--outcome", "--label", help="The column to be predicted.")] = None,
    name: Annotated[str, typer.Option(help="The name of the study.")] = "my-study",
    client_column: Annotated[
        str | None, typer.Option(help="The column that names each row's client; it is not used to predict.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column that is not to be used; may be repeated.")] = None,
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("study.toml"),
    force: Force = False,
) -> None:
    """Draft a study file from one party's table: kinds are guessed, comments say where you must decide."""
    check_free("--out", out, force=force)
    opened = open_table(table, Notation(decimal, thousands))
    drafted = draft(opened, outcome, name=name, client=client_column, ignore=tuple(drop or ()))
    study = drafted.study
    with writing(out):
        replace_file(out, drafted.text.encode())
    console = terminal.console()
    for line in study.about():
        console.print(escape(line))
    console.print(f"wrote {escape(str(out))}: read it through, it has comments where you must decide")


@app.command(epilog="Example: [bold]fedgram study check study.toml south.csv[/bold]")
def check(
    study: StudyFile,
    table: TableArgument,
    client_column: Annotated[str | None, typer.Option(help="The column that names each row's client.")] = None,
    key: Annotated[str | None, typer.Option("--id", help="A column of ids, which should occur once each.")] = None,
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    as_json: Json = False,
) -> None:
    """List the cells of a table that do not fit the study, by line. Nothing of it leaves this machine.

    Copies of rows and repeated ids are reported, too. An ignored column with a usual name for ids is checked even
    without --id.

    Exit code 0 if `summarize` would take the table, 1 if rows break a rule or are too few, 2 if the table cannot be
    used at all.
    """
    agreed = Study.read(study)
    found = check_table(agreed, open_table(table, Notation(decimal, thousands)), group=client_column, key=key)
    if as_json:
        told = {"rows": found.rows, "fit": found.good, "classes": found.classes, "broken": found.counts}
        told |= {"refused": found.refused, "repeated": found.repeated}
        told["left_out"] = {"rows": found.left_out.dropped, "columns": found.left_out.by_column}
        typer.echo(json.dumps(told))
    else:
        _show(agreed, found, table)
    if not found.fits:
        raise typer.Exit(DoesNotFit)


@app.command(epilog="Example: [bold]fedgram study show study.toml[/bold]")
def show(
    study: Annotated[
        Path, typer.Argument(help="A study file, a .fgm file with its study, or a store's folder.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show a study: its columns, their use, and the agreement that all parties compare at the beginning.

    The agreement covers the whole file, with parties, keys and coordinator. The fingerprint covers the part that
    sums depend on, which never changes: name, outcome, classes, columns and thresholds.
    """
    agreed = _study_in(study)
    if as_json:
        typer.echo(json.dumps(agreed.to_fields() | _hashes(agreed) | {"sent": agreed.sent}))
        return
    console = terminal.console()
    console.print(f"[bold]{escape(agreed.name)}[/bold]  agreement {readable(agreed.agreement)}", soft_wrap=True)
    console.print(f"without parties and keys: fingerprint {readable(agreed.fingerprint)}", soft_wrap=True)
    table = Table("column", "kind", "what", "sent as", box=None, header_style="bold")
    for name, column in agreed.columns.items():
        computed = {"=": agreed.derived[name]} if name in agreed.derived else {}
        details = ", ".join(f"{key} {value}" for key, value in (computed | agreed.plain(name)).items() if value != "")
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
    limit = agreed.maximum_columns_per_row
    columns = f", or of more than {limit:g} columns per row" if limit else ""
    console.print(
        f"a party sends nothing of fewer than {agreed.minimum_samples} samples, {agreed.minimum_cell} of a class or "
        f"{agreed.smallest_group} of a group that sums single out{columns}"
    )


@app.command(epilog="Example: [bold]fedgram study diff mine.toml theirs.toml[/bold]")
def diff(
    one: Annotated[Path, typer.Argument(help="A study file.", show_default=False)],
    other: Annotated[Path, typer.Argument(help="Another one.", show_default=False)],
    as_json: Json = False,
) -> None:
    """List the differences of two studies: settings, columns, parties. Comments and layout do not count.

    Exit code 0 if they are the same, 1 if they differ.
    """
    studies = Study.read(one), Study.read(other)
    found = differences(*studies, (f"in {one}", f"in {other}"))
    if as_json:
        typer.echo(json.dumps({"same": not found, "differences": found}))
    else:
        console = terminal.console(soft_wrap=True, highlight=False)
        for path, study in zip((one, other), studies, strict=True):
            console.print(escape(f"{path}: study {study.name!r}, agreement {readable(study.agreement)}"))
        for line in found or ["both say the same"]:
            console.print(escape(line))
    if found:
        raise typer.Exit(Differ)


@app.command(epilog="Example: [bold]fedgram study backbone encoder.onnx:128[/bold]")
def backbone(
    spec: Annotated[str, typer.Argument(help="A backbone, such as lite0:96, minilm or FILE.onnx.", show_default=False)],
) -> None:
    """Print the lines of a study on a backbone, so that all parties use the same: its digest and number of features."""
    digest, features = identify(spec)
    typer.echo(f"digest = {json.dumps(digest)}\nfeatures = {features}")


@app.command(epilog="Example: [bold]fedgram study keys study.toml north.pub south.pub[/bold]")
def keys(
    study: StudyFile,
    public: Annotated[list[Path] | None, typer.Argument(help="The parties' .pub files.", show_default=False)] = None,
    coordinator: Annotated[
        Path | None, typer.Option(help="The coordinator's .pub file: only its rounds and models are accepted.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Enter the public keys that the parties have sent into the study file; names are bound to them from then on.

    The agreement changes with it: send the new file to all parties, and compare it, before the store begins. Afterwards
    the coordinator changes parties and keys with fedgram amend, and all study files stay as they are.
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
        typer.echo(json.dumps({**_hashes(agreed), "keys": collected, "lacking": lacking}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    entered = len(collected) + (coordinator is not None)
    keys_entered = "1 key entered" if entered == 1 else f"{entered} keys entered"
    console.print(escape(f"{study}: {keys_entered}, agreement {readable(agreed.agreement)}"))
    if lacking:
        console.print(escape(f"still without a key: {', '.join(lacking)}"))


def _study_in(path: Path) -> Study:
    """Return the study in a study file, in a file that parties exchange, or in a store."""
    found: Study | None
    if path.is_dir():
        found = existing(path).terms.study
    elif is_exchanged(path):
        found = received(path).study
    else:
        return Study.read(path)
    if found is None:
        raise InvalidData(
            f"{path}: expected a file with its study, got one with no more than the fingerprint; give a summary or a "
            "publication of the same study"
        )
    return found


def _hashes(study: Study) -> dict[str, str]:
    return {"fingerprint": study.fingerprint, "agreement": study.agreement}


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
    for reason in found.refused:
        console.print(escape(f"this party would send nothing: {reason}"))
    if found.left_out.dropped:
        console.print(escape(str(found.left_out)))
    for column, count in found.missing.items():
        if count:
            console.print(escape(f"{column}: {count:,} row{'s' if count > 1 else ''}"))
    for line in found.repeated:
        console.print(f"[yellow]{escape(line)}[/yellow]")
    for line in found.lines():
        console.print(f"[red]{escape(line)}[/red]")
