"""A client's own model from the shared head: Bayes' rule, and what regressions on its own samples add to it."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fedgram.core.arrays import Array
from fedgram.core.blocks import Blocks, as_blocks, each, lazily, together
from fedgram.core.errors import InvalidData
from fedgram.heads.adapt import Design, OwnRidge, Rows
from fedgram.heads.head import Head
from fedgram.heads.likelihood import WORTHWHILE, Expert, Labels, best_weights
from fedgram.models import LinearModel

# How many imaginary samples per class a client adds to its own counts.
SMOOTHINGS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# How far from what is expected the weights of the head's and of the client's own scores may well be. Own scores are
# expected to be worth nothing; where they are right they are near 0 and 1, so a weight of 10 makes them sure.
HEAD_DEVIATION, OWN_DEVIATION = 0.5, 10.0
# What a difference in log-likelihood must exceed to be more than rounding.
INDIFFERENT = 1e-9


def personal_model(
    head: Head,
    x: Rows,
    labels: Labels | Blocks[Labels],
    *,
    temperature: float,
    member: bool,
    refine: bool = True,
) -> LinearModel:
    """Return the head with the client's own class frequencies, and with its own regressions if they are worth it.

    They are experts whose scores add up, weighted for the likelihood of left-out samples. `temperature` is what the
    head's scores should be multiplied by if own samples have nothing to say on it. `member` says whether these are
    among the samples that made the head. Samples x (n, d) and their labels may be in blocks.
    """
    known = as_blocks(labels)
    rows = lazily(lambda block: _checked(head, block), as_blocks(x))
    scores = each(lambda block, right: _scores(head, block, right, member=member), rows, known)
    own_counts = np.sum([head.count(right) for right in known], axis=0)
    smoothing, weight, log_likelihood = _most_likely(head, own_counts, scores, known, temperature)
    weights, intercept = weight * head.weights, weight * head.intercept
    frequencies = _frequencies(head, own_counts, known, smoothing)
    owns: tuple[OwnRidge, ...] = ()
    if refine:
        logits = lazily(lambda some, usual: weight * some + usual, scores, frequencies)
        owns = _own_regressions(rows, known, logits, own_counts > 0)
    if owns:
        experts = Expert(scores, temperature, HEAD_DEVIATION), *(Expert(o.left_out, 0.0, OWN_DEVIATION) for o in owns)
        found = best_weights(experts, frequencies, known)
        if found.log_likelihood - log_likelihood > WORTHWHILE:
            of_head, *of_owns = found.values
            weights, intercept = of_head * head.weights, of_head * head.intercept
            for value, own in zip(of_owns, owns, strict=True):
                weights, intercept = weights + value * own.weights, intercept + value * own.intercept
    intercept = intercept + head.log_frequencies(own_counts, smoothing)
    return LinearModel(weights, head.classes, intercept, head.features, head.columns)


def _checked(head: Head, x: npt.NDArray[Any]) -> Array:
    if x.shape[1:] != head.scale.shape:
        raise InvalidData(f"this head scores samples of shape (n, {len(head.scale)}), got {x.shape}")
    return np.ascontiguousarray(x, dtype=np.float64)


def _scores(head: Head, rows: Array, labels: Labels, *, member: bool) -> Array:
    """Return the head's scores of samples, of a member's as if it had not seen them."""
    scores = np.asarray(rows @ head.weights + head.intercept)
    return head.left_out_scores(scores, labels) if member else scores


def _frequencies(head: Head, own: Array, labels: Blocks[Labels], smoothing: float) -> Blocks[Array]:
    return lazily(lambda block: head.left_out_log_frequencies(own, block, smoothing), labels)


def _own_regressions(
    rows: Blocks[Array], labels: Blocks[Labels], logits: Blocks[Array], seen: npt.NDArray[np.bool_]
) -> tuple[OwnRidge, ...]:
    """Return regressions on the client's own samples: of the labels, and of what the head leaves unexplained.

    The first is right where the head is of little use to the client, the second where it is nearly right. `seen` (c,)
    says which classes the client has; of the others its samples can tell nothing.
    """
    design = Design.of(rows, intercept=True)
    if design is None:
        return ()
    targets = lazily(lambda block: np.eye(len(seen))[block], labels)
    unexplained = lazily(lambda block, some: block - softmax(some, axis=1), targets, logits)
    return _undecided(design.regress(targets), seen), _undecided(design.regress(unexplained), seen)


def _undecided(own: OwnRidge, seen: npt.NDArray[np.bool_]) -> OwnRidge:
    """Return the regression with the mean score of the seen classes for those that the client has never seen.

    A regression without samples of a class would speak against it wherever it is asked, and outdo any smoothing.
    """

    def levelled(scores: Array) -> Array:
        return np.where(seen, scores, scores[..., seen].mean(axis=-1, keepdims=True))

    left_out = together(lazily(levelled, as_blocks(own.left_out)))
    return own._replace(left_out=left_out, weights=levelled(own.weights), intercept=levelled(own.intercept))


def _most_likely(
    head: Head, own: Array, scores: Blocks[Array], labels: Blocks[Labels], expected: float
) -> tuple[float, float, float]:
    """Return the smoothing and the head's weight under which left-out samples are most likely, and how likely."""
    candidates = []
    for smoothing in SMOOTHINGS:
        frequencies = _frequencies(head, own, labels, smoothing)
        found = best_weights([Expert(scores, expected, HEAD_DEVIATION)], frequencies, labels)
        candidates.append((smoothing, float(found.values[0]), found.log_likelihood))
    best = max(log_likelihood for *_, log_likelihood in candidates)
    # Somebody with one sample cannot tell them apart: rounding must not choose, so the largest does.
    return [found for found in candidates if found[-1] >= best - INDIFFERENT * (1 + abs(best))][-1]
