"""Log-loss of `GramClassifier` and of FedGram's global model on unbalanced tables, against logistic regression, and
against the best that any temperature and offsets could reach with the scores of least squares.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from fedgram.data import load_dataset
from fedgram.features import load_features
from fedgram.heads.head import Head
from fedgram.moments.moments import Moments
from fedgram.sklearn import GramClassifier

SHARES = (0.01, 0.05, 0.2)
WORDS, TOKENS = 300, re.compile(r"[a-z]{3,}|[!$%]")
Table = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def normal(share: float, rng: np.random.Generator, n: int = 20_000, d: int = 5) -> Table:
    """Return two normal classes with a common covariance."""
    y = (rng.random(n) < share).astype(int)
    return rng.normal(size=(n, d)) @ (np.eye(d) + rng.normal(size=(d, d)) / 2) + 0.8 * y[:, None], y


def logistic(share: float, rng: np.random.Generator, n: int = 20_000) -> Table:
    """Return normal features, and labels drawn from a logistic model."""
    x = rng.normal(size=(n, 5))
    scores, low, high = x @ [1.0, -0.8, 0.6, -0.4, 0.2], -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if expit(scores + middle).mean() > share else (middle, high)
    return x, (rng.random(n) < expit(scores + low)).astype(int)


def thinned(x: npt.NDArray[Any], y: npt.NDArray[Any], share: float, rng: np.random.Generator) -> Table:
    """Return a table with fewer positives, or if they do not suffice with fewer negatives."""
    positive, negative = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    count = round(share / (1 - share) * len(negative))
    if count > len(positive):
        count = len(positive)
        negative = rng.choice(negative, int(count * (1 - share) / share), replace=False)
    kept = rng.permutation(np.concatenate([rng.choice(positive, count, replace=False), negative]))
    return x[kept], y[kept]


def words() -> Table:
    """Return log(1 + count) of the most frequent words of the SpamAssassin e-mails."""
    mails = load_dataset("spam-assassin")
    counts = [Counter(TOKENS.findall(mail.lower()[:20_000])) for mail in mails.x]
    kept = [word for word, _ in Counter(word for one in counts for word in one).most_common(WORDS)]
    return np.log1p([[one[word] for word in kept] for one in counts]), mails.y


def tables() -> Iterator[tuple[str, Any, int]]:
    """Yield each table's name, a function of share and random generator, and the number of splits."""
    yield "normal classes", normal, 5
    yield "logistic model", logistic, 5
    x, y = load_breast_cancer(return_X_y=True)
    yield "breast_cancer, 30 features", lambda share, rng: thinned(x, 1 - y, share, rng), 40
    counted, spam = words()
    yield f"SpamAssassin, {WORDS} words", lambda share, rng: thinned(counted, spam, share, rng), 5
    mails = load_features("spam-assassin", backbone="minilm", samples=3000)
    yield "SpamAssassin, minilm", lambda share, rng: thinned(np.asarray(mails.x), mails.y, share, rng), 5
    images = load_features("cifar10", backbone="lite0:96", samples=6000)
    of_one = lambda rng: (images.y == rng.integers(10)).astype(int)  # noqa: E731
    yield "CIFAR-10, one class, lite0:96", lambda share, rng: thinned(np.asarray(images.x), of_one(rng), share, rng), 5


def losses(x: npt.NDArray[Any], y: npt.NDArray[Any], rng: np.random.Generator) -> list[float]:
    """Return log-losses on one half after fits on the other.

    They are those of logistic regression, of the frequency, of Bayes' rule, of least squares, and of its best map.
    """
    train = np.zeros(len(y), dtype=bool)
    for label in (0, 1):
        own = rng.permutation(np.flatnonzero(y == label))
        train[own[: len(own) // 2]] = True
    scaler = StandardScaler().fit(x[train])
    seen, other, right = scaler.transform(x[train]), scaler.transform(x[~train]), y[~train]
    theirs = LogisticRegression(max_iter=1000).fit(seen, y[train]).predict_proba(other)
    ours = GramClassifier().fit(seen, y[train])
    score = ours.decision_function(other)[:, None] / ours.temperature_
    best = LogisticRegression(C=np.inf, max_iter=1000).fit(score, right).predict_proba(score)
    bayes = Head.of_gaussians(Moments.of(seen, y[train], classes=2), "auto").model().predict_proba(other)
    constant = np.full(len(right), y[train].mean())
    return [log_loss(right, p) for p in (theirs, constant, bayes, ours.predict_proba(other), best)]


def main() -> None:
    print("| table | positives | logistic regression | constant | FedGram | GramClassifier | best map of its scores |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, make, splits in tables():
        for share in SHARES:
            found = []
            for seed in range(splits):
                rng = np.random.default_rng(seed)
                found.append(losses(*make(share, rng), rng))
            theirs, *others = np.mean(found, axis=0)
            ratios = " | ".join(f"{other / theirs:.2f}" for other in others)
            print(f"| {name} | {share:.0%} | {theirs:.4f} | {ratios} |", flush=True)
