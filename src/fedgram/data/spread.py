"""Partitions by name, as the command line and experiment files give them: `dirichlet:0.1`, `shards:2`, `iid`, …"""

import numpy as np

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.data import partition
from fedgram.data.client import usual_names
from fedgram.data.dataset import Dataset
from fedgram.data.partition import Parts

_ARGUMENTS = {
    "dirichlet": "a concentration, as in dirichlet:0.1",
    "shards": "a number of shards per client, as in shards:2",
    "pathological": "a number of classes per client, as in pathological:2 or pathological:2:unbalanced",
    "iid": "",
    "by_group": "",
}
_UNBALANCED = ":unbalanced"
BY_GROUP = "by_group"


def client_names(data: Dataset, how: str, count: int) -> list[str]:
    """Return the clients' names: those of the groups where the partition goes by them, else usual ones."""
    if how != BY_GROUP or data.groups is None:
        return usual_names(count)
    return [str(name) for name in np.unique(data.groups)]


def spread(data: Dataset, how: str, *, clients: int, seed: int = 0) -> Parts:
    """Return the indices of each client's samples.

    >>> from fedgram.data import digits
    >>> [len(part) for part in spread(digits(), "iid", clients=3)]
    [599, 599, 599]
    """
    kind, argument = read_partition(how)
    match kind:
        case "dirichlet":
            return partition.dirichlet(data.y, clients=clients, alpha=argument, seed=seed)
        case "shards":
            return partition.shards(data.y, clients=clients, shards_per_client=int(argument), seed=seed)
        case "pathological":
            balanced = not how.endswith(_UNBALANCED)
            return partition.pathological(
                data.y, clients=clients, classes_per_client=int(argument), seed=seed, balanced=balanced
            )
        case "iid":
            return partition.iid(len(data), clients=clients, seed=seed)
    if data.groups is None:
        raise InvalidParameter(f"data set {data.name!r} has no groups: use another partition")
    return partition.by_group(data.groups)


def read_partition(how: str) -> tuple[str, float]:
    """Return the kind and the argument of a partition, without data to spread.

    >>> read_partition("dirichlet:0.1")
    ('dirichlet', 0.1)
    """
    kind, _, text = how.partition(":")
    if kind not in _ARGUMENTS:
        raise UnknownName("partition", kind, _ARGUMENTS)
    return kind, _number(kind, text)


def _number(kind: str, text: str) -> float:
    wanted = _ARGUMENTS[kind]
    number = text.removesuffix(_UNBALANCED) if kind == "pathological" else text
    if not wanted and not text:
        return 0.0
    try:
        return float(number) if kind == "dirichlet" else float(int(number if wanted else "none wanted"))
    except ValueError:
        raise InvalidParameter(f"partition {kind!r} takes {wanted or 'no argument'}, got {text!r}") from None
