"""Labels and clients' names as they stand in files: whole numbers or names, missing ones, and those that look alike."""

import re
import unicodedata
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import Doubtful, InvalidData, NumericLabels
from fedgram.data.own.bad import warn_of_look_alikes
from fedgram.data.own.cells import Coded, is_missing, number_of

_IDENTIFIER = re.compile(r"(.*[_\-. ])?(id|ids|uuid|guid|mrn|nr|no|name)|unnamed: 0|index|", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?", re.ASCII)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)(\.0*)?")


def names_identifier(column: str) -> bool:
    """Say whether a column's name is that of an identifier: a number or name of a person, a sample or a row.

    >>> names_identifier("patient_id"), names_identifier("Unnamed: 0"), names_identifier(""), names_identifier("humid")
    (True, True, True, False)
    """
    return _IDENTIFIER.fullmatch(column) is not None


def are_dates(texts: Collection[str]) -> bool:
    """Say whether all texts are dates, with a time of day or without.

    >>> are_dates(["2026-01-31", "31.1.26", "1/31/2026 12:00"]), are_dates(["2026"]), are_dates([])
    (True, False, False)
    """
    return bool(texts) and all(_DATE.fullmatch(text) for text in texts)


def whole_number(text: str) -> str | None:
    """Return a whole number without the point that some programs write behind it, None of any other text.

    >>> whole_number("1.0"), whole_number("-2"), whole_number("01"), whole_number("1.5")
    ('1', '-2', None, None)
    """
    if not _WHOLE.fullmatch(text):
        return None
    whole = text.partition(".")[0]
    return "0" if whole == "-0" else whole


def one_form(text: str) -> str:
    """Return one form of a text that programs write in several ways: 1 for 1.0, and composed characters.

    >>> one_form("1.0"), one_form("1.5"), one_form("Zu\u0308rich") == "Z\u00fcrich"
    ('1', '1.5', True)
    """
    return whole_number(text) or unicodedata.normalize("NFC", text)


def parse_labels(texts: Sequence[str], where: str) -> npt.NDArray[Any]:
    """Return labels as int64 if all are whole numbers, else as names; refuse fractions.

    >>> parse_labels(["2", "0", "1.0"], "a.csv"), parse_labels(["cat", "2"], "a.csv")
    (array([2, 0, 1]), array(['cat', '2'], dtype='<U3'))
    """
    values, inverse = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
    if all(_WHOLE.fullmatch(value) for value in values):
        numbers = [int(value.partition(".")[0]) for value in values]
        if too_large := [number for number in numbers if not -(2**63) <= number < 2**63]:
            raise InvalidData(f"label {too_large[0]} of {where} does not fit into 64 bits: give classes names instead")
        return np.array(numbers, dtype=np.int64)[inverse]
    if all(_fraction(value) for value in values if not _WHOLE.fullmatch(value)):
        raise NumericLabels(
            f"the label column of {where} holds numbers like {texts[0]}: labels are whole or names; for a numeric "
            "outcome, agree on a study first (fedgram study new) and give it with --study"
        ).telling("the label column must hold whole numbers or names")
    if are_dates(values.tolist()):
        warnings.warn(
            f"the labels of {where} are dates, and count as {len(values)} classes: to predict a time, make it a number "
            "of days since an event",
            Doubtful,
            stacklevel=2,
        )
    return values[inverse]


def known_labels(labels: Coded, where: str) -> dict[str, Any]:
    """Return the label that each text that occurs stands for; "" stands for none."""
    there = [value for value in labels.counts() if value]
    return dict(zip(there, parse_labels(there, where), strict=True)) if there else {}


def parsed(labels: Coded, where: str) -> npt.NDArray[Any]:
    """Return the labels, masked where there is none."""
    known = known_labels(labels, where)
    missing = labels.map(lambda value: value not in known, bool)
    dtype = np.array(list(known.values())).dtype
    out = labels.map(lambda value: known.get(value, dtype.type()), dtype)
    return np.ma.masked_array(out, missing) if missing.any() else out


def tidied(texts: Sequence[str], where: str) -> npt.NDArray[np.str_]:
    """Return texts in one form, without blanks around them, and "" for those that mean nothing is there."""
    values, inverse = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
    bare = ["" if is_missing(value) else value.strip() for value in values.tolist()]
    tidy = [one_form(value) for value in bare]
    there = [value for value in bare if value]
    distinct = list(dict.fromkeys(there))
    if len(distinct) < len(there):
        twice = next(value for value in distinct if there.count(value) > 1)
        warnings.warn(
            f"{where} has {twice!r} with and without blanks around it: they count as one", Doubtful, stacklevel=3
        )
    warn_of_look_alikes(dict.fromkeys(value for value in tidy if value), where)
    return np.array(tidy, dtype=np.str_)[inverse] if tidy else np.zeros(0, dtype=np.str_)


def tidied_column(cells: Coded, where: str) -> Coded:
    """Do the same for a column of texts."""
    return Coded(tidied(cells.values, where).tolist(), cells.codes)


def _fraction(text: str) -> bool:
    number = number_of(text)
    return number is not None and not number.is_integer()
