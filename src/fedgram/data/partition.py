"""Ways to spread samples over clients. Each returns a list of index arrays that cover every sample once.

>>> labels = np.arange(1000) % 10
>>> parts = dirichlet(labels, clients=20, alpha=0.1, seed=0)
>>> len(parts), sum(map(len, parts))
(20, 1000)
"""

from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData, InvalidParameter, UnknownName
from fedgram.core.randomness import generator
from fedgram.data.client import usual_names
from fedgram.data.dataset import Dataset

Parts: TypeAlias = list[npt.NDArray[np.int64]]
MOST_CLIENTS = 1_000_000
_ARGUMENTS = {
    "dirichlet": "a concentration, as in dirichlet:0.1",
    "shards": "a number of shards per client, as in shards:2",
    "pathological": "a number of classes per client, as in pathological:2 or pathological:2:unbalanced",
    "iid": "",
    "by_group": "",
}
_UNBALANCED = ":unbalanced"
BY_GROUP = "by_group"
# Range from which FedAPA's program draws the shares of a class's holders.
UNBALANCED = 0.3, 0.7


def dirichlet(labels: npt.ArrayLike, *, clients: int, alpha: float, seed: int = 0, min_size: int = 0) -> Parts:
    """Spread each class over the clients in proportions drawn from Dirichlet(alpha): the smaller, the more skewed.

    All five papers use it, beside shards (AFL), classes (FedAPA) and drawn data (FedACnnL). With `min_size`, clients
    that drew fewer samples get random samples of the largest clients. (The common alternative, drawing again until all
    are large enough, may never end.)
    """
    y = _labels(labels)
    _check_clients(clients)
    if not isinstance(alpha, Real) or not np.isfinite(alpha) or alpha <= 0:
        raise InvalidParameter(f"alpha must be a number > 0, got {alpha!r}")
    if not 0 <= min_size * clients <= len(y):
        raise InvalidParameter(
            f"min_size: expected 0 to {len(y) // clients}, since {clients} clients share {len(y)} samples, "
            f"got {min_size}; give less, or use fewer clients"
        )
    rng = generator(seed, "dirichlet")
    owner = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        owner[members] = _by_shares(_dirichlet_weights(rng, alpha, clients), len(members))
    _fill_up(owner, clients, min_size, rng)
    return _by_owner(owner, clients)


def shards(labels: npt.ArrayLike, *, clients: int, shards_per_client: int, seed: int = 0) -> Parts:
    """Sort by label, cut into equal shards, deal each client the same number of them at random."""
    y = _labels(labels)
    _check_clients(clients)
    count = clients * shards_per_client
    if shards_per_client < 1 or count > len(y):
        raise InvalidParameter(
            f"{clients} clients with {shards_per_client} shards each need {count} shards, between {clients} and the "
            f"{len(y)} samples there are: use fewer clients or shards"
        )
    rng = generator(seed, "shards")
    shuffled = rng.permutation(len(y))
    pieces = np.array_split(shuffled[np.argsort(y[shuffled], kind="stable")], count)
    owner = np.empty(len(y), dtype=np.int64)
    for position, piece in enumerate(rng.permutation(count)):
        owner[pieces[piece]] = position // shards_per_client
    return _by_owner(owner, clients)


def pathological(
    labels: npt.ArrayLike, *, clients: int, classes_per_client: int, seed: int = 0, balanced: bool = True
) -> Parts:
    """Give each client samples of only so many classes; each class is shared evenly by its holders.

    With `balanced=False` the holders of a class have unequal shares, drawn as FedAPA's program draws them: uniform
    between 0.3 and 0.7, divided by their sum.
    """
    y = _labels(labels)
    _check_clients(clients)
    present = np.unique(y)
    if not 1 <= classes_per_client <= len(present):
        raise InvalidParameter(f"classes_per_client must be 1 to {len(present)}, got {classes_per_client}")
    if clients * classes_per_client < len(present):
        raise InvalidParameter(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {len(present)} classes: "
            "use more clients or more classes per client"
        )
    rng = generator(seed, "pathological")
    holders: list[list[int]] = [[] for _ in present]
    for client in range(clients):
        # The classes with fewest holders first, ties at random: every class is held, and evenly.
        order = np.lexsort(np.array([rng.random(len(present)), [len(held) for held in holders]]))
        for index in order[:classes_per_client]:
            holders[index].append(client)
    owner = np.empty(len(y), dtype=np.int64)
    for label, held_by in zip(present, holders, strict=True):
        members = rng.permutation(np.flatnonzero(y == label))
        if balanced:
            ranks = np.arange(len(members)) * len(held_by) // len(members)
        else:
            ranks = _by_shares(rng.uniform(*UNBALANCED, len(held_by)), len(members))
        owner[members] = np.asarray(held_by)[ranks]
    return _by_owner(owner, clients)


def iid(n: int, *, clients: int, seed: int = 0) -> Parts:
    """Deal n samples out at random, equally many to each client."""
    _check_clients(clients)
    if n < 1:
        raise InvalidData(f"there must be samples to spread, got n = {n}")
    return [np.sort(part) for part in np.array_split(generator(seed, "iid").permutation(n), clients)]


