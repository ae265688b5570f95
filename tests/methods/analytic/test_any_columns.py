"""Random tables with columns of all scales, near zero and far from it: any partition and any order agree."""

import warnings

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from support import campaign

METHODS = {
    "afl": fg.AFL,
    "fedhip": fg.FedHiP,
    "fedgram": fg.FedGram,
    "fedlogit": fg.FedLogit,
    "apfl": lambda: checks.example("apfl"),
}
TABLES = campaign.size(4)


def table(rng):
    """Return features, labels, the number of classes, and the largest mean of a column in its standard deviations."""
    n, d, classes = (int(rng.integers(*some)) for some in ((12, 150), (1, 7), (2, 4)))
    bare = rng.normal(size=(n, d))
    y = np.argmax(bare @ rng.normal(size=(d, classes)) * 2 + rng.gumbel(size=(n, classes)), axis=1)
    y[:classes] = np.arange(classes)
    far = np.where(rng.random(d) < 0.5, 0.0, 10.0 ** rng.uniform(0, 8, d))
    x = 10.0 ** rng.uniform(-6, 6, d) * (bare + far)
    if d > 1 and rng.random() < 0.2:
        x[:, 0] = [x[:, 1] * 3, np.full(n, 1e4), rng.choice([0.0, 1.0, 1e6], n)][rng.integers(3)]
    return x, y, classes, max(far.max(), *(np.abs(x.mean(0)) / np.maximum(x.std(0), 1e-300)))


def spread(rng, rows):
    """Return the rows of up to seven clients of very unequal sizes, in any order."""
    count = int(rng.integers(1, 8))
    owners = rng.choice(count, len(rows), p=rng.dirichlet([0.5] * count))
    order = rng.permutation(len(rows))
    return [rows[part] for k in range(count) if len(part := order[owners[order] == k])]


def fitted(method, x, y, classes, parts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that are far from zero, or that others give
        return method.fit([fg.Client(f"c{k}", x[part], y[part]) for k, part in enumerate(parts)], classes=classes)


def bound(method, x, far):
    """Return how far apart probabilities may be: 1e-9, and what columns far from zero and ill-conditioned ones lose.

    `AFL` takes its ridge away again, so that nothing holds what columns of unequal scales lose; the random features of
    `APFL` mix all columns.
    """
    near = 1e-9 + 1e-15 * min(far, 1e8)
    if method.name == "afl":
        varied = x[:, x.std(0) > 0]
        condition = np.linalg.cond((varied - varied.mean(0)) / varied.std(0)) if varied.size else 1.0
        return min(near + 10 * np.finfo(float).eps * condition**2, 1.0)
    return max(near, method.rounding, 1e-5) if method.name == "apfl" else near


@pytest.mark.campaign
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_the_global_model_is_the_same_for_any_partition_and_order(make):
    method = make()
    for number in range(TABLES):
        rng = np.random.default_rng([26, number])
        x, y, classes, far = table(rng)
        rows = np.arange(len(y))
        got, want = (fitted(method, x, y, classes, spread(rng, rows)).model.predict_proba(x) for _ in range(2))
        np.testing.assert_allclose(got, want, rtol=0, atol=bound(method, x, far), err_msg=f"table {number}")


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["fedhip", "fedgram", "fedlogit", "apfl"])
def test_a_personal_model_is_the_same_however_the_others_have_their_samples(name):
    method = METHODS[name]()
    for number in range(TABLES):
        rng = np.random.default_rng([27, number])
        x, y, classes, far = table(rng)
        own, others = np.split(rng.permutation(len(y)), [int(rng.integers(1, len(y)))])
        got, want = (
            fitted(method, x, y, classes, [own, *spread(rng, others)]).personal["c0"].predict_proba(x) for _ in range(2)
        )
        np.testing.assert_allclose(got, want, rtol=0, atol=bound(method, x, far), err_msg=f"table {number}")
