"""Keys that stand for what was run: the same for the same values, everywhere and in every version."""

import json
from typing import Any

from fedgram.core.hashing import hash_text


def stable_key(about: Any) -> str:
    """Return 16 hexadecimal digits that stand for some plain values.

    >>> stable_key({"b": 1, "a": 2.0}) == stable_key({"a": 2, "b": 1})
    True
    """
    text = json.dumps(_plain(about), sort_keys=True, separators=(",", ":"), default=str)
    return hash_text(text)[:16]


def _plain(value: Any) -> Any:
    """Write 1.0 as 1, the same hyper-parameter, and leave out what is None: an option added later changes no key."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
