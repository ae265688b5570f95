"""Data: clients, data sets, and ways to spread one over the other."""

from collections.abc import Callable

from fedgram.data.dataset import Dataset
from fedgram.data.digits import digits
from fedgram.data.synthetic import synthetic
from fedgram.errors import InvalidParameter, UnknownName

__all__ = ["Dataset", "digits", "load_dataset", "synthetic"]


def _load_digits(options: str, clients: int, seed: int) -> Dataset:
    if options:
        raise InvalidParameter(f"data set 'digits' has no options, got {options!r}")
    return digits()


def _load_synthetic(options: str, clients: int, seed: int) -> Dataset:
    try:
        alpha, beta = (float(value) for value in (options or "0.5,0.5").split(","))
    except ValueError:
        raise InvalidParameter(f"synthetic takes alpha,beta such as synthetic:0.5,0.5, got {options!r}") from None
    return synthetic(alpha, beta, clients=clients, seed=seed)


_LOADERS: dict[str, Callable[[str, int, int], Dataset]] = {"digits": _load_digits, "synthetic": _load_synthetic}


def load_dataset(name: str, *, clients: int = 100, seed: int = 0) -> Dataset:
    """Return a data set by name, with options after a colon; `clients` and `seed` count for those that are drawn.

    >>> load_dataset("digits").x.shape
    (1797, 64)
    """
    base, _, options = name.partition(":")
    if base not in _LOADERS:
        raise UnknownName("data set", base, _LOADERS)
    return _LOADERS[base](options, clients, seed)
