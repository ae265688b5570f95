"""JSON that came from elsewhere, read in the only way in which it can be read.

Python's reader takes what others do not, or take differently: a name twice in an object (the last one wins, elsewhere
the first), NaN and Infinity, other encodings than UTF-8, and any depth. What two readers understand differently must
not be signed, so all files and messages are read by `parse`.

>>> parse('{"payload": 1, "payload": 2}')
Traceback (most recent call last):
ValueError: the name 'payload' stands twice in an object
"""

import json
from collections import Counter
from math import isfinite
from typing import Any, NoReturn

MOST_DEPTH = 640  # of lists and objects in one another: a payload of 300 levels, each of which takes two
TOO_DEEP = f"lists and objects are nested deeper than {MOST_DEPTH} levels"


def parse(text: str | bytes, *, constants: bool = False) -> Any:
    """Return the value of a JSON text; raise ValueError, with a reason that can be shown, for anything else.

    Parameters
    ----------
    text
        The text, bytes in UTF-8.
    constants
        Whether the format allows NaN, Infinity and -Infinity, as a message between processes of one user does.

    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    readers: dict[str, Any] = {} if constants else {"parse_constant": _refuse, "parse_float": _finite}
    try:
        found = json.loads(text, object_pairs_hook=_unique, **readers)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > MOST_DEPTH and _is_deeper(found):
        raise ValueError(TOO_DEEP)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {twice[:60]!r} stands twice in an object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _is_deeper(value: Any) -> bool:
    """Return whether lists and objects are nested deeper than allowed, without recursion."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
