"""Sites in linear models: fixed effects, a random intercept, errors that are robust to sites, and heterogeneity.

All of it follows from each site's own sums. A site's sums are needed once, and only sums over sites and a row of means
for each site are kept.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import exp, inf, log, pi
from typing import Literal

import numpy as np
from scipy import special

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.inference.linear import (
    AIC_NOTE,
    LeastSquares,
    Solved,
    Sums,
    check_level,
    check_solved,
    is_perfect,
    joint_test,
    notes_of,
    tabulated,
    whole_model,
)
from fedgram.inference.table import (
    INTERCEPT,
    Coefficients,
    Heterogeneity,
    JointTest,
    RandomIntercept,
    SiteEstimate,
    Sites,
)

SITE = "(site)"  # the column name of tests of sites
FEW_CLUSTERS = 30  # below it, errors that are robust to sites tend to be too small
FEW_SITES = 5  # below it, a variance between sites is hardly known
# Ratios of site to residual variance among which the best is bracketed, as powers of e.
_STEPS = np.linspace(-30.0, 30.0, 61)
_HALVINGS = 44  # of a bracket of two, to less than 1e-12


@dataclass(eq=False)
class BySite:
    """What is kept of the sites' sums: their sum about the sites' own means, and the means.

    Parameters
    ----------
    pooled : LeastSquares
        The fit of all rows together.
    indicators : Collection[str]
        The terms that are 0 or 1, whose smaller group must have `least` rows at a site for an estimate of that site.
    least : int
        The smallest group.

    """

    pooled: LeastSquares
    indicators: Collection[str] = ()
    least: int = 1
    names: list[str] = field(default_factory=list, init=False)
    rows: list[int] = field(default_factory=list, init=False)
    _means: list[Array] = field(default_factory=list, init=False)
    _alone: list[tuple[str, dict[str, tuple[float, float] | str]]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        d, r = len(self.pooled.sums.names), len(self.pooled.solved.kept)
        self.scatter, self.noise = np.zeros((d, d)), np.zeros(d)
        self._meat = np.zeros((r + 1, r + 1))

    def add(self, name: str, sums: Sums, *, alone: bool = False) -> None:
        """Add a site's sums; with `alone`, also estimate its own coefficients. A site without rows is left out."""
        if not sums.n:
            return
        whole, kept = self.pooled.sums, self.pooled.solved.kept
        self.names.append(name)
        self.rows.append(sums.n)
        self.scatter += sums.scatter
        self.noise += sums.noise
        apart = (sums.origin - whole.origin) + (sums.mean - whole.mean)
        self._means.append(apart)
        slopes = self.pooled.solved.slopes
        residual = sums.n * (apart[-1] - apart[kept] @ slopes)
        within = sums.scatter[kept, -1] - sums.scatter[np.ix_(kept, kept)] @ slopes
        score = np.append(residual, within + apart[kept] * residual)
        self._meat += np.outer(score, score)
        if alone:
            self._alone.append((name, self._by_itself(sums)))

    def _by_itself(self, sums: Sums) -> dict[str, tuple[float, float] | str]:
        """Return each pooled term's estimate and standard error at one site, or the reason why there is none."""
        terms = self.pooled.terms
        own = sums.chosen([*terms, sums.names[-1]])
        solved = Solved.of(own.scatter, own.noise)
        df = own.n - len(solved.kept) - 1
        reason = ""
        if df < 1:
            reason = "it has too few rows"
        elif solved.varies[solved.aliased].any():
            reason = "its columns are collinear"
        elif is_perfect(solved, own):
            reason = "its fit is perfect"
        if reason:
            return dict.fromkeys(terms, reason)
        found: dict[str, tuple[float, float] | str] = dict.fromkeys(terms, "the term does not vary there")
        errors = np.sqrt(solved.inverse.diagonal() * solved.errors / df)
        for place, slope, error in zip(solved.kept, solved.slopes.tolist(), errors.tolist(), strict=True):
            found[terms[place]] = slope, error
        for term, mean in zip(terms, own.means.tolist(), strict=False):
            group = min(mean, 1 - mean) * own.n
            if term in self.indicators and 0.5 < group < self.least - 0.5:
                found[term] = f"the term rests on fewer than {self.least} rows there"
        return found

    @property
    def means(self) -> Array:
        """The means of the sites less those of all rows, (K, d)."""
        return np.array(self._means)

    def check(self, what: str, *, least: int = 2) -> None:
        """Raise if there are too few sites."""
        if len(self.names) < least:
            raise InvalidData(f"{what}: expected rows of {least} or more sites, got {len(self.names)}; leave it out")

    def _within(self) -> tuple[Sums, Solved]:
        """Return the sums about the sites' own means and their solution; raise where nothing can be estimated."""
        sums = replace(self.pooled.sums, scatter=self.scatter, noise=self.noise)
        solved = Solved.of(sums.scatter, sums.noise)
        check_solved(solved, sums, parameters=len(solved.kept) + len(self.names), where=" within sites")
        return sums, solved

    def _sites(self, effects: Literal["none", "fixed", "random"] = "none") -> Sites:
        return Sites(dict(zip(self.names, self.rows, strict=True)), effects)

    def plain(self, columns: Mapping[str, str], *, unit: str = "", level: float = 0.95) -> Coefficients:
        """Return the table without site effects, with the sites named."""
        return replace(self.pooled.table(columns, unit=unit, level=level), sites=self._sites())

    def robust(self, columns: Mapping[str, str], *, unit: str = "", level: float = 0.95) -> Coefficients:
        """Return the least-squares table with errors that are robust to correlation within sites (CR1)."""
        self.check("robust errors")
        plain = self.pooled.table(columns, unit=unit, level=level)
        n, clusters = self.pooled.sums.n, len(self.names)
        terms = [INTERCEPT, *self.pooled.terms]
        p = len(terms)
        bread = self.pooled.bread
        factor = clusters / (clusters - 1) * (n - 1) / (n - p)
        covariance = self.pooled.covariance(factor * bread @ self._meat @ bread)
        df = float(clusters - 1)
        rows, joint = tabulated(terms, self.pooled.estimates, covariance, columns, df=df, level=level)
        summary = dict(plain.summary)
        whole = joint_test("", self.pooled.estimates[1:], covariance[1:, 1:], df) if clusters > p - 1 > 0 else None
        notes = [*plain.notes, "Standard errors are cluster-robust by site (CR1), with t and F of sites - 1 df."]
        if whole is None:
            summary = {name: value for name, value in summary.items() if name not in ("f", "f_p")}
        else:
            summary |= {"f": whole.statistic, "f_p": whole.p}
        if clusters < FEW_CLUSTERS:
            notes.append(
                f"Robust errors of {clusters} sites tend to be too small: they are meant for {FEW_CLUSTERS} or more."
            )
        return replace(
            plain,
            errors="cluster-robust by site",
            rows=rows,
            joint=joint,
            df=df,
            summary=summary,
            notes=tuple(notes),
            sites=replace(self._sites(), robust=True),
        )

    def fixed(self, columns: Mapping[str, str], *, unit: str = "", level: float = 0.95) -> Coefficients:
        """Return the table with an intercept for each site: the same as least squares with a dummy for each."""
        self.check("fixed site effects")
        sums, sites = self.pooled.sums, len(self.names)
        within, solved = self._within()
        parameters = len(solved.kept) + sites
        terms, df = [sums.names[place] for place in solved.kept], sums.n - parameters
        variance = solved.errors / df
        rows, joint = tabulated(
            terms, solved.slopes, solved.inverse * variance, columns, df=df, level=check_level(level)
        )
        total = float(sums.scatter[-1, -1])
        model = sites - 1 + len(terms)
        f = (total - solved.errors) / model / variance
        # The sum of squares that the sites explain beside the same terms.
        without = Solved.of(*_part(sums, solved.kept))
        gain = max(without.errors - solved.errors, 0.0) / (sites - 1) / variance
        sites_test = JointTest(SITE, gain, sites - 1, df, float(special.fdtrc(sites - 1, df, gain)))
        means = sums.means + self.means
        intercepts = means[:, -1] - means[:, solved.kept] @ solved.slopes
        figures = whole_model(sums.n, parameters, total, solved.errors, df=df)
        explains = 1 - solved.errors / solved.squares
        return Coefficients(
            "linear",
            sums.names[-1],
            unit,
            "Fixed site effects",
            "classical",
            rows,
            (*joint, sites_test),
            level,
            float(df),
            figures | {"within_r_squared": explains, "f": f, "f_p": float(special.fdtrc(model, df, f))},
            dict(zip(terms, solved.vif.tolist(), strict=True)),
            tuple(sums.names[place] for place in solved.aliased),
            (
                AIC_NOTE,
                "Each site has its own intercept, so columns that are constant within every site cannot be estimated. "
                "R-squared and F count the sites' intercepts as explained.",
                *notes_of(solved, within),
            ),
            replace(self._sites("fixed"), intercepts=dict(zip(self.names, intercepts.tolist(), strict=True))),
        )

    def random(
        self,
        columns: Mapping[str, str],
        *,
        method: Literal["reml", "ml"] = "reml",
        unit: str = "",
        level: float = 0.95,
    ) -> Coefficients:
        """Return the table with a random intercept for each site, by restricted or plain maximum likelihood."""
        self.check("random site effects")
        sums, kept = self.pooled.sums, self.pooled.solved.kept
        within, inside = self._within()
        constant = len(kept) - len(inside.kept)
        if len(self.names) - 1 <= constant:
            raise InvalidData(
                f"random site effects: expected more than {constant + 1} sites beside {constant} columns that are "
                f"constant within sites, got {len(self.names)}; leave such a column out, or the effects"
            )
        model = _Mixed(
            *_part(within, kept),
            self.means[:, [*kept, -1]],
            np.array(self.rows, dtype=np.float64),
            method,
        )
        ratio = model.best()
        found, alone = model.at(ratio), model.at(0.0)
        p = len(kept) + 1
        shift = np.eye(p)
        shift[0, 1:] = -sums.means[kept]
        about = np.append(found.mean + sums.means[-1], found.slopes)
        estimates, covariance = shift @ about, shift @ found.covariance @ shift.T
        terms = [INTERCEPT, *self.pooled.terms]
        rows, joint = tabulated(terms, estimates, covariance, columns, df=None, level=check_level(level))
        likelihood = max(alone.criterion - found.criterion, 0.0)
        site_variance = ratio * found.variance
        effects = RandomIntercept(
            method,
            found.variance,
            site_variance,
            ratio / (1 + ratio),
            found.criterion,
            dict(zip(self.names, found.effects.tolist(), strict=True)),
            likelihood,
            0.5 * float(special.chdtrc(1, likelihood)) if ratio > 0 else 1.0,
        )
        figures: dict[str, float] = {"n": sums.n, "parameters": p, "log_likelihood": -found.criterion / 2}
        if method == "ml":  # likelihoods of REML are those of other data for other terms
            figures |= {"aic": found.criterion + 2 * (p + 2), "bic": found.criterion + log(sums.n) * (p + 2)}
        notes = ["The statistics are z: their distribution for few sites is not known exactly."]
        if method == "ml":
            notes.append("AIC and BIC count the coefficients and both variances.")
        if len(self.names) < FEW_SITES:
            notes.append(
                f"A variance between {len(self.names)} sites is hardly known; fixed effects need no such thing."
            )
        if ratio == 0:
            notes.append("The variance between sites is estimated as 0: the coefficients are those of least squares.")
        return Coefficients(
            "linear",
            sums.names[-1],
            unit,
            f"Random intercept, {method.upper()}",
            "model-based",
            rows,
            joint,
            level,
            None,
            figures,
            aliased=tuple(sums.names[place] for place in self.pooled.solved.aliased),
            notes=(*notes, *notes_of(self.pooled.solved, sums)),
            sites=replace(self._sites("random"), random=effects),
        )

    def heterogeneity(self) -> tuple[Heterogeneity, ...]:
        """Return the differences of each pooled term between the sites that were added `alone`."""
        self.check("heterogeneity")
        return tuple(self._differences(term) for term in self.pooled.terms)

    def _differences(self, term: str) -> Heterogeneity:
        estimates, left_out = [], {}
        for name, found in self._alone:
            value = found[term]
            if isinstance(value, str):
                left_out[name] = value
            else:
                estimates.append(SiteEstimate(name, *value))
        if not estimates:
            return Heterogeneity(term, (), left_out, None, None, None, 0, None, None)
        slopes = np.array([one.estimate for one in estimates])
        weights = np.array([one.se for one in estimates]) ** -2.0
        pooled, df = float(weights @ slopes / weights.sum()), len(estimates) - 1
        q = float(weights @ (slopes - pooled) ** 2)
        test = (q, df, float(special.chdtrc(df, q)), max(0.0, 1 - df / q) if q > 0 else 0.0)
        return Heterogeneity(
            term,
            tuple(estimates),
            left_out,
            pooled,
            float(weights.sum() ** -0.5),
            *(test if df else (None, 0, None, None)),
        )