def by_group(groups: npt.ArrayLike) -> Parts:
    """Give each client the samples of one group, clients in the sorted order of the groups' names."""
    names = np.asarray(groups)
    if names.ndim != 1 or not len(names):
        raise InvalidData(f"groups must name the owner of each sample, shape (n,); got shape {names.shape}")
    values, owner = np.unique(names, return_inverse=True)
    return _by_owner(owner, len(values))


def _dirichlet_weights(rng: np.random.Generator, alpha: float, size: int) -> npt.NDArray[np.float64]:
    # In logarithms, because for small alpha every gamma variate underflows: Γ(α) has the law of Γ(α + 1) · U^(1/α).
    with np.errstate(over="ignore"):  # the very smallest alpha leaves everything to one client
        logs = np.maximum(np.log(rng.gamma(alpha + 1, size=size)) + np.log1p(-rng.random(size)) / alpha, -1e300)
    return np.asarray(np.exp(logs - logs.max()))


def _by_shares(weights: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the owner of each of `count` samples; the owners' shares are in proportion to `weights`."""
    bounds = np.cumsum(weights / weights.sum())
    return np.asarray(np.searchsorted(bounds, (np.arange(count) + 0.5) / count), dtype=np.int64)


def _fill_up(owner: npt.NDArray[np.int64], clients: int, min_size: int, rng: np.random.Generator) -> None:
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes < min_size):
        while sizes[client] < min_size:
            largest = int(sizes.argmax())
            wanted = min(min_size - sizes[client], max((sizes[largest] - min_size) // 2, 1))
            moved = rng.choice(np.flatnonzero(owner == largest), size=wanted, replace=False)
            owner[moved] = client
            sizes[largest] -= wanted
            sizes[client] += wanted


def _by_owner(owner: npt.NDArray[np.int64], clients: int) -> Parts:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return [np.asarray(part, dtype=np.int64) for part in np.split(order, ends[:-1])]


def _labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    y = np.asarray(labels)
    if y.ndim != 1 or not len(y):
        raise InvalidData(f"labels must be one per sample, shape (n,) with n ≥ 1; got shape {y.shape}")
    return y


def _check_clients(clients: int) -> None:
    if isinstance(clients, Integral) and clients > MOST_CLIENTS:
        raise InvalidParameter(f"clients must be at most {MOST_CLIENTS:,}, got {clients}")
    if not isinstance(clients, Integral) or clients < 1:
        raise InvalidParameter(f"clients must be a whole number, at least 1, got {clients!r}")


def client_names(data: Dataset, how: str, count: int) -> list[str]:
    """Return the clients' names: those of the groups where the partition goes by them, else usual ones."""
    if how != BY_GROUP or data.groups is None:
        return usual_names(count)
    return [str(name) for name in np.unique(data.groups)]


def spread(data: Dataset, how: str, *, clients: int, seed: int = 0, min_size: int = 0) -> Parts:
    """Return the indices of each client's samples by a partition's name: `dirichlet:0.1`, `shards:2`, `iid`, …

    `min_size` is the least number of samples of a client, for Dirichlet partitions only.

    >>> from fedgram.data import digits
    >>> [len(part) for part in spread(digits(), "iid", clients=3)]
    [599, 599, 599]
    """
    kind, argument = read_partition(how)
    check_min_size(how, min_size)
    match kind:
        case "dirichlet":
            return dirichlet(data.y, clients=clients, alpha=argument, seed=seed, min_size=min_size)
        case "shards":
            return shards(data.y, clients=clients, shards_per_client=int(argument), seed=seed)
        case "pathological":
            balanced = not how.endswith(_UNBALANCED)
            return pathological(data.y, clients=clients, classes_per_client=int(argument), seed=seed, balanced=balanced)
        case "iid":
            return iid(len(data), clients=clients, seed=seed)
    if data.groups is None:
        raise InvalidParameter(f"data set {data.name!r} has no groups: use another partition")
    return by_group(data.groups)


def read_partition(how: str) -> tuple[str, float]:
    """Return the kind and the argument of a partition, without data to spread.

    >>> read_partition("dirichlet:0.1")
    ('dirichlet', 0.1)
    """
    kind, _, text = how.partition(":")
    if kind not in _ARGUMENTS:
        raise UnknownName("partition", kind, _ARGUMENTS)
    return kind, _number(kind, text)


def check_min_size(how: str, min_size: int) -> None:
    """Raise InvalidParameter if clients of a partition cannot be given a least number of samples."""
    if min_size and how.partition(":")[0] != "dirichlet":
        raise InvalidParameter(
            f"min_size: expected a Dirichlet partition, got {how!r}, which has sizes of its own; leave min_size out"
        )


def _number(kind: str, text: str) -> float:
    wanted = _ARGUMENTS[kind]
    number = text.removesuffix(_UNBALANCED) if kind == "pathological" else text
    if not wanted and not text:
        return 0.0
    try:
        return float(number) if kind == "dirichlet" else float(int(number if wanted else "none wanted"))
    except ValueError:
        raise InvalidParameter(f"partition {kind!r} takes {wanted or 'no argument'}, got {text!r}") from None
