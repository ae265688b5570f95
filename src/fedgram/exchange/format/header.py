"""The header of an exchanged file, field by field, in exactly one written form."""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Self

from fedgram.core import container
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import InvalidData, RefusedMessage, UnknownName
from fedgram.moments.feasibility import MOST_SAMPLES
from fedgram.secure.signing_keys import PublicKey

SCHEMA = 1
KINDS = ("summary", "round", "answer", "global", "personal", "combined", "receipt", "certificate")
MOST_NAME = 200  # characters of a party's name
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_HEXADECIMAL = re.compile("[0-9a-f]*")
# Invisible letters and marks, with which two names could look the same (Unicode's Default_Ignorable_Code_Point without
# those that are not printable anyway).
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_COUNT = re.compile("0|[1-9][0-9]{0,18}")
# Not part of the content: two files that differ in these alone are the same contribution.
CIRCUMSTANCES = ("digest", "created", "software", "signer", "signature")


@dataclass(frozen=True, kw_only=True)
class Header:
    """Header fields of an exchanged file, kept as text in its safetensors metadata.

    Attributes
    ----------
    kind
        Kind of file, one of `KINDS`.
    study
        Fingerprint of the study, "" without a study.
    party
        Name of the party that the file comes from.
    samples, columns
        Those of the moments in the file; 0 and () if it holds none.
    digest
        SHA-256 of the content without time, software and signature: the same contribution has the same digest,
        whenever it was written and signed.
    created
        Time of writing in UTC.
    software
        Name and version of the software that wrote the file.
    signer, signature
        Public key and signature; both "" in an unsigned file.

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
        """Raise if a field has a value that fedgram never writes."""
        if self.kind not in KINDS:
            raise UnknownName("kind of file", self.kind, KINDS)
        party_name(self.party)
        if not 0 <= self.samples <= MOST_SAMPLES:
            raise InvalidData(f"samples: expected 0 to {MOST_SAMPLES}, got {self.samples}")
        as_columns(self.columns)

    def blank(self, *names: str) -> Self:
        """Return the header with these fields empty."""
        empty: dict[str, Any] = dict.fromkeys(names, "")
        return replace(self, **empty)

    def texts(self) -> dict[str, str]:
        """Return the header as metadata, in its only order."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = json.dumps(list(self.columns))
        return {"fgm": str(SCHEMA), **found, "samples": str(self.samples), "columns": columns}

    @classmethod
    def of_texts(cls, texts: Mapping[str, Any]) -> Self:
        """Return the header of a file's metadata; raise if it is not in the form that `texts` writes."""
        wanted = [field.name for field in fields(cls)]
        given: dict[str, Any] = {name: texts.get(name) for name in wanted}
        for name, text in given.items():
            if not isinstance(text, str):
                raise RefusedMessage(
                    f"header field {name!r}: expected a text, got nothing; "
                    "the file is damaged, or fedgram did not write it"
                )
        if not _COUNT.fullmatch(given["samples"]):
            raise RefusedMessage(
                f"header field 'samples': expected a whole number, got {given['samples'][:40]!r}; have it written anew"
            )
        try:
            columns = container.parse(given["columns"])
        except ValueError:
            columns = None
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise RefusedMessage(
                f"header field 'columns': expected a list of names, got {given['columns'][:40]!r}; have it written anew"
            )
        header = cls(**given | {"samples": int(given["samples"]), "columns": tuple(columns)})
        header._check_form()
        return header

    def _check_form(self) -> None:
        lengths = {"study": 64 if self.study else 0, "digest": 64, "signature": 128 if self.signer else 0}
        for name, length in lengths.items():
            text = getattr(self, name)
            if not _HEXADECIMAL.fullmatch(text) or len(text) != length:
                raise RefusedMessage(
                    f"header field {name!r}: expected {length} hexadecimal digits, got {text[:40]!r} "
                    f"({len(text)} characters); have it written anew"
                )
        if not is_time(self.created):
            raise RefusedMessage(
                f"header field 'created': expected a UTC time as in 2026-01-02T03:04:05Z, got {self.created[:40]!r}"
            )
        if self.signer and PublicKey(self.signer).text != self.signer:
            raise RefusedMessage(
                f"header field 'signer': expected a key in lower case with hyphens, got {self.signer[:80]!r}"
            )


def party_name(name: str) -> str:
    """Return a party's name; raise if it is not printable, has blanks around it or is not in Unicode's NFC form.

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
    """Return the present time as files write it: UTC, to the second.

    Only one decision depends on clocks: whether a contribution that left a store was signed again since.
    """
    return datetime.now(UTC).strftime(_TIME)


def seconds(time: str) -> float:
    """Return a time in seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


def time_of(seconds: int) -> str:
    """Return the time in UTC, as files write it, of seconds since 1970.

    >>> time_of(round(seconds("2026-01-02T03:04:05Z")))
    '2026-01-02T03:04:05Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime(_TIME)


def is_time(text: str) -> bool:
    """Return whether a text is a time as `now` writes it."""
    try:
        return datetime.strptime(text, _TIME).strftime(_TIME) == text
    except ValueError:
        return False