def _part(sums: Sums, kept: list[int]) -> tuple[Array, Array]:
    """Return the sums of products, and their noise, of some terms and the outcome."""
    places = [*kept, len(sums.names) - 1]
    return sums.scatter[np.ix_(places, places)], sums.noise[places]


@dataclass(frozen=True, eq=False)
class _AtRatio:
    """The estimates for one ratio of the variances; `mean` is the outcome's at the means of all rows.

    `rise` is the derivative of the criterion, by which its minimum is known to more digits than by its values.
    """

    criterion: float
    rise: float
    variance: float
    mean: float
    slopes: Array
    covariance: Array
    effects: Array


@dataclass(frozen=True, eq=False)
class _Mixed:
    """A random intercept: V = σ²(I + θ 1 1ᵀ) at each site, with θ = τ²/σ².

    For a site of n rows with means m, XᵀV⁻¹X σ² is its scatter plus a · m mᵀ with a = n / (1 + θ n). So the sums for
    any θ are those within sites plus those of the K means with weights a.
    """

    within: Array  # (r + 1, r + 1), the outcome last
    noise: Array
    means: Array  # (K, r + 1), less those of all rows
    rows: Array  # (K,)
    method: Literal["reml", "ml"]

    def at(self, ratio: float) -> _AtRatio:
        """Return the estimates for θ, and -2 times the log-likelihood that is maximal for it."""
        weights = self.rows / (1 + ratio * self.rows)
        total = float(weights.sum())
        centre = weights @ self.means / total
        apart = self.means - centre
        scatter = self.within + (apart * weights[:, None]).T @ apart
        solved = Solved.of(scatter, self.noise)
        n, r = float(self.rows.sum()), len(centre) - 1
        if solved.aliased:  # at an extreme θ columns that differ between sites only vanish
            nothing = np.zeros(r)
            return _AtRatio(inf, inf, inf, 0.0, nothing, np.zeros((r + 1, r + 1)), nothing)
        free = n - r - 1 if self.method == "reml" else n
        variance = solved.errors / free
        mean = float(centre[-1] - centre[:-1] @ solved.slopes)
        residuals = self.means[:, -1] - self.means[:, :-1] @ solved.slopes - mean
        criterion = free * (log(2 * pi * variance) + 1) + float(np.log1p(ratio * self.rows).sum())
        rise = float(weights.sum() - weights**2 @ residuals**2 / variance)
        if self.method == "reml":
            criterion += solved.log_determinant + log(total)
            leverage = 1 / total + ((apart[:, :-1] @ solved.inverse) * apart[:, :-1]).sum(axis=1)
            rise -= float(weights**2 @ leverage)
        about = np.zeros((r + 1, r + 1))
        about[0, 0], about[1:, 1:] = 1 / total, solved.inverse
        to_pooled = np.eye(r + 1)  # the mean at the means of all rows, not at the weighted ones
        to_pooled[0, 1:] = -centre[:-1]
        covariance = variance * to_pooled @ about @ to_pooled.T
        return _AtRatio(criterion, rise, variance, mean, solved.slopes, covariance, ratio * weights * residuals)

    def best(self) -> float:
        """Return the θ ≥ 0 of the largest likelihood: the best of a grid, refined by halving."""
        scale = len(self.rows) / float(self.rows.sum())  # θ of one row's weight
        values = [self.at(scale * exp(step)).criterion for step in _STEPS]
        place = int(np.argmin(values))
        low, high = _STEPS[max(place - 1, 0)], _STEPS[min(place + 1, len(_STEPS) - 1)]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.at(scale * exp(middle)).rise > 0 else (middle, high)
        found = scale * exp((low + high) / 2)
        return found if self.at(found).criterion < self.at(0.0).criterion else 0.0
