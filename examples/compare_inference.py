"""Regression tables by four ways: all rows in one place, fedgram, pda's arithmetic, and meta-analysis.

    python examples/compare_inference.py

It prints the tables of docs/results/inference.md. pda is an R package, and R does not run here: what it computes for a
linear model is repeated below, from its files R/DLM.R and R/pda.R of version 1.3.2. A site sends XᵀX, Xᵀy, yᵀy and n as
JSON with `digits = 4`, which rounds to four digits after the decimal point.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.moments.targets import joint_moments
from five_hospitals import hospitals

Array: TypeAlias = npt.NDArray[np.float64]
Sites: TypeAlias = list[tuple[Array, Array]]
TERMS = ("age", "sex=M", "bmi", "bp", "s5")
DIGITS = 4  # pda's default
QUANTILE = 1.96  # of the normal distribution, for intervals
ROWS = (250, 1_000, 10_000)


class Found(NamedTuple):
    """Slopes and their standard errors."""

    slopes: Array
    errors: Array


def least_squares(x: Array, y: Array) -> Found:
    """Return least squares with an intercept, by a QR decomposition of the rows."""
    design = np.column_stack([np.ones(len(x)), x])
    q, r = np.linalg.qr(design)
    found = np.linalg.solve(r, q.T @ y)
    variance = ((y - design @ found) ** 2).sum() / (len(x) - design.shape[1])
    inverse = np.linalg.solve(r, np.eye(len(r)))
    return Found(found[1:], np.sqrt(variance * (inverse**2).sum(axis=1))[1:])


def pooled(sites: Sites) -> Found:
    """Return least squares of all rows in one place."""
    return least_squares(*(np.concatenate(part) for part in zip(*sites, strict=True)))


def by_fedgram(sites: Sites) -> Found:
    """Return the table of the sum of all sites' moments."""
    rows = sum((joint_moments(x, y) for x, y in sites[1:]), joint_moments(*sites[0])).coefficients().rows[1:]
    return Found(np.array([row.estimate for row in rows]), np.array([row.se for row in rows]))


def by_pda(sites: Sites, digits: int = DIGITS) -> Found:
    """Return pda's linear model: rounded sums of each site are added, and the normal equations are solved."""
    total: list[Any] = [0.0, 0.0, 0.0, 0]
    for x, y in sites:
        design = np.column_stack([np.ones(len(x)), x])
        sent = (np.round(design.T @ design, digits), np.round(design.T @ y, digits), np.round(y @ y, digits), len(x))
        total = [whole + part for whole, part in zip(total, sent, strict=True)]
    gram, cross, squares, n = total
    inverse = np.linalg.inv(gram)
    found = inverse @ cross
    variance = (squares - 2 * cross @ found + found @ gram @ found) / (n - len(gram))
    return Found(found[1:], np.sqrt(np.maximum(inverse.diagonal() * variance, 0.0))[1:])


def by_meta_analysis(sites: Sites) -> Found:
    """Return the inverse-variance means of the sites' own estimates."""
    found = [least_squares(x, y) for x, y in sites]
    weights = np.array([one.errors for one in found]) ** -2.0
    slopes = np.array([one.slopes for one in found])
    return Found((weights * slopes).sum(axis=0) / weights.sum(axis=0), weights.sum(axis=0) ** -0.5)


def five() -> Sites:
    """Return the patients of the five hospitals whose blood pressure is known."""
    sites = []
    for rows in hospitals().values():
        known = [row for row in rows if row["bp"]]
        sexes = np.array([row["sex"] == "M" for row in known])
        numbers = np.array([[float(row[name]) for name in ("age", "bmi", "bp", "s5")] for row in known])
        x = np.column_stack([numbers[:, 0], sexes, numbers[:, 1:]])
        sites.append((x, np.array([float(row["progression"]) for row in known])))
    return sites


def regrouped(sites: Sites, count: int) -> Sites:
    """Return the same rows, in the same order, as this number of sites."""
    x, y = (np.concatenate(part) for part in zip(*sites, strict=True))
    return list(zip(np.array_split(x, count), np.array_split(y, count), strict=True))


def small_numbers(deviation: float, rows: int) -> Sites:
    """Return five made-up sites of so many rows, with a predictor of this standard deviation, such as a mass in kg.

    The predictor, in any unit, explains half of the outcome's variance; a second one has standard deviation 1.
    """
    rng = np.random.default_rng(0)
    sites = []
    for _ in range(5):
        z = rng.standard_normal((rows, 2))
        y = z[:, 0] + 0.5 * z[:, 1] + rng.standard_normal(rows)
        sites.append((z * [deviation, 1.0], y))
    return sites


