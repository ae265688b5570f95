"""`fedgram summarize`: the one file that a party sends."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.inspect import check_page, show, write_page
from fedgram.cli.output_files import Force, check_free, check_output, write_file
from fedgram.core.filesystem import file_name
from fedgram.core.terminal import echo
from fedgram.data.own.bad import OnBad
from fedgram.exchange.format import fgm
from fedgram.exchange.format.coordinator import receiver_in, signer_line
from fedgram.exchange.format.sealing import seal
from fedgram.exchange.pages.passport import Passport
from fedgram.exchange.rounds.party_side import Party, received, reply, summary_of
from fedgram.exchange.rounds.round_messages import Round
from fedgram.exchange.store.delivery import check_takes
from fedgram.studies import Notation, Study, open_table

KeyOption = Annotated[
    Path | None, typer.Option("--key", help="The party's private key, which signs the file.", show_default=False)
]
PartyOption = Annotated[
    str | None,
    typer.Option("--party", help="The party's name. Default: the key's party in the study, or the key file's name."),
]
OnBadOption = Annotated[OnBad, typer.Option(help="What to do with rows that break a rule: refuse or skip.")]
DecimalOption = Annotated[str, typer.Option("--decimal", help="The decimal mark of the table's numbers: . or a comma.")]
ThousandsOption = Annotated[
    str,
    typer.Option("--thousands", help="The mark between thousands in the table's numbers: a point, comma, blank or '."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]


def summarize(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="The party's CSV or Parquet file.", show_default=False)],
    key: KeyOption = None,
    party: PartyOption = None,
    sealed: Annotated[
        bool,
        typer.Option(
            "--seal",
            help="Encrypt the file for the coordinator alone, by its key in the study, so that it can be mailed.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write it. Default: PARTY.fgm, or PARTY-sealed.fgm with --seal."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write the passport as a page, to be checked and signed.", show_default=False),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option("--round", help="Answer this file of the coordinator: apfl and fedlogit ask.", show_default=False),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records",
            help="The folder for the record of what was sent; it never leaves this machine. Default: the key's "
            "folder, or without a key the table's.",
            show_default=False,
        ),
    ] = None,
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    on_bad: OnBadOption = "refuse",
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Write the one file that a party sends, with sums over its table, and show its passport. It is not sent yet.

    No file is written if the table has fewer samples than the study asks for, or if the sums, or their difference to an
    earlier summary, would single out a small group. The same holds for answers to rounds. For this comparison the
    command keeps a record of what was sent.

    Examples:
      fedgram summarize study.toml north.csv --key north.key

      fedgram summarize study.toml north.csv --key north.key --seal --html north.html

      fedgram summarize study.toml north.csv --key north.key --round round-1.fgm

      fedgram summarize study.toml nord.csv --key nord.key --decimal , --thousands .

    """
    agreed = Study.read(study)
    who = Party.of(agreed, key, party)
    asked = None if request is None else received(request)
    receiver = receiver_in(agreed) if sealed else None
    ending = ("" if asked is None else _ending(asked)) + ("-sealed" if sealed else "")
    target = out or Path(f"{file_name(who.name)}{ending}.fgm")
    check_output("--out", target, study, table, key, request)
    if sealed:
        check_free("--out", target, force=force)  # only the coordinator could read an earlier one, and compare
    if html is not None:
        check_page(html, study, table, key, request, target, force=force)
    opened = open_table(table, Notation(decimal, thousands))
    kept, found, begun = records or (key or table).parent, None, list[str]()

    def check(data: bytes) -> None:
        if not sealed:
            check_takes(target, data, force=force)

    if asked is None:
        data, found = summary_of(agreed, opened, who, on_bad=on_bad, records=kept, told=begun.append, check=check)
    else:
        told = partial(echo, err=True)
        data = reply(agreed, opened, who, asked, on_bad=on_bad, records=kept, told=told, check=check)
        echo(signer_line(asked, agreed), err=True)
    passport = Passport.of(replace(fgm.read(data, name=str(target)), sealed_to=receiver), found=found)
    if html is not None:
        write_page(html, passport)
    if receiver is None:
        write_file(target, data, force=force)
    else:
        fgm.write(target, seal(data, receiver))
    if as_json:
        typer.echo(json.dumps(passport.fields()))
        return
    show(passport)
    for text in begun:
        echo(text)
    if html is not None:
        echo(f"wrote {html}")
    echo(f"wrote {target}: look at what is above, then send this one file to the coordinator")
    if who.key is None:
        echo("it is not signed: the study lists no keys, so the coordinator cannot tell who wrote it", err=True)


def _ending(asked: fgm.File) -> str:
    return f"-round-{asked.of_kind('round').holding(Round).number}"
