"""pFedACnnL: layer-wise networks for groups of similar clients, then for each client, in closed form.

The method comes first, then the groups (K-means on label distributions), then a client's own network: a ridge towards
the meta-model layer by layer, whose strength is judged by left-out samples. Of (12) the solution is (13),
W_l = (XᵀX + εI)⁻¹ (XᵀZ̄ + εM_l). Where a layer is solved for the labels themselves (see `Problem`), Z̄ is a column for
each class and position, and M_l the meta-model's solution for these.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.extras import require
from fedgram.core.schema import Count, Positive
from fedgram.heads import adapt
from fedgram.heads.least_squares import EXPECTED, calibrated
from fedgram.heads.likelihood import WORTHWHILE
from fedgram.layerwise.layer_types import Convolution
from fedgram.layerwise.layered_network import LayerMoments, LayerTotal, Network, Problem, layer_moments
from fedgram.methods.layerwise.fedacnnl import FedACnnL
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import Indices, check_finite, not_finite
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Numbers, Question

# In a group of two, each member could compute the other's moments from those of the group.
LEAST_MEMBERS = 3
# The paper's ε: a candidate of "auto", and for clients without samples to judge by.
UNJUDGED = 2500.0
ROUNDING = 1e-9
Groups = npt.NDArray[np.int64]
MOST_GROUPS = 20
# Rousseeuw's usual reading: a mean silhouette below this shows hardly any structure.
NO_STRUCTURE = 0.25
# Candidates of "auto", from almost the meta-model to almost own samples alone; of equal ones the first is taken.
EPSILONS = np.geomspace(1e5, 1e-2, 29)
FOLDS = 5
Samples = npt.NDArray[Any]


@register
@dataclass(frozen=True, kw_only=True)
class PFedACnnL(FedACnnL):
    """pFedACnnL — Gu et al. 2025, section 4: a meta-model per group of clients, then a ridge towards it.

    Clients with similar labels form a group, (8) and (9), which trains a network as FedACnnL does, (10) and (11). Each
    client then solves every layer again on its own samples, drawn by ε towards the meta-model, (12) and (13).
    `cluster=False` is the paper's -WC (one group), `personalize=False` its -WP (the meta-model is the client's model).
    The paper has ε = 2500 and 10 groups. By default all clients are one group and send no histograms: with ε
    chosen for each client, groups of similar labels gain nothing, and lose points where samples are few.
    `groups="auto"` finds their number from the label histograms alone.

    `epsilon="auto"` chooses ε per client and layer by the error on left-out samples. The meta-model for this choice
    comes from the group's moments without the client's own. Only the output layer is personalized, or all layers with
    the paper's ε = 2500, where that predicts better. For this choice a client downloads its group's moments, which are
    as large as its upload; with a number for ε it does not. Groups of fewer than three clients then join the nearest
    larger group. If a layer's moments still come from only two clients (there are no more, or others were lost), each
    could compute the other's. So these moments are not sent, and the group takes ε = 2500.

    Parameters
    ----------
    epsilon
        ε, how strongly a client's layers are drawn to the meta-model's, or "auto".
    groups
        The number of groups of clients, or "auto".
    cluster
        Whether clients are grouped; without, it is pFedACnnL-WC.
    personalize
        Whether clients solve the layers again; without, it is pFedACnnL-WP.

    """

    revision: ClassVar[int] = 5
    personal = True
    quick = MappingProxyType({"groups": "auto"})

    epsilon: Positive | Literal["auto"] = "auto"
    groups: Count | Literal["auto"] = 1
    cluster: bool = True
    personalize: bool = True

    @property
    def _judges(self) -> bool:
        return self.personalize and self.epsilon == "auto"

    # server
    def serve(self, clients: Clients) -> Network | None:
        """Group the clients, train a meta-model per group, and let every client personalize."""
        seed = self._seed(clients)
        groups = self._grouped(clients, seed) if self.cluster and self.groups != 1 else [clients.names]
        trained = self._train(clients, seed, groups)  # M̂_l — (10), (11)
        networks, left = trained.networks, set(clients.names)
        sent = [
            parts if self._judges and _hides_members(counts) else None
            for parts, counts in zip(trained.moments, trained.members, strict=True)
        ]
        tasks = {
            name: {
                "solution": networks[k].solutions[-1],
                "temperature": networks[k].temperature,
                "offsets": networks[k].offsets,
                "moments": sent[k],
                "gammas": trained.gammas,
            }
            for k, names in enumerate(trained.groups)
            for name in names
            if name in left
        }
        clients.each(self.refit, per_client=tasks)
        clients.report(networks[0].depth)
        return networks[0] if len(networks) == 1 else None

    def _grouped(self, clients: Clients, seed: int) -> list[list[str]]:
        """Return the clients' names by group; the same for any order of the clients."""
        encoded = {reply.client: reply.value for reply in clients.call(self.describe, seed)}
        names = sorted(encoded)
        points, shuffle = np.stack([encoded[name] for name in names]), int(clients.rng.integers(2**31))
        found = choose_groups(points, shuffle) if self.groups == "auto" else group(points, self.groups, shuffle)  # 𝔖_k
        if self._judges:
            found = without_small(points, found, LEAST_MEMBERS)
        return [[name for name, k in zip(names, found, strict=True) if k == one] for one in range(found.max() + 1)]

    # client
    @step(reply=lambda method, question: method.description_of(question))
    def describe(self, client: ClientSide, seed: int) -> Array:
        """Return h_i — (8), (9): the label histogram under the narrowest encoding (the paper prints Qy for Qᵀy)."""
        check_finite(client.x)  # before it affects the groups
        histogram = np.bincount(client.y, minlength=len(client.classes)) / len(client.y)
        # Without a hidden layer there is no encoding: the histogram itself is sent.
        return self._empty(client.x.shape[1:], client.classes, seed).encode(histogram)

    def description_of(self, question: Question) -> Numbers:
        """Return the rule for a client's description: a mixture of the descriptions of the classes."""
        seed: Any = question.payload
        classes = self._empty(question.shape, question.classes, seed).encode(np.eye(len(question.classes)))
        return Numbers(classes.shape[1:], low=classes.min() - ROUNDING, high=classes.max() + ROUNDING)

    @step
    def refit(self, client: ClientSide, task: Mapping[str, Any]) -> None:
        """Keep the personal network Ŵ_1 … Ŵ_L — (12), (13) — or, without personalization, the meta-model."""
        meta: Network = client.state["network"].extend(task["solution"])
        meta = replace(meta, temperature=task["temperature"], offsets=task["offsets"])
        if self.personalize:
            if task["moments"] is not None:
                epsilons = self._judged(client, meta, task["moments"], task["gammas"])
            else:
                epsilons = [UNJUDGED if self.epsilon == "auto" else float(self.epsilon)] * meta.depth
            meta = personalized(meta, client.x, client.y, epsilons, batch=self.batch)
        client.keep(meta)

    def _judged(
        self, client: ClientSide, meta: Network, everyone: Sequence[LayerMoments], gammas: Sequence[float]
    ) -> list[float]:
        """Return ε for each layer, judged with the group's solutions without this client."""
        others = [
            total - layer_moments(meta.truncate(depth), client.x, client.y, batch=self.batch)
            for depth, total in enumerate(everyone)
        ]
        solutions = [rest.solve(meta.problem(depth), gammas[depth]) for depth, rest in enumerate(others)]
        return judge(meta, solutions, client.x, client.y, batch=self.batch)


