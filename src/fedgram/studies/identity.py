"""Identity of a study: its text, its fingerprint, and the comparison of two studies.

This is the only place that says which studies are the same. Files, messages and ledgers name a study by its
fingerprint, all 256 bits of it; people compare what `readable` makes of it. Where the whole study is at hand on both
sides, all of it is compared, so that nothing depends on the hash alone.
"""

import json
from typing import TYPE_CHECKING, Any

from fedgram.core.errors import FedgramError, Mismatch
from fedgram.core.hashing import hash_text, readable

if TYPE_CHECKING:
    from fedgram.studies.study import Study


def text_of(fields: dict[str, Any]) -> str:
    """Return all that a study says, as one line of JSON: two studies are the same if their texts are."""
    return json.dumps(fields, ensure_ascii=False, sort_keys=False)


def fingerprint_of(text: str) -> str:
    """Return the fingerprint of a study with this text: SHA-256, 64 hexadecimal digits."""
    return hash_text(text)


def is_same(agreed: "Study | None", fingerprint: str, whole: "Study | None" = None) -> bool:
    """Return whether something is of the agreed study.

    Parameters
    ----------
    agreed
        The study at hand, None for none.
    fingerprint
        The fingerprint that the thing names, "" for no study.
    whole
        The whole study that came with the thing, if it did. Then every word of it must be the same.

    """
    if fingerprint != ("" if agreed is None else agreed.fingerprint):
        return False
    return whole is None or whole == agreed


def check_same(
    what: str,
    agreed: "Study | None",
    fingerprint: str,
    whole: "Study | None" = None,
    *,
    remedy: str,
    error: type[FedgramError] = Mismatch,
) -> None:
    """Raise an error unless something, called `what`, is of the agreed study; the other parameters are `is_same`'s."""
    if is_same(agreed, fingerprint, whole):
        return
    wanted = named(agreed)
    found = readable(fingerprint) or "none" if whole is None else named(whole)
    also = ", whose text differs though the fingerprint is the same" if found == wanted else ""
    raise error(f"{what} is of study {found}{also}, and study {wanted} is expected: {remedy}")


def named(study: "Study | None") -> str:
    """Return a study's name and fingerprint, as people compare them."""
    return "none" if study is None else f"{study.name!r} {readable(study.fingerprint)}"
