"""`fedgram remove`: exact unlearning, with a certificate."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.outputs import Force, check_free, write_file
from fedgram.cli.stores import Json, StoreFolder, Wait, check_outside, existing
from fedgram.core import terminal
from fedgram.core.hashing import short
from fedgram.core.progress import spinner
from fedgram.core.terminal import one_line
from fedgram.exchange import files
from fedgram.exchange.certificates import file_name


def remove(
    store: StoreFolder,
    party: Annotated[str, typer.Argument(help="Whose contribution to remove.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The certificate. Default: PARTY-removed.fgm")] = None,
    force: Force = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Take a party's contribution out of the total, delete its file, and write a signed certificate of it.

    The total is then as if the party had never joined, to the bit. Given again, it writes the certificate once more. An
    earlier file in its place stays, and nothing is removed, unless --force is given.

    Examples:
      fedgram remove store/ south --out south-removed.fgm

    """
    kept, path = existing(store, wait=wait), out or Path(file_name(party, "removed"))
    check_outside("--out", path, store)
    earlier = kept.removed().get(party)
    if earlier is None:
        check_free("--out", path, force=force)  # before anything is removed
        with spinner(f"removing {party}"):
            kept.remove(party)
    data = kept.certificate(party)
    write_file(path, data, force=force)
    said = files.read(data).payload
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
    for text in (said["states"], said["does_not_state"]):
        console.print(one_line(text))
    console.print(one_line(f"wrote {path}; publish again, so that the model in use forgets, too"))