def _hides_members(counts: Sequence[int]) -> bool:
    """Return whether no member can compute another's moments from those of the group, given clients per layer."""
    return all(count >= LEAST_MEMBERS for count in counts) or all(count == 1 for count in counts)


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
    """Return groups (n,), as many as give the largest mean silhouette; one group if even that is below `NO_STRUCTURE`.

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


def personalized(
    meta: Network,
    x: Samples,
    y: Indices,
    epsilons: Sequence[float],
    *,
    towards: Sequence[Array] | None = None,
    batch: int,
) -> Network:
    """Return the network solved for samples x (n, …) with label indices y (n,), layer by layer.

    Layer l is drawn by ε_l towards the meta-model's, or to another solution in `towards`; an infinite ε_l keeps it.
    """
    own = meta.truncate(0)
    for target, epsilon in zip(towards or meta.solutions, epsilons, strict=True):
        kept = epsilon == inf
        own = own.extend(target if kept else own_layer(own, x, y, batch=batch, folds=1).solution(target, epsilon))
    return own


def judge(meta: Network, others: Sequence[Array], x: Samples, y: Indices, *, batch: int) -> list[float]:
    """Return the ε of each layer that predict best for samples left out; `others` are solutions without these samples.

    Layer by layer, ε is judged by that layer's own error. But a hidden layer that has seen the labels makes the layers
    behind it look better than they are, and changes their inputs from those of the meta-model. With many classes,
    squared error also depends mostly on how well absent classes are predicted. So there are three candidates: the
    output layer alone, all layers, and all layers with the paper's ε. The first is taken unless the labels of left-out
    folds are more likely under the whole network of another.
    """
    if len(x) == 1:  # nothing is left to learn from
        return [float(EPSILONS[0])] * meta.depth
    last = meta.depth - 1
    candidates = [_epsilons(meta, others, x, y, first, batch) for first in sorted({last, 0}, reverse=True)]
    candidates.append([UNJUDGED] * meta.depth)
    likelihoods = [_left_out_likelihood(meta, others, x, y, candidate, batch) for candidate in candidates]
    best = int(np.argmax(likelihoods))
    return candidates[best if likelihoods[best] - likelihoods[0] > WORTHWHILE else 0]


def _epsilons(meta: Network, others: Sequence[Array], x: Samples, y: Indices, first: int, batch: int) -> list[float]:
    """Return ε for each layer from the first on; those before are kept."""
    own, epsilons = meta.truncate(first), [inf] * first
    for target, other in zip(meta.solutions[first:], others[first:], strict=True):
        layer = own_layer(own, x, y, batch=batch)
        epsilons.append(float(EPSILONS[layer.errors(other, EPSILONS).argmin()]))
        own = own.extend(layer.solution(target, epsilons[-1]))
    return epsilons


def _left_out_likelihood(
    meta: Network, others: Sequence[Array], x: Samples, y: Indices, epsilons: Sequence[float], batch: int
) -> float:
    """Return the log-likelihood of the labels, each fold's under a network of the other folds.

    Layers that are kept come from `others`, too, because the meta-model's own hidden layers have seen the labels.
    """
    scores, folds = np.empty((len(x), len(meta.classes))), min(FOLDS, len(x))
    for fold in range(folds):
        out = np.arange(len(x)) % folds == fold
        network = personalized(meta, x[~out], y[~out], epsilons, towards=others, batch=batch)
        scores[out] = network.scores(x[out])
    return calibrated(scores, y, meta.temperature or EXPECTED).log_likelihood


def own_layer(network: Network, x: Samples, y: Indices, *, batch: int, folds: int = FOLDS) -> "_Rows | _ManyPatches":
    """Return the network's first untrained layer for samples x (n, …) with label indices y (n,).

    `folds` is the number of parts of the samples by which a convolution is judged; with one it can only be solved.
    """
    if not len(x):
        raise InvalidData("there are no samples to solve a layer for")
    problem, folds = network.next_problem, min(folds, len(x))
    convolution = isinstance(problem.layer, Convolution)
    if convolution and len(x) * problem.rows > adapt.DUAL_UP_TO * problem.d:
        parts = [layer_moments(network, x[i::folds], y[i::folds], batch=batch) for i in range(folds)]
        return _ManyPatches(problem, parts)
    rows = problem.layer.rows(network.forward(network.checked(x)))
    if not np.isfinite(np.vdot(rows, rows)):
        raise not_finite(x.reshape(len(x), -1))
    if convolution:
        return _FewPatches(rows, problem.targets(y), np.repeat(np.arange(len(x)) % folds, problem.rows))
    return _Rows(rows, problem.targets(y))


class _Rows:
    """A dense layer: every sample is a row, and leave-one-out is exact."""

    def __init__(self, x: Array, y: Array) -> None:
        self._x, self._y = x, y

    def solution(self, towards: Array, epsilon: float) -> Array:
        """Return the solution (d, columns) — (13) — for the meta-model's (d, columns)."""
        residual = self._y - self._x @ towards
        return towards + adapt.correction(self._x.T, residual, 1 / epsilon)

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        """Return the squared error on samples left out, up to a constant, for each ε; `towards` has not seen them."""
        residual = self._y - self._x @ towards
        return self._spectrum.project(residual).leave_one_out(1 / np.asarray(epsilons), member=False)

    @cached_property
    def _spectrum(self) -> adapt.Spectrum:
        return adapt.Spectrum.of(np.ascontiguousarray(self._x.T))


