"""`fedgram summarize`: the one file that a party sends."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.inspect import show
from fedgram.cli.outputs import Force, check_output, write_file
from fedgram.core.terminal import echo
from fedgram.data.own.bad import OnBad
from fedgram.exchange import files
from fedgram.exchange.coordinator import signer_line
from fedgram.exchange.pairs import file_name
from fedgram.exchange.passport import Passport
from fedgram.exchange.rounds import Round
from fedgram.exchange.summaries import Party, received, reply
from fedgram.exchange.summaries import summarize as summarized
from fedgram.studies import Study

KeyOption = Annotated[
    Path | None, typer.Option("--key", help="The party's private key, which signs the file.", show_default=False)
]
PartyOption = Annotated[
    str | None,
    typer.Option("--party", help="The party's name. Default: whose key it is in the study, or the key file's name."),
]
OnBadOption = Annotated[OnBad, typer.Option(help="What to do with rows that break a rule: refuse or skip.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]


def summarize(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="The party's CSV or Parquet file.", show_default=False)],
    key: KeyOption = None,
    party: PartyOption = None,
    out: Annotated[Path | None, typer.Option(help="Where to write it. Default: PARTY.fgm.")] = None,
    request: Annotated[
        Path | None,
        typer.Option("--round", help="Answer this file of the coordinator: apfl and fedlogit ask.", show_default=False),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records",
            help="The folder for the record of answered rounds; it never leaves this machine. Default: the key's "
            "folder, or without a key the table's.",
            show_default=False,
        ),
    ] = None,
    on_bad: OnBadOption = "refuse",
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Make the one file that a party sends, sums over its table, and show its passport. Nothing is sent by this.

    The study's thresholds are kept: of fewer samples than it asks for no file is written. Nor is an answer to a round
    that would show few samples, alone or less an earlier answer; answered rounds are recorded for that.

    Examples:
      fedgram summarize study.toml north.csv --key north.key

      fedgram summarize study.toml north.csv --key north.key --round round-1.fgm

    """
    agreed = Study.read(study)
    who = Party.of(agreed, key, party)
    asked = None if request is None else received(request)
    target = out or Path(f"{file_name(who.name)}{'' if asked is None else _ending(asked)}.fgm")
    check_output("--out", target, study, table, key, request)
    if asked is None:
        data = summarized(agreed, table, who, on_bad=on_bad)
    else:
        kept = records or (key or table).parent
        data = reply(agreed, table, who, asked, records=kept, on_bad=on_bad, told=lambda text: echo(text, err=True))
        echo(signer_line(asked, agreed), err=True)
    write_file(target, data, force=force)
    passport = Passport.of(files.read(data, name=str(target)))
    if as_json:
        typer.echo(json.dumps(passport.fields()))
        return
    show(passport)
    echo(f"wrote {target}: look at what is above, then send this one file to the coordinator")
    if who.key is None:
        echo("it is not signed: a study that lists keys will refuse it; sign with --key", err=True)


def _ending(asked: files.File) -> str:
    return f"-round-{asked.of_kind('round').holding(Round).number}"
