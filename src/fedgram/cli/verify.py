"""`fedgram verify`: a store's total and statements, computed again; or a certificate without the store."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.inspect import StudyOption
from fedgram.cli.store_options import NOT_RIGHT, Json, check_kind, existing
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.hashing import short
from fedgram.core.progress_bars import spinner
from fedgram.core.terminal import one_line
from fedgram.exchange.format import fgm
from fedgram.exchange.format.fgm import File
from fedgram.exchange.store.saved_total import problems
from fedgram.exchange.store.statements import Findings, check_forgotten
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import STATEMENTS, check_statement, check_total
from fedgram.exchange.store.verification import verify as verified
from fedgram.studies import Study


def verify(
    store: Annotated[
        Path,
        typer.Argument(metavar="STORE", help="The store's folder; with --published a certificate.", show_default=False),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILES]...",
            help="Certificates, receipts or publications of the store. Default: the store itself.",
            show_default=False,
        ),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            help="Without the store: a model that was published after the certificate's removal.", show_default=False
        ),
    ] = None,
    study: StudyOption = None,
    as_json: Json = False,
) -> None:
    """Add up the store's files anew, and compare with its statements or with the running total.

    A party that has left needs no store: its certificate and a model that was published later show whether the model is
    without it. With --study both must be signed by the coordinator that the study names.

    Exit code 0 if all is right, 1 if not.

    Examples:
      fedgram verify store/ south-removed.fgm

      fedgram verify store/

      fedgram verify south-removed.fgm --published global.fgm --study study.toml

    """
    if published is not None:
        if files:
            raise InvalidParameter(f"--published goes with one certificate, and without a store: leave out {files[0]}")
        found = _forgotten(store, published, None if study is None else Study.read(study))
    elif study is not None or store.is_file():
        raise InvalidParameter(
            f"{store}: expected a store's folder first; to check a certificate without the store, give a model that "
            "was published after it with --published, and your study with --study"
        )
    else:
        found = _with_store(existing(store), [fgm.read(path) for path in files or ()])
    if as_json:
        typer.echo(json.dumps({name: list(texts) for name, texts in vars(found).items()}))
    else:
        _show(found)
    if found.wrong:
        raise typer.Exit(NOT_RIGHT)


def _forgotten(path: Path, published: Path, study: Study | None) -> Findings:
    certificate, model = fgm.read(path), fgm.read(published)
    check_kind(certificate, "certificate", remedy="give what the coordinator sent after the removal")
    check_kind(model, "global", remedy="give a model that fedgram publish wrote, such as global.fgm")
    return check_forgotten(certificate, model, study)


def _with_store(kept: Store, files: list[File]) -> Findings:
    for file in files:
        check_kind(file, *STATEMENTS, remedy="give what the coordinator wrote, such as north-removed.fgm")
    right: list[str] = []
    wrong: list[str] = []
    with spinner("adding up"):
        if not files:
            wrong += problems(kept)
            if not wrong:  # a damaged ledger has no total to compare with
                try:
                    count, total = len(kept.contributions()), short(check_total(kept))
                    right.append(f"the {count:,} files add up to the total, {total}")
                except Mismatch as error:
                    wrong.append(str(error))
        for file in files:
            try:
                right += _confirmed(kept, file)
            except Mismatch as error:
                wrong.append(str(error))
    return Findings(tuple(right), tuple(wrong))


def _confirmed(kept: Store, file: File) -> list[str]:
    if file.header.kind == "certificate":
        return verified(kept, file)
    if wrong := problems(kept):
        raise Mismatch(f"the store is not as its ledger says: {wrong[0]}")
    entry = check_statement(kept, file)
    return [f"{file.name}: entry {entry.number} of the ledger has the head that it names, and the ledger is whole"]


def _show(found: Findings) -> None:
    console, errors = terminal.console(soft_wrap=True, highlight=False), terminal.console(stderr=True, soft_wrap=True)
    for text in found.right:
        console.print(one_line(text))
    if found.not_proved:
        console.print("This does not prove:")
    for text in found.not_proved:
        console.print(one_line(f"- {text}"))
    for text in found.wrong:
        errors.print(f"[red]error:[/] {one_line(text)}", highlight=False)