class _FewPatches(_Rows):
    """A convolution with at most half as many patches as numbers in a patch: it is solved with one unknown per patch.

    Patches of one image are not independent, so whole images are left out, a fold at a time.
    """

    def __init__(self, x: Array, y: Array, fold: npt.NDArray[np.intp]) -> None:
        super().__init__(x, y)
        self._fold = fold  # of each patch

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        steps = np.asarray(epsilons, dtype=np.float64)
        kernel, residual, errors = self._x @ self._x.T, self._y - self._x @ towards, np.zeros(len(steps))
        for fold in range(self._fold.max() + 1):
            out = self._fold == fold
            # In the eigenvectors of the other folds' kernel every ε is a division.
            values, vectors = np.linalg.eigh(kernel[~out][:, ~out])
            loaded, rest = kernel[out][:, ~out] @ vectors, vectors.T @ residual[~out]
            for i, epsilon in enumerate(steps):
                left = residual[out] - loaded @ (rest / (np.maximum(values, 0.0) + epsilon)[:, None])
                errors[i] += np.vdot(left, left)
        return errors


class _ManyPatches:
    """A convolution by the moments of its patches; whole images are left out, a fold at a time."""

    def __init__(self, problem: Problem, folds: Sequence[LayerMoments]) -> None:
        total = LayerTotal()
        for fold in folds:
            total.add(fold)
        self._folds, self._total, self._problem = folds, total.moments(), problem

    def solution(self, towards: Array, epsilon: float) -> Array:
        rows = self._total.rows
        factor = solve.factor(rows.packed, rows.d, ridge=epsilon, n=rows.n)
        # As a change of `towards`: directions that no patch has stay, however small ε is.
        missing = self._total.right_side(self._problem) - packing.times(rows.packed, towards)
        return towards + factor.solve(missing)

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        steps = np.asarray(epsilons, dtype=np.float64)
        whole, errors = self._total.right_side(self._problem), np.zeros(len(steps))
        for fold in self._folds:
            # In the eigenvectors of the other folds' Gram matrix every ε is a division.
            values, vectors = eigh(self._total.rows.gram - fold.rows.gram, check_finite=False)
            gram, left_out = vectors.T @ fold.rows.gram @ vectors, fold.right_side(self._problem)
            cross, rest, meta = (vectors.T @ part for part in (left_out, whole - left_out, towards))
            for i, epsilon in enumerate(steps):
                own = (rest + epsilon * meta) / (np.maximum(values, 0.0) + epsilon)[:, None]
                errors[i] += np.vdot(own, gram @ own) - 2 * np.vdot(own, cross)
        return errors
