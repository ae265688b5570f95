"""`fedgram remove`: exact unlearning, with a certificate."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.output_files import Force, check_free, write_file
from fedgram.cli.store_options import Json, StoreFolder, Wait, check_outside, existing
from fedgram.core import terminal
from fedgram.core.filesystem import file_name
from fedgram.core.hashing import short
from fedgram.core.progress_bars import spinner
from fedgram.core.terminal import one_line
from fedgram.exchange.format import fgm
from fedgram.exchange.store.delivery import target_of
from fedgram.exchange.store.statements import Statement


def remove(
    store: StoreFolder,
    party: Annotated[str, typer.Argument(help="The party whose contribution to remove.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="The certificate, or a folder for PARTY-removed.fgm.", show_default="this folder")
    ] = Path(),
    force: Force = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Take a party's contribution out of the total, delete its file, and write a signed certificate of it.

    The total is then as if the party had never joined, to the bit. Given again, it writes the certificate once more. If
    another file has the certificate's name, nothing is removed, unless --force is given. Nothing is removed either if
    the certificate cannot be written.

    Examples:
      fedgram remove store/ south --out south-removed.fgm

    """
    kept = existing(store, wait=wait)
    path = target_of(out, f"{file_name(party)}-removed.fgm")
    check_outside("--out", path, store)
    earlier = kept.removed().get(party)
    if earlier is None:
        check_free("--out", path, force=force)  # before anything is removed
        with spinner(f"removing {party}"):
            kept.remove(party, out=path if kept.has_key else None, force=force)
    data = kept.certificate(party)  # raises in a store that has lost its key, from which a party may leave all the same
    if earlier is not None:
        write_file(path, data, force=force)
    said = fgm.read(data).payload
    if as_json:
        typer.echo(json.dumps({**said, "certificate": str(path)}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    if earlier is not None:
        console.print(one_line(f"{party} was removed already, at {earlier}: this is its certificate again"))
    console.print(one_line(f"{party} is out: {said['samples']:,} samples, contribution {short(said['digest'])}"))
    for what in ("before", "after"):
        console.print(f"total {what} {short(said[what])}")
    console.print(f"ledger's head {short(said['head'])}")
    for heading, text in Statement.of(fgm.read(data)).sentences()[1:]:
        console.print(one_line(f"{heading}: {text}"))
    console.print(one_line(f"wrote {path}; publish again, so that the model in use forgets, too"))
