"""The SpamAssassin public mail corpus: one text file per e-mail, in five folders."""

from pathlib import Path

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.data.published.layouts.base import Layout
from fedgram.data.published.store import Content

CLASSES = ("ham", "spam")
GROUPS = ("easy-ham-1", "easy-ham-2", "hard-ham-1", "spam-1", "spam-2")


def spam_assassin_layout() -> Layout:
    """Return the layout of the five folders; the folder is the e-mail's group."""
    return Layout(GROUPS[0], ("package/data", "spam-assassin"), _read)


def _read(folder: Path) -> Content:
    texts: list[str] = []
    groups: list[str] = []
    for group in GROUPS:
        files = sorted((folder / group).glob("*.txt"))
        if not files:
            raise InvalidData(f"{folder} has no e-mails in {group}: place them there as .txt files")
        texts += [_decoded(file.read_bytes()) for file in files]
        groups += [group] * len(files)
    x = np.empty(len(texts), dtype=object)
    x[:] = texts
    y = np.array([CLASSES.index("spam" if group.startswith("spam") else "ham") for group in groups])
    return Content(CLASSES, {"x": x, "y": y.astype(np.int64), "groups": np.array(groups)})


def _decoded(raw: bytes) -> str:
    """Mail of 2002 does not always say its encoding; what is not UTF-8 is nearly always Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
