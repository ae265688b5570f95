"""A party's two key files: `north.key`, which it keeps to itself, and `north.pub`, which it sends to the others.

A `.pub` file is one line of TOML, `"north" = "…"`, as it stands in the study file's `[parties]`.
"""

import json
import os
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

from fedgram.core.errors import FedgramError, InvalidData
from fedgram.core.files import new_file, read_regular, writing
from fedgram.exchange.header import party_name
from fedgram.exchange.keys import PrivateKey, PublicKey

# What would lead out of the folder, or what some systems refuse: on Windows CON.key is the console.
_UNSAFE = re.compile(r'[%/\\:*?"<>|]|^\.|^(?=(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)).', re.ASCII | re.IGNORECASE)


def file_name(party: str) -> str:
    """Return what files of a party are called: its name, with percent signs for what is dangerous in a file's name.

    >>> file_name("north"), file_name("../étage 2"), file_name("Con")
    ('north', '%2E.%2Fétage 2', '%43on')
    """
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", party_name(party))


def named_by(path: Path) -> str:
    """Return the party whose file this is, by its name."""
    return unquote(path.stem)


def new_pair(party: str, folder: Path) -> tuple[Path, Path, PublicKey]:
    """Write a party's new keys into a folder, never over existing ones, and return the files and the public key."""
    private, public = (folder / f"{file_name(party)}.{ending}" for ending in ("key", "pub"))
    if public.exists():
        raise InvalidData(f"{public} exists, and a key is never overwritten: give another name or folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    key = PrivateKey.new()
    key.save(private)
    try:
        with writing(public):
            new_file(public, line(party, key.public).encode())
    except BaseException:  # Ctrl-C included: half a pair is of no use, and would stand in the way of a whole one
        private.unlink(missing_ok=True)
        raise
    return private, public, key.public


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
