"""`fedgram amend`: late parties, new keys, and files that were sent by mistake."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.store_options import Json, StoreFolder, Wait, existing
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.hashing import readable
from fedgram.core.terminal import one_line
from fedgram.exchange.format.amendments import Amendment, Rotation
from fedgram.exchange.format.key_files import read_public
from fedgram.exchange.store import amending
from fedgram.exchange.store.study_store import Store
from fedgram.secure.signing_keys import PublicKey


def amend(
    store: StoreFolder,
    add: Annotated[
        list[Path] | None,
        typer.Option("--add", help="The .pub file of a party that takes part from now on.", show_default=False),
    ] = None,
    rotate: Annotated[
        list[Path] | None,
        typer.Option(
            "--rotate",
            help="A party's .rotation file, from fedgram keys rotate; or its new .pub file, if the former key is lost.",
            show_default=False,
        ),
    ] = None,
    mistake: Annotated[
        list[str] | None,
        typer.Option(
            "--mistake",
            help="The party under whose name a wrong file joined, or the digest of that file.",
            show_default=False,
        ),
    ] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Change who takes part: add a late party, enter a new key, or withdraw a file that came under the wrong name.

    The rules of the study stay as they are, so the parties' files and study files stay valid. Every change is signed
    with the store's key and entered into the ledger. Status, receipts and the next publication show it to all. A new
    key without the consent of the former key is marked there; compare it by telephone.

    A file that is withdrawn leaves the total. Its samples may then join under the right name.

    Examples:
      fedgram amend store/ --add west.pub

      fedgram amend store/ --rotate north.rotation

      fedgram amend store/ --mistake stmary

    """
    if not (add or rotate or mistake):
        raise InvalidParameter("nothing to amend: give --add, --rotate or --mistake")
    kept, console = existing(store, wait=wait), terminal.console(soft_wrap=True, highlight=False)
    added, keys = [read_public(path) for path in add or ()], [_new_key(path) for path in rotate or ()]
    done = []
    for amendment in _changes(kept, added, keys, mistake or []):
        done.append(amendment.plain())
        if not as_json:
            console.print(one_line(f"amendment {amendment.number}: {amendment.line}"))
    if as_json:
        typer.echo(json.dumps({"amendments": done, "agreement": kept.terms.agreement, "genesis": kept.terms.began}))
        return
    if kept.terms.agreement != kept.terms.began:
        now, began = readable(kept.terms.agreement), readable(kept.terms.began)
        console.print(f"the study's agreement is {now} now, and was {began} at the beginning")
    console.print("no party summarizes again; publish, so that all parties see it")


def _new_key(path: Path) -> tuple[str, PublicKey, Rotation | None]:
    if path.suffix == ".pub":
        return *read_public(path), None
    rotation = Rotation.read(path)
    return rotation.party, PublicKey(rotation.key), rotation


def _changes(
    store: Store,
    added: list[tuple[str, PublicKey]],
    keys: list[tuple[str, PublicKey, Rotation | None]],
    mistakes: list[str],
) -> Iterator[Amendment]:
    """Yield amendments as they are made; each is complete by itself."""
    for party, key in added:
        yield amending.add(store, party, key)
    for name, new, rotation in keys:
        yield amending.rotate(store, name, new, rotation)
    for which in mistakes:
        yield amending.withdraw(store, which)
