"""A party's two key files: the private `north.key`, and `north.pub` for the others.

A `.pub` file is one line of TOML, `"north" = "…"`, as it stands in the study file's `[parties]`.
"""

import json
import os
import tomllib
from pathlib import Path
from urllib.parse import unquote

from fedgram.core.errors import FedgramError, InvalidData
from fedgram.core.filesystem import PRIVATE, file_name, new_file, read_regular, writing
from fedgram.exchange.format.amendments import Rotation
from fedgram.exchange.format.header import party_name
from fedgram.protocol.disclosure import records_in
from fedgram.secure.signing_keys import PrivateKey, PublicKey


def named_by(path: Path) -> str:
    """Return the party that a file is named after."""
    return unquote(path.stem)


def new_pair(party: str, folder: Path) -> tuple[Path, Path, PublicKey]:
    """Write a party's new keys into a folder, never over existing ones, and return the files and the public key."""
    private, public = (folder / f"{file_name(party_name(party))}.{ending}" for ending in ("key", "pub"))
    if public.exists():
        raise InvalidData(f"{public} exists, and a key is never overwritten: give another name or folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    key = PrivateKey.new()
    key.save(private)
    try:
        with writing(public):
            new_file(public, line(party, key.public).encode())
    except BaseException:  # Ctrl-C included: half a pair is useless, and would block a whole one
        private.unlink(missing_ok=True)
        raise
    return private, public, key.public


def rotated(former: Path, folder: Path) -> tuple[list[Path], Rotation]:
    """Write new keys of a party, and its statement that they replace the former; return the files and the statement.

    The party's records stand beside its key, so copies of them go along: files that are signed with the new key are
    compared with those before.
    """
    party, key = party_name(named_by(former)), PrivateKey.load(former)
    statement = folder / f"{file_name(party)}.rotation"
    if statement.exists():
        raise InvalidData(f"{statement} exists, and is not overwritten: give another folder with --out")
    private, public, new = new_pair(party, folder)
    rotation, made = Rotation.new(party, key, new), [private, public]
    try:
        with writing(folder):
            for record in records_in(former.parent, party):
                if not (copy := folder / record.name).exists():
                    new_file(copy, record.read_bytes(), mode=PRIVATE)
                    made.append(copy)
            new_file(statement, rotation.text.encode())
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return [private, public, statement, *made[2:]], rotation


def line(party: str, key: PublicKey) -> str:
    """Return a party's line of TOML."""
    return f"{json.dumps(party, ensure_ascii=False)} = {json.dumps(key.text)}\n"


def read_public(path: str | os.PathLike[str]) -> tuple[str, PublicKey]:
    """Return the party and the key of a `.pub` file."""
    where = os.fspath(path)
    try:
        text = read_regular(path, most=1 << 14).decode()
        [(party, key)] = tomllib.loads(text).items()
        return party_name(party), PublicKey(key)
    except OSError as error:
        raise InvalidData(f"cannot read the public key {where}: {error.strerror}") from error
    except FedgramError as error:
        raise InvalidData(f"{where}: {error}") from error
    except (ValueError, AttributeError) as error:
        raise InvalidData(
            f'{where} is not a public key file: it has one line, such as "north" = "abcd…", as `fedgram keys new` '
            "writes it"
        ) from error
