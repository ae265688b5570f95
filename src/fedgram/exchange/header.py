"""What stands at the head of an exchanged file, field by field, in one form that can be written in no other way."""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Self

from fedgram.core import strict_json
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import InvalidData, RefusedMessage, UnknownName
from fedgram.exchange.keys import PublicKey
from fedgram.moments.plausible import MOST_SAMPLES

SCHEMA = 1
KINDS = ("summary", "round", "answer", "global", "personal", "combined", "receipt", "certificate")
MOST_NAME = 200  # characters of a party's name
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_HEXADECIMAL = re.compile("[0-9a-f]*")
# Letters and marks that print as nothing: with them two names look the same (Unicode's Default_Ignorable_Code_Point,
# less what is not printable anyway).
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_COUNT = re.compile("0|[1-9][0-9]{0,18}")
# Not part of what a file says: two files that differ in these alone are the same contribution.
CIRCUMSTANCES = ("digest", "created", "software", "signer", "signature")


@dataclass(frozen=True, kw_only=True)
class Header:
    """Who says what in which study. All of it is in the file's safetensors metadata, as text.

    `study` is the study's fingerprint, "" without one. `samples` and `columns` are those of the moments in it, 0 and
    () where a file holds none. `digest` is the SHA-256 of the content without the time, the software and the
    signature: the same contribution has the same digest, whenever it was written and signed. `signer` is the public
    key, "" with an empty signature in an unsigned file.
    """

    kind: str
    study: str
    party: str
    samples: int = 0
    columns: Columns = ()
    digest: str = ""
    created: str = ""
    software: str = ""
    signer: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        """Refuse what no file of ours says."""
        if self.kind not in KINDS:
            raise UnknownName("kind of file", self.kind, KINDS)
        party_name(self.party)
        if not 0 <= self.samples <= MOST_SAMPLES:
            raise InvalidData(f"samples must be from 0 to {MOST_SAMPLES}, got {self.samples}")
        as_columns(self.columns)

    def blank(self, *names: str) -> Self:
        """Return the header with these fields empty."""
        empty: dict[str, Any] = dict.fromkeys(names, "")
        return replace(self, **empty)

    def texts(self) -> dict[str, str]:
        """Return the header as metadata, in the one order that there is."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = json.dumps(list(self.columns))
        return {"fgm": str(SCHEMA), **found, "samples": str(self.samples), "columns": columns}

    @classmethod
    def of_texts(cls, texts: Mapping[str, Any]) -> Self:
        """Return the header of a file's metadata, if it is written as `texts` writes it."""
        wanted = [field.name for field in fields(cls)]
        given: dict[str, Any] = {name: texts.get(name) for name in wanted}
        for name, text in given.items():
            if not isinstance(text, str):
                raise RefusedMessage(f"its header lacks {name!r}: it is damaged, or not a file that fedgram wrote")
        if not _COUNT.fullmatch(given["samples"]):
            raise RefusedMessage(f"its header has {given['samples'][:40]!r} samples: a whole number is wanted")
        try:
            columns = strict_json.parse(given["columns"])
        except ValueError:
            columns = None
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise RefusedMessage(f"its header has columns {given['columns'][:40]!r}: a list of names is wanted")
        header = cls(**given | {"samples": int(given["samples"]), "columns": tuple(columns)})
        header._check_form()
        return header

    def _check_form(self) -> None:
        lengths = {"study": 64 if self.study else 0, "digest": 64, "signature": 128 if self.signer else 0}
        for name, length in lengths.items():
            text = getattr(self, name)
            if not _HEXADECIMAL.fullmatch(text) or len(text) != length:
                raise RefusedMessage(
                    f"its header has the {name} {text[:40]!r}: {length} hexadecimal digits are expected, got "
                    f"{len(text)} characters; have the file written anew"
                )
        if not is_time(self.created):
            raise RefusedMessage(f"its header has the time {self.created[:40]!r}, which is none")
        if self.signer and PublicKey(self.signer).text != self.signer:
            raise RefusedMessage(f"its header has the key {self.signer[:80]!r} in a form that is never written")


def party_name(name: str) -> str:
    """Return a party's name, if it can be told from others: printable, without blanks around it, in Unicode's NFC form.

    >>> party_name(" north")
    Traceback (most recent call last):
    fedgram.core.errors.InvalidData: ' north' is not a party's name: it has blanks at its ends
    """
    wrong = (
        "it is empty"
        if not name
        else f"it is longer than {MOST_NAME} characters"
        if len(name) > MOST_NAME
        else "it has blanks at its ends"
        if name != name.strip()
        else "it has control characters, or others that do not show"
        if not name.isprintable() or _UNSEEN.search(name)
        else "its letters and accents are not composed as Unicode's NFC form has them"
        if unicodedata.normalize("NFC", name) != name
        else ""
    )
    if wrong:
        raise InvalidData(f"{name[:60]!r} is not a party's name: {wrong}")
    return name


def now() -> str:
    """Return the time as files have it: UTC, to the second.

    One thing only depends on clocks: whether what has left a store was signed anew since.
    """
    return datetime.now(UTC).strftime(_TIME)


def seconds(time: str) -> float:
    """Return a time in seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


def time_of(seconds: int) -> str:
    """Return seconds since 1970 as the time that files have.

    >>> time_of(round(seconds("2026-01-02T03:04:05Z")))
    '2026-01-02T03:04:05Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime(_TIME)


def is_time(text: str) -> bool:
    """Say whether a text is a time as `now` writes it."""
    try:
        return datetime.strptime(text, _TIME).strftime(_TIME) == text
    except ValueError:
        return False
