"""Which of a node's samples are held back for testing: the node's own choice, the same in every run.

If a run could choose, the difference of two runs would show single samples. So the choice is a keyed hash of each
sample, with a key that only the node has: nobody else can tell, or change, which samples are used.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.core.files import locked, replace_file
from fedgram.core.labels import Label

KEY_FILE = "split.key"
_KEY_BYTES = 32
_AT_ONCE = 1024  # samples


def node_key(folder: Path) -> bytes:
    """Return the node's key, kept in its folder; the first call makes it, and nothing ever writes over it.

    A damaged one is an error, since with a new key other samples would be held back than in the runs before.
    """
    path = folder / KEY_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f".{KEY_FILE}.lock"), nullcontext):
                if not path.exists():
                    replace_file(path, secrets.token_bytes(_KEY_BYTES), mode=0o600)
        key = path.read_bytes()
    except OSError as error:
        raise InvalidData(f"cannot read or write {path}: {error.strerror or error}").telling(
            "the node cannot use its own folder"
        ) from error
    if len(key) != _KEY_BYTES:
        raise InvalidData(
            f"{path} is damaged: it has {len(key)} bytes, not {_KEY_BYTES}. Bring it back from a copy: with another "
            "key other samples would be held back than in earlier runs"
        ).telling("the key of the node's split is damaged")
    return key


def held_back(x: Any, labels: Sequence[Label], fraction: float, key: bytes) -> npt.NDArray[np.bool_]:
    """Return which samples are held back: about that fraction, by the keyed hash of each sample with its label.

    Equal samples are on the same side, and none changes sides when others are added or removed.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for i, (content, label) in enumerate(zip(_contents(x), labels, strict=True)):
        name = str(label).encode()
        about = blake2b(len(name).to_bytes(8, "big") + name, digest_size=8, key=key, person=b"fedgram split")
        about.update(content)
        chosen[i] = int.from_bytes(about.digest(), "big") < fraction * 2**64
    return chosen


def _contents(x: Any) -> Iterator[bytes]:
    """Yield the bytes of each sample, the same for equal numbers of any type; of an image file, the file's."""
    paths: Sequence[Path] | None = getattr(x, "paths", None)
    if paths is not None:  # reading a file is quicker than decoding it
        yield from (path.read_bytes() for path in paths)
        return
    for start in range(0, len(x), _AT_ONCE):
        block = np.asarray(x[start : start + _AT_ONCE])
        if block.dtype.kind in "OUS":
            yield from (str(sample).encode() for sample in block)
        else:
            rows = block.reshape(len(block), -1).astype("<f8") + 0.0  # -0.0 becomes 0.0
            yield from (row.tobytes() for row in rows)