def small_number_error(sites: Sites) -> str:
    """Return the relative error of the predictor's coefficient by pda's arithmetic."""
    error = float(by_pda(sites).slopes[0] / pooled(sites).slopes[0] - 1)
    return f"{error:+.2%}" if abs(error) >= 5e-5 else "< 0.01%"


def missing_values(tables: int = 1_000, rows: int = 500) -> dict[str, Array]:
    """Return for x and z: the true coefficient, the mean estimate, the ratio of standard errors, and the coverage.

    The predictors are correlated by 0.5. The true standard error is the standard deviation of the estimates.
    """
    rng, truth = np.random.default_rng(0), np.array([1.0, 1.0])
    found: dict[str, list[Found]] = {"mean imputation": [], "complete cases": []}
    for _ in range(tables):
        z = rng.standard_normal(rows)
        x = 0.5 * z + np.sqrt(0.75) * rng.standard_normal(rows)
        y = x + z + rng.standard_normal(rows)
        known = rng.random(rows) > 1 / 3
        imputed = np.column_stack([np.where(known, x, x[known].mean()), z])
        found["mean imputation"].append(least_squares(imputed, y))
        found["complete cases"].append(least_squares(np.column_stack([x, z])[known], y[known]))
    figures = {}
    for what, fits in found.items():
        slopes, errors = np.array([one.slopes for one in fits]), np.array([one.errors for one in fits])
        covers = (np.abs(slopes - truth) < QUANTILE * errors).mean(axis=0)
        figures[what] = np.column_stack([truth, slopes.mean(axis=0), errors.mean(axis=0) / slopes.std(axis=0), covers])
    return figures


def share(found: Array, truth: Array) -> float:
    """Return the largest relative difference."""
    return float(np.abs(found / truth - 1).max())


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def equal(sites: Sites) -> str:
    """Return in words that the tables of fedgram and of all rows in one place are the same; raise if they are not."""
    ours, truth = by_fedgram(sites), pooled(sites)
    assert max(share(ours.slopes, truth.slopes), share(ours.errors, truth.errors)) < 1e-9
    return "the same to 1e-9"


def main() -> None:
    """Print the tables."""
    sites = five()
    truth, ours, meta, rounded = pooled(sites), by_fedgram(sites), by_meta_analysis(sites), by_pda(sites)
    print("Five hospitals: coefficient (standard error)\n")
    print(line("", "all rows in one place", "fedgram", "pda's arithmetic", "meta-analysis", "off, in standard errors"))
    print(line("---", "---:", "---:", "---:", "---:", "---:"))
    for place, term in enumerate(TERMS):
        cells = [f"{one.slopes[place]:.4f} ({one.errors[place]:.4f})" for one in (truth, ours, rounded, meta)]
        print(line(term, *cells, f"{(meta.slopes - truth.slopes)[place] / truth.errors[place]:+.2f}"))
    print("\nThe same patients in more and smaller sites: meta-analysis beside all rows in one place\n")
    print(line("sites", "rows a site", "fedgram", "largest difference, in standard errors", "standard errors, ratio"))
    print(line("---:", "---:", "---:", "---:", "---:"))
    for count in (5, 10, 20, 40):
        these = regrouped(sites, count)
        truth, meta = pooled(these), by_meta_analysis(these)
        off = float((np.abs(meta.slopes - truth.slopes) / truth.errors).max())
        ratios = meta.errors / truth.errors
        rows = " or ".join(map(str, sorted({len(x) for x, _ in these})))
        print(line(f"{count}", rows, equal(these), f"{off:.2f}", f"{ratios.min():.2f} to {ratios.max():.2f}"))
    print("\nA predictor with small numbers: the error of its coefficient by pda's arithmetic, five sites\n")
    print(line("standard deviation", "fedgram", *(f"{rows:,} rows a site" for rows in ROWS)))
    print(line("---:", "---:", *("---:" for _ in ROWS)))
    for deviation in (1.0, 0.1, 0.01, 0.002, 0.001, 0.0005):
        tried = [small_numbers(deviation, rows) for rows in ROWS]
        [same] = {equal(sites) for sites in tried}
        print(line(f"{deviation:g}", same, *map(small_number_error, tried)))
    print("\nMissing values: 1,000 made-up tables of 500 rows, a third of the values of x missing at random\n")
    print(line("", "coefficient", "true", "mean estimate", "standard error / true one", "95 % interval covers"))
    print(line("---", "---", "---:", "---:", "---:", "---:"))
    for what, found in missing_values().items():
        for term, (truth_is, mean, ratio, covers) in zip("xz", found, strict=True):
            print(line(what, term, f"{truth_is:g}", f"{mean:.3f}", f"{ratio:.2f}", f"{covers:.1%}"))


if __name__ == "__main__":
    main()
