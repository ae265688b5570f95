"""Class labels: whole numbers or names, and their agreed order.

Inside fedgram a label is its index in the agreed tuple of classes. Outside it is the label that the user wrote.

>>> classes = as_classes(["cat", "dog"])
>>> to_indices(["dog", "cat", "dog"], classes)
array([1, 0, 1])
>>> as_classes(3)
(0, 1, 2)
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import unmasked
from fedgram.core.errors import InvalidData

Label: TypeAlias = int | str
Classes: TypeAlias = tuple[Label, ...]
# The one class of samples whose outcome is a number, a column beside the features.
NUMERIC: Classes = ("numeric outcome",)
# Most classes: a party may send a large number of classes at no cost.
MOST_CLASSES = 2**20
# Only lists of so many classes are cached, so that a sender cannot fill the memory with lists.
_REMEMBERED = 4096


def as_classes(classes: int | Iterable[Label]) -> Classes:
    """Return the classes as a tuple: 0 … c - 1 for a number, the labels themselves otherwise."""
    if isinstance(classes, (int, np.integer)):
        return _numbered(int(classes))
    try:
        labels = tuple(classes)
        return (_known if len(labels) <= _REMEMBERED else _checked)(labels)
    except TypeError:
        raise InvalidData(f"classes must be a number or a list of labels, got {classes!r}") from None


def shorten(classes: Classes) -> int | Classes:
    """Return the classes as they are sent: 0 … c - 1 as the number c. `as_classes` undoes it.

    >>> shorten((0, 1, 2)), shorten(("cat", "dog"))
    (3, ('cat', 'dog'))
    """
    return len(classes) if _are_numbered(classes) else classes


def read_classes(sent: Any, count: int) -> Classes:
    """Return the `count` classes of a message; raise for another number before any list is made."""
    if (sent if isinstance(sent, int) else len(sent)) != count:
        raise InvalidData(f"classes {str(sent)[:60]} do not fit the {count} that the arrays have")
    return as_classes(sent)


def _numbered(count: int) -> Classes:
    if count > MOST_CLASSES:
        raise InvalidData(f"{count} classes are more than the {MOST_CLASSES} that can be")
    return (_known_numbered if count <= _REMEMBERED else _listed)(count)


def _listed(count: int) -> Classes:
    return _checked(tuple(range(count)))


def _are_numbered(classes: Classes) -> bool:
    """Return whether the classes are 0 … c - 1."""
    return isinstance(classes[0], int) and classes == tuple(range(len(classes)))


def _checked(classes: tuple[Any, ...]) -> Classes:
    for name in classes:
        if not isinstance(name, (str, int, np.integer)) or isinstance(name, bool):
            raise InvalidData(f"class {name!r} is neither a whole number nor a name")
    names: Classes = tuple(str(name) if isinstance(name, str) else int(name) for name in classes)
    if len(set(names)) != len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise InvalidData(f"class {twice!r} is listed twice: give each class once")
    if len({type(name) for name in names}) > 1:
        raise InvalidData(f"classes {names[:5]} mix numbers and names: give all of one kind")
    if len(names) < 2 and names != NUMERIC:
        raise InvalidData(f"a classifier needs at least two classes, got {len(names)}: {list(names)}").telling(
            "a classifier needs at least two classes"
        )
    return names


# Every message names the classes, and they are nearly always the same.
_known, _known_numbered = lru_cache(maxsize=16)(_checked), lru_cache(maxsize=16)(_listed)


def as_labels(y: Any) -> npt.NDArray[Any]:
    """Return labels as a 1-D array of int64 or of names; raise for anything else.

    >>> as_labels([0.5, 1.0])
    Traceback (most recent call last):
    fedgram.core.errors.InvalidData: labels must be whole numbers or names, got float64: convert them first
    """
    labels = np.asarray(unmasked(y, "labels"))
    if labels.ndim != 1:
        raise InvalidData(f"labels must be one per sample, shape (n,); got shape {labels.shape}")
    if labels.dtype.kind == "u" and labels.size and labels.max() > np.iinfo(np.int64).max:
        raise InvalidData(f"label {labels.max()} does not fit into 64 bits: give classes names instead")
    if labels.dtype.kind in "iub" or labels.size == 0:
        return labels.astype(np.int64) if labels.dtype.kind != "U" else labels
    if labels.dtype.kind == "U":
        return labels
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(np.str_)
    raise InvalidData(f"labels must be whole numbers or names, got {labels.dtype}: convert them first")


def distinct(*parts: npt.NDArray[Any] | None) -> list[Label]:
    """Return the labels that occur, sorted.

    >>> distinct(np.array([3, 1, 3]), np.array([2]), None)
    [1, 2, 3]
    """
    return sorted({label for part in parts if part is not None for label in np.unique(part).tolist()})


def to_indices(y: Any, classes: Classes) -> npt.NDArray[np.int64]:
    """Return each label's index in `classes`.

    Whole numbers given where the classes are names are taken as indices already.
    """
    labels = as_labels(y)
    if labels.size == 0:
        return np.zeros(0, dtype=np.int64)
    if labels.dtype.kind == "U" or not _are_indices(classes):
        index = {label: i for i, label in enumerate(classes)}
        values, inverse = np.unique(labels, return_inverse=True)
        for value in values:
            if value.item() not in index:
                raise _unknown(value.item(), classes)
        return np.array([index[value.item()] for value in values], dtype=np.int64)[inverse]
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        raise _unknown(low if low < 0 else high, classes)
    return labels.astype(np.int64, copy=False)


def from_indices(indices: npt.NDArray[np.int64], classes: Classes) -> npt.NDArray[Any]:
    """Return labels that `to_indices` turns into these indices: for classes such as 1 and 2, the numbers themselves.

    >>> from_indices(np.array([0, 1]), (1, 2)), from_indices(np.array([0, 1]), ("ill", "well"))
    (array([1, 2]), array([0, 1]))
    """
    return indices if not classes or _are_indices(classes) else np.array(classes, dtype=np.int64)[indices]


def _are_indices(classes: Classes) -> bool:
    return isinstance(classes[0], str) or _are_numbered(classes)


def _unknown(label: Label, classes: Classes) -> InvalidData:
    known = f"{classes[0]!r} … {classes[-1]!r}" if len(classes) > 6 else ", ".join(map(repr, classes))
    remedy = ": if the classes are others, list them, as in classes=[1, 2]" if _are_numbered(classes) else ""
    return InvalidData(f"label {label!r} is not one of the {len(classes)} classes ({known}){remedy}").telling(
        "a label is not one of the agreed classes"
    )
