"""Groups of clients with similar labels: K-means on what each tells of its label distribution."""

import warnings

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require

Groups = npt.NDArray[np.int64]
MOST_GROUPS = 20
# Rousseeuw's usual reading: a mean silhouette below this shows no structure to speak of.
NO_STRUCTURE = 0.25


def group(points: Array, count: int, seed: int) -> Groups:
    """Return the group (n,) of each point (n, w), by K-means."""
    if count > len(points):
        raise InvalidParameter(f"{count} groups for {len(points)} clients: give at most as many groups as clients")
    cluster = require("sklearn.cluster", "sklearn", "grouping clients by K-means")
    with warnings.catch_warnings():
        # Clients with equal labels make fewer distinct points than groups; then there are fewer groups.
        warnings.simplefilter("ignore", require("sklearn.exceptions", "sklearn", "K-means").ConvergenceWarning)
        found = cluster.KMeans(count, n_init=10, random_state=seed).fit_predict(points)
    return numbered(found)


def choose_groups(points: Array, seed: int) -> Groups:
    """Return groups (n,), as many as give the largest mean silhouette; one group where even that shows no structure.

    The silhouette of a client compares its distance to its own group with that to the nearest other one. It needs only
    what the clients sent before anything is trained; judging by trained models would cost a training per candidate.
    """
    metrics = require("sklearn.metrics", "sklearn", "choosing the number of groups")
    best, found = NO_STRUCTURE, np.zeros(len(points), dtype=np.int64)
    distinct = len(np.unique(points.round(12), axis=0))
    for count in range(2, min(MOST_GROUPS, len(points) // 2, distinct) + 1):
        candidate = group(points, count, seed)
        if candidate.max() > 0 and (quality := metrics.silhouette_score(points, candidate)) > best:
            best, found = quality, candidate
    return found


def without_small(points: Array, groups: Groups, least: int) -> Groups:
    """Return groups of at least `least` points: those of smaller ones join the nearest group that is large enough.

    >>> points = np.array([[0.0], [0.1], [0.2], [5.0]])
    >>> without_small(points, np.array([0, 0, 0, 1]), least=2)
    array([0, 0, 0, 0])
    """
    large = np.flatnonzero(np.bincount(groups) >= least)
    if not len(large):
        return np.zeros_like(groups)
    centres = np.stack([points[groups == k].mean(axis=0) for k in large])
    nearest = large[((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)]
    return numbered(np.where(np.isin(groups, large), groups, nearest))


def numbered(groups: npt.NDArray[np.integer]) -> Groups:
    """Return the groups numbered in the order in which they come.

    >>> numbered(np.array([7, 3, 7, 1]))
    array([0, 1, 0, 2])
    """
    _, first, index = np.unique(groups, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[index], dtype=np.int64)
