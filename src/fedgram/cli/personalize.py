"""`fedgram personalize`: a party's personal model, from a published model and its own table."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.inspect import StudyOption
from fedgram.cli.output_files import Force, check_output, write_file
from fedgram.cli.summarize import DecimalOption, JsonOption, KeyOption, OnBadOption, PartyOption, ThousandsOption
from fedgram.core.terminal import echo
from fedgram.exchange.format import fgm
from fedgram.exchange.format.coordinator import check_agreed, signer_line
from fedgram.exchange.rounds.party_side import Keep, Party, fit_of, received
from fedgram.exchange.rounds.party_side import personalize as personalized
from fedgram.protocol.comparison import HOW, Comparison
from fedgram.studies import Notation, Study, open_table


def personalize(
    published: Annotated[Path, typer.Argument(help="The coordinator's publication, such as global.fgm.")],
    table: Annotated[Path, typer.Argument(help="The party's CSV or Parquet file.", show_default=False)],
    key: KeyOption = None,
    party: PartyOption = None,
    member: Annotated[
        bool | None,
        typer.Option(
            "--member/--newcomer",
            help="Whether this table is in the published model. Default: whether it lists the party.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the model that is kept.")] = Path("mine.fgm"),
    keep: Annotated[
        Keep,
        typer.Option(
            help="Which model to keep: your own, the global one, or the better of both on rows that were left out."
        ),
    ] = "better",
    agreed: StudyOption = None,
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    on_bad: OnBadOption = "refuse",
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Make a party's personal model, compare it with the published one, and keep the better. Nothing is sent.

    Both parties that took part and newcomers can do so. The study comes with the published file; --study says which
    study it must be.

    Each row of the table, or each of ten groups of more than 200 rows, is left out and predicted by an own model of the
    other rows, and by the global model without it. If both do as well, the global model is kept; so it is if the table
    lacks a class that others have, because such a table cannot tell how well a model finds that class.

    Examples:
      fedgram personalize global.fgm north.csv --key north.key --out mine.fgm

      fedgram personalize global.fgm north.csv --key north.key --keep own

    """
    check_output("--out", out, published, table, key)
    file = received(published)
    fit, study = fit_of(file)
    known = study if agreed is None else Study.read(agreed)
    changes = check_agreed(file, known)
    who = Party.of(study, key, party, newcomers=True)
    belongs = who.name in fit.contributors if member is None else member
    own = open_table(table, Notation(decimal, thousands))
    found = personalized(file, own, who, member=belongs, on_bad=on_bad, keep=keep)
    compared = found.comparison
    echo(signer_line(file, known), err=True)
    for text in changes:
        echo(f"since {agreed}: {text}", err=True)
    write_file(out, found.data, force=force)
    made = fgm.read(found.data, name=str(out), checked=True)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(out),
                    "party": who.name,
                    "method": fit.method,
                    "member": belongs,
                    "samples": made.header.samples,
                    "digest": made.digest,
                    "kept": found.model,
                    "compared": compared.fields(),
                }
            )
        )
        return
    place = "a member, its samples are in it" if belongs else "a newcomer, its samples are not in it"
    echo(f"{who.name}: {made.header.samples:,} samples, {fit.method} of {len(fit.contributors)} parties; {place}")
    for line in _lines(compared):
        echo(line)
    echo(_why(compared, found.model, keep, fit.method))
    if found.model == "own":
        echo(f"wrote {out}, your own model. Do not pass it on: it was made from your own rows.")
    else:
        echo(f"wrote {out}, the global model: your rows did not change it.")


def _lines(found: Comparison) -> Iterator[str]:
    """Yield the errors of both models, and the way in which the rows were left out of the global model."""
    if not found.rows:
        return
    yield f"{found.rows:,} of {found.of:,} rows were left out, each predicted by models of other rows:"
    for name, score in (("own model", found.own), ("global model", found.shared)):
        if found.units:
            figures = ", ".join(f"RMSE of {one} {errors.rmse:.4g}" for one, errors in score.errors.items())
        else:
            figures = f"{score.right:,} of {found.rows:,} right, {score.right / found.rows:.1%}"
        yield f"  {name:<13} {figures}"
    if found.how != "new":
        yield f"  ({HOW[found.how]})"


def _why(found: Comparison, kept: str, asked: Keep, method: str) -> str:
    """Return the sentence that tells which model is kept, and why."""
    missing = ""
    if found.lacking:
        missing = (
            f"your rows have no samples of {', '.join(map(str, found.lacking))}, so they cannot tell how well a model "
            "finds them"
        )
    if asked != "better":
        doubt = f", but {missing}: the global model is safer" if missing and kept == "own" else ""
        return f"the {kept} model is kept, as --keep {asked} asks{doubt}"
    if not found.personal:
        return f"the global model is kept: {method} makes no models of parties' own"
    if missing:
        return f"the global model is kept: {missing}. --keep own would take your own"
    if not found.rows:
        return f"the global model is kept: {found.of:,} rows are too few to compare models by"
    if kept == "own":
        return "the own model is kept: it is better on these rows"
    return "the global model is kept: the own model is not better on these rows"
