"""Data: clients, data sets, and ways to spread one over the other."""

from pathlib import Path

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.small_sets import digits, synthetic

__all__ = ["Dataset", "digits", "load_dataset", "synthetic"]


def load_dataset(
    name: str,
    *,
    clients: int = 100,
    seed: int = 0,
    label: str | None = None,
    group: str | None = None,
    on_bad: OnBad = "refuse",
    one_of_many: bool = False,
) -> Dataset:
    """Return a data set by name, or the user's own from a path.

    A name may have an option behind a colon: α and β for `synthetic:0.5,0.5`, and for a published data set the folder
    that holds it (`cifar100:folder`). `clients` and `seed` are for data sets that are drawn; `label` and `group`
    name columns of a user's table. With `one_of_many` the table is that of one party among many, and may have a single
    class.

    >>> load_dataset("digits").x.shape
    (1797, 64)
    """
    from fedgram.data.own.files import open_path
    from fedgram.data.published import catalog

    base, _, option = name.partition(":")
    if base == "synthetic":
        alpha, beta = _two_numbers(option or "0.5,0.5")
        return synthetic(alpha, beta, clients=clients, seed=seed)
    if base.lower() in catalog.names():
        return catalog.load(base, option or None)
    if name and Path(name).expanduser().exists():
        return open_path(name, label, group, on_bad, one_of_many=one_of_many)
    if any(mark in name for mark in "/\\."):
        raise InvalidParameter(f"data {name!r}: there is no such file or folder").telling(
            "data: there is no such file or folder"
        )
    raise UnknownName("data set", base, catalog.names())


def _two_numbers(text: str) -> tuple[float, float]:
    try:
        first, second = (float(value) for value in text.split(","))
    except ValueError:
        raise InvalidParameter(f"synthetic takes alpha,beta such as synthetic:0.5,0.5, got {text!r}") from None
    return first, second
