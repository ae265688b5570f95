"""Random small tables, columns of all scales among them, against exact fractions: right, refused, or warned of.

What may be lost is what a closed form in floating-point numbers must lose: cond² · ε, and ε for each standard deviation
that a column is from zero. Columns are constant, collinear, nearly collinear, rare, far from zero, or with an outlier.
"""

import warnings
from fractions import Fraction

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import FedgramError, LostPrecision
from support import campaign

TABLES = campaign.size(100)
SCALES = 10.0 ** np.array([-160, -150, -149, -80, -30, 0, 30, 80, 140, 149, 150, 154, 160])
EPS = np.finfo(np.float64).eps


def table(rng):
    classes, d = int(rng.integers(2, 4)), int(rng.integers(1, 5))
    n = int(rng.integers(4, 26))
    x, y = rng.normal(size=(n, d)), rng.integers(0, classes, n)
    y[:classes] = np.arange(classes)
    kinds = rng.integers(4)
    if kinds:
        x *= [10.0 ** rng.uniform(-6, 6, d), 10.0 ** rng.integers(-20, 20, d), rng.choice(SCALES)][kinds - 1]
    for j, what in enumerate(rng.random(d)):
        if what < 0.08:
            x[:, j] = rng.choice([0.0, 1.0, 1e8, -1e-30, 1e150, 3.3, 0.1])
        elif what < 0.16:
            x[:, j] = x[:, 0] * rng.choice([1.0, 3.0, -1e-5, 1e10])
        elif what < 0.24:
            x[:, j] += 10.0 ** rng.uniform(1, 15) * np.abs(x[:, j]).max()
        elif what < 0.3:
            x[:, j] = rng.random(n) < 0.15
        elif what < 0.34:
            x[:, j] = x[:, 0] * (1 + 1e-9 * rng.normal(size=n))
        elif what < 0.38:
            x[rng.integers(n), j] *= 10.0 ** rng.uniform(3, 12)
    return x, y, classes


def spread(rng, n):
    """Return the rows of some clients, often of one sample each."""
    if rng.random() < 0.3:
        return [[row] for row in rng.permutation(n)]
    owners = rng.choice(7, n, p=rng.dirichlet([0.5] * 7))
    return [np.flatnonzero(owners == k) for k in range(7) if (owners == k).any()]


def eliminated(matrix, rhs):
    """Return a solution of a system in fractions, with zeros where others decide."""
    rows = [[*left, *right] for left, right in zip(matrix, rhs, strict=True)]
    places: list[int] = []
    for column in range(len(matrix)):
        top = len(places)
        pivot = next((k for k in range(top, len(rows)) if rows[k][column]), None)
        if pivot is None:
            continue
        rows[top], rows[pivot] = rows[pivot], rows[top]
        rows[top] = [value / rows[top][column] for value in rows[top]]
        for k, row in enumerate(rows):
            if k != top and row[column]:
                rows[k] = [a - row[column] * b for a, b in zip(row, rows[top], strict=True)]
        places.append(column)
    solution = [[Fraction(0)] * len(rhs[0]) for _ in matrix]
    for k, column in enumerate(places):
        solution[column] = rows[k][len(matrix) :]
    return solution


def exact_scores(x, y, classes, weights, ridge):
    """Return the scores of a ridge regression of labels with an intercept, each sample counted `weights` times."""
    total = sum(weights)
    targets = [[Fraction(int(label == c)) for c in range(classes)] for label in y]
    rows = [[Fraction(float(value)) for value in row] for row in x]
    means, shares = ([sum(w * r[j] for w, r in zip(weights, some, strict=True)) / total for j in range(len(some[0]))]
                     for some in (rows, targets))  # fmt: skip
    centred = [[value - mean for value, mean in zip(row, means, strict=True)] for row in rows]
    gram = [[sum(w * r[i] * r[j] for w, r in zip(weights, centred, strict=True)) + (ridge if i == j else 0)
             for j in range(len(means))] for i in range(len(means))]  # fmt: skip
    cross = [[sum(w * r[i] * (t[c] - shares[c]) for w, r, t in zip(weights, centred, targets, strict=True))
              for c in range(classes)] for i in range(len(means))]  # fmt: skip
    found = eliminated(gram, cross)
    return np.array([[float(shares[c] + sum(r[j] * found[j][c] for j in range(len(means)))) for c in range(classes)]
                     for r in centred])  # fmt: skip


def bound(x):
    """Return by how much scores may be off."""
    wide = x.astype(np.longdouble)
    deviations, means = wide.std(axis=0), np.abs(wide.mean(axis=0))
    varied = deviations > 0
    if not varied.any():
        return 1e-8
    far = float((means[varied] / deviations[varied]).max())
    units = ((wide - wide.mean(axis=0))[:, varied] / deviations[varied]).astype(np.float64)
    return 1e-8 + 10 * EPS * far + 100 * EPS * np.linalg.cond(units) ** 2 + EPS * far * np.linalg.cond(units)


def fitted(method, x, y, classes, parts):
    """Return a fit and whether it has warned of lost digits; None where the numbers are refused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("error", RuntimeWarning)
        clients = [fg.Client(f"c{k}", x[part], y[part]) for k, part in enumerate(parts)]
        try:
            fit = method.fit(clients, classes=classes)
        except FedgramError:
            return None, False
    return fit, any(issubclass(warning.category, LostPrecision) for warning in caught)


@pytest.mark.campaign
def test_least_squares_equal_exact_fractions():
    compared = 0
    for number in range(TABLES):
        rng = np.random.default_rng([28, number])
        x, y, classes = table(rng)
        parts = spread(rng, len(y))
        ridge, alpha = float(rng.choice([0, 1e-300, 1e-12, 1e-3, 1.0, 1e6])), float(rng.choice([0, 1e-9, 1.0, 1e6]))
        once = [Fraction(1)] * len(y)
        for method, added in ((fg.AFL(), 0.0), (fg.FedHiP(alpha=alpha, beta=ridge, alone=False), ridge)):
            fit, warned = fitted(method, x, y, classes, parts)
            if fit is None or warned:
                continue
            compared += 1
            want = exact_scores(x, y, classes, once, Fraction(added))
            message = f"{method.name}, table {number}"
            np.testing.assert_allclose(fit.model.scores(x), want, rtol=0, atol=bound(x), err_msg=message)
            for name, personal in fit.personal.items():
                weights = list(once)
                for row in parts[int(name[1:])]:
                    weights[row] += Fraction(alpha)
                want = exact_scores(x, y, classes, weights, Fraction(added))
                limit = 10 * bound(x) * max(1.0, alpha)
                np.testing.assert_allclose(personal.scores(x), want, rtol=0, atol=limit, err_msg=f"{message}, {name}")
    assert compared > TABLES / 2


@pytest.mark.campaign
@pytest.mark.parametrize("make", [fg.FedGram, fg.FedHiP, lambda: fg.APFL(dim_primary=16, dim_refine=16), fg.Local,
                                  lambda: fg.FedLogit(rounds=2)])  # fmt: skip
def test_choices_are_finite_for_any_scale(make):
    """Or the numbers are refused by name; Python's own warnings of divisions and overflows are errors here."""
    for number in range(TABLES // 4):
        rng = np.random.default_rng([29, number])
        x, y, classes = table(rng)
        fit, _ = fitted(make(), x, y, classes, spread(rng, len(y)))
        for model in () if fit is None else [m for m in (fit.model, *fit.personal.values()) if m is not None]:
            try:
                assert np.isfinite(model.predict_proba(x)).all(), f"table {number}"
            except FedgramError:
                continue
