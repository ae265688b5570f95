"""`fedgram personalize`: a party's own model from what was published and its own table."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.inspect import StudyOption
from fedgram.cli.outputs import Force, check_output, write_file
from fedgram.cli.summarize import JsonOption, KeyOption, OnBadOption, PartyOption
from fedgram.core.terminal import echo
from fedgram.exchange import files
from fedgram.exchange.coordinator import check_agreed, signer_line
from fedgram.exchange.summaries import Party, fit_of, received
from fedgram.exchange.summaries import personalize as personalized
from fedgram.studies import Study


def personalize(
    published: Annotated[Path, typer.Argument(help="What the coordinator published, such as global.fgm.")],
    table: Annotated[Path, typer.Argument(help="The party's CSV or Parquet file.", show_default=False)],
    key: KeyOption = None,
    party: PartyOption = None,
    member: Annotated[
        bool | None,
        typer.Option(
            "--member/--newcomer",
            help="Whether this table is in what was published. Default: whether the party is listed there.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the model; it is the party's own.")] = Path("mine.fgm"),
    agreed: StudyOption = None,
    on_bad: OnBadOption = "refuse",
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Make a party's own model from a published one and its own table. Nothing leaves this machine.

    Parties that took part and newcomers can both do so. The study comes with the published file; --study says which one
    it must be.

    Example:
      fedgram personalize global.fgm north.csv --key north.key --out mine.fgm

    """
    check_output("--out", out, published, table, key)
    file = received(published)
    fit, study = fit_of(file)
    if agreed is not None:
        check_agreed(file, Study.read(agreed))
    who = Party.of(study, key, party, newcomers=True)
    belongs = who.name in fit.contributors if member is None else member
    data = personalized(file, table, who, member=belongs, on_bad=on_bad)
    echo(signer_line(file, study), err=True)
    write_file(out, data, force=force)
    made = files.read(data, name=str(out), checked=True)
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
                }
            )
        )
        return
    place = "a member, its samples are in it" if belongs else "a newcomer, its samples are not in it"
    echo(f"{who.name}: {made.header.samples:,} samples, {fit.method} of {len(fit.contributors)} parties; {place}")
    echo(f"wrote {out}: keep it, it was made of your own rows")
