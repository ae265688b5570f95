"""The regression table: coefficients with standard errors, tests and intervals, and all that is printed around them.

Every model of fedgram that has such a table returns this object: linear models from moments, logistic and Poisson
models from Newton rounds.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from math import exp
from textwrap import wrap
from typing import Any, Literal, TypeAlias

from fedgram.core.escaping import guarded, latex
from fedgram.core.extras import require
from fedgram.core.terminal import visible

Kind: TypeAlias = Literal["linear", "logistic", "poisson"]
INTERCEPT = "(intercept)"
TITLES: Mapping[Kind, str] = {
    "linear": "Linear regression",
    "logistic": "Logistic regression",
    "poisson": "Poisson regression",
}
RATIOS: Mapping[Kind, str] = {"logistic": "odds ratio", "poisson": "rate ratio"}  # exp(coefficient)
# The figures that a summary may have, in the order in which they are printed, with their labels.
FIGURES: Mapping[str, str] = {
    "n": "Rows",
    "parameters": "Parameters",
    "df_residual": "Residual df",
    "effective_df": "Effective df",
    "r_squared": "R-squared",
    "adjusted_r_squared": "Adj. R-squared",
    "within_r_squared": "R-squared within sites",
    "f": "F-statistic",
    "f_p": "Prob (F-statistic)",
    "residual_sd": "Residual SD",
    "pseudo_r_squared": "Pseudo R-squared",
    "log_likelihood": "Log-likelihood",
    "null_log_likelihood": "Log-likelihood, null",
    "likelihood_ratio": "LR chi-square",
    "likelihood_ratio_p": "Prob (LR)",
    "deviance": "Deviance",
    "null_deviance": "Deviance, null",
    "dispersion": "Pearson chi2 / df",
    "aic": "AIC",
    "bic": "BIC",
    "condition_number": "Condition number",
    "ridge": "Ridge",
    "rounds": "Rounds",
}
_WHOLE = ("n", "parameters", "df_residual", "rounds")
_WIDTH = 78
MOST_LINES = 60  # of a smaller table in a text; the other forms have all


@dataclass(frozen=True)
class Coefficient:
    """One row of a regression table.

    Attributes
    ----------
    term
        Name of the row: a column, a level of a category such as "sex=F", or "(intercept)".
    column
        The study's column that the term belongs to; "" for the intercept.
    estimate
        The coefficient, in the outcome's unit per unit of the column (log odds, log rates).
    se, statistic, p, low, high
        Standard error, t or z statistic, p value and the ends of the interval; None where the model has none.

    """

    term: str
    column: str
    estimate: float
    se: float | None = None
    statistic: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None

    def ratio(self) -> tuple[float, float | None, float | None]:
        """Return exp(estimate) and the ends of its interval: an odds ratio or rate ratio."""
        low, high = (None if end is None else _exp(end) for end in (self.low, self.high))
        return _exp(self.estimate), low, high


@dataclass(frozen=True)
class JointTest:
    """The test that all coefficients of a column are 0.

    Attributes
    ----------
    column
        The study's column.
    statistic
        F with `df` and `df_residual` degrees of freedom; chi-square with `df` where `df_residual` is None.
    df, df_residual
        The degrees of freedom.
    p
        The p value.

    """

    column: str
    statistic: float
    df: int
    df_residual: float | None
    p: float


@dataclass(frozen=True)
class RandomIntercept:
    """A random intercept of the sites.

    Attributes
    ----------
    method
        "reml" or "ml".
    residual_variance, site_variance
        σ² and τ², in squared units of the outcome.
    icc
        Intraclass correlation τ² / (τ² + σ²).
    criterion
        -2 times the (restricted) log-likelihood at the estimates, as lme4 prints it.
    effects
        The predicted deviation of each site from the intercept (BLUP).
    statistic, p
        The likelihood-ratio test of τ² = 0; its distribution is half a chi-square with one degree of freedom.

    """

    method: Literal["reml", "ml"]
    residual_variance: float
    site_variance: float
    icc: float
    criterion: float
    effects: Mapping[str, float]
    statistic: float
    p: float


@dataclass(frozen=True)
class Sites:
    """The sites of the rows, and what was made of them.

    Attributes
    ----------
    rows
        The number of rows of each site. Empty where only pooled sums exist.
    effects
        The site effects in the model: "none", "fixed" or "random".
    robust
        Whether standard errors are cluster-robust by site.
    random
        The random intercept, if `effects` is "random".
    intercepts
        The intercept of each site, if `effects` is "fixed".

    """

    rows: Mapping[str, int]
    effects: Literal["none", "fixed", "random"] = "none"
    robust: bool = False
    random: RandomIntercept | None = None
    intercepts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteEstimate:
    """A term's coefficient and standard error at one site alone."""

    site: str
    estimate: float
    se: float


@dataclass(frozen=True)
class Heterogeneity:
    """Differences of one coefficient between sites.

    Attributes
    ----------
    term
        The term.
    sites
        The coefficient at each site that can estimate it by itself.
    left_out
        The reason for each other site.
    pooled, pooled_se
        The inverse-variance mean of the sites' coefficients and its standard error: what a meta-analysis would report.
        None if no site can estimate the term.
    q, df, p
        Cochran's Q, its degrees of freedom and p value; None with fewer than two sites.
    i_squared
        I², the share of the variation that is not chance, in [0, 1].

    """

    term: str
    sites: tuple[SiteEstimate, ...]
    left_out: Mapping[str, str]
    pooled: float | None
    pooled_se: float | None
    q: float | None
    df: int
    p: float | None
    i_squared: float | None


@dataclass(frozen=True)
class Gap:
    """Missing cells of one column at one site.

    Attributes
    ----------
    column
        The study's column.
    site
        The site; "" where only the pooled number is known.
    cells
        The number of cells.
    treatment
        "imputed" by the pooled mean, "flagged" (imputed, with an indicator in the model), "category" (a level of its
        own), or "dropped" (the rows were left out at the party).

    """

    column: str
    site: str
    cells: int
    treatment: Literal["imputed", "flagged", "category", "dropped"]


@dataclass(frozen=True)
class Coefficients:
    """A regression table. It prints as text, and shows as a table in a notebook.

    Parameters
    ----------
    kind
        "linear", "logistic" or "poisson".
    outcome, unit
        The outcome and its unit ("" for none). For classes the outcome names the class that is modelled.
    method
        How the model was fitted, in words, such as "Least squares" or "Random intercept, REML".
    errors
        The kind of the standard errors, in words, such as "classical"; "none" for a ridge.
    rows
        The coefficients, the intercept first.
    joint
        Joint tests, one for each column with several coefficients.
    level
        The confidence level of the intervals.
    df
        The degrees of freedom of the t statistics; None where the statistics are z.
    summary
        Figures of the whole model by name; the names are those of `FIGURES`.
    vif
        The variance inflation factor of each term but the intercept.
    aliased
        The terms that were left out, because they are combinations of earlier ones.
    notes
        Sentences that a reader of the table must know.
    sites
        The sites and their effects.
    heterogeneity
        Differences of coefficients between sites.
    missing
        The dropped and imputed cells per column and site.

    """

    kind: Kind
    outcome: str
    unit: str
    method: str
    errors: str
    rows: tuple[Coefficient, ...]
    joint: tuple[JointTest, ...] = ()
    level: float = 0.95
    df: float | None = None
    summary: Mapping[str, float] = field(default_factory=dict)
    vif: Mapping[str, float] = field(default_factory=dict)
    aliased: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sites: Sites = field(default_factory=lambda: Sites({}))
    heterogeneity: tuple[Heterogeneity, ...] = ()
    missing: tuple[Gap, ...] = ()

    def __getitem__(self, term: str) -> Coefficient:
        """Return the row of a term; KeyError for other names."""
        for row in self.rows:
            if row.term == term:
                return row
        raise KeyError(term)

    @property
    def statistic(self) -> str:
        """The letter of the statistic: "t" or "z"."""
        return "z" if self.df is None else "t"

    @property
    def title(self) -> str:
        """The title, such as "Linear regression of cost [EUR]"."""
        return f"{TITLES[self.kind]} of {self.outcome}" + (f" [{self.unit}]" if self.unit else "")

    # Text
    def text(self) -> str:
        """Return the table as text, in the layout of statsmodels."""
        table = self._aligned()
        width = max(_WIDTH, *map(len, table))
        parts = [
            self.title.center(width).rstrip(),
            "=" * width,
            *_two_columns(self._facts(), self._figures(), width),
            "=" * width,
            table[0].rstrip(),
            "-" * width,
            *(line.rstrip() for line in table[1:]),
            "=" * width,
        ]
        for heading, grid in self._sections():
            lines = _columns(grid)
            more = len(lines) - 1 - MOST_LINES
            parts += [heading, *lines[: MOST_LINES + 1], *([f"and {more:,} more"] if more > 0 else []), "=" * width]
        if self.notes:
            notes = (f"[{i}] {note}" for i, note in enumerate(self.notes, 1))
            parts += ["Notes:", *(line for note in notes for line in wrap(note, width, subsequent_indent="    "))]
        return "\n".join(visible(part) for part in parts)

    def __str__(self) -> str:
        """Return the table as text."""
        return self.text()

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("Outcome", self.outcome), ("Method", self.method), ("Standard errors", self.errors)]
        if self.sites.rows:
            facts.append(("Sites", f"{len(self.sites.rows)}"))
        if self.sites.effects != "none":
            facts.append(("Site effects", self.sites.effects))
        if (random := self.sites.random) is not None:
            facts += [
                ("Residual variance", _figure(random.residual_variance)),
                ("Site variance", _figure(random.site_variance)),
                ("ICC", f"{random.icc:.4f}"),
                ("Prob (site variance = 0)", _p(random.p)),
                (f"{random.method.upper()} criterion", f"{random.criterion:.4f}"),
            ]
        return facts

    def _figures(self) -> list[tuple[str, str]]:
        found = []
        for name, label in FIGURES.items():
            if name in self.summary:
                value = self.summary[name]
                shown = f"{value:.0f}" if name in _WHOLE else _p(value) if name.endswith("_p") else _figure(value)
                found.append((label, shown))
        return found

    def _heads(self) -> list[str]:
        low = (1 - self.level) / 2
        heads = ["", "coef", "std err", self.statistic, f"P>|{self.statistic}|", f"[{low:.6g}", f"{1 - low:.6g}]"]
        if ratio := RATIOS.get(self.kind):
            heads += [ratio, f"[{low:.6g}", f"{1 - low:.6g}]"]
        return heads

    def _cells(self) -> list[list[str]]:
        cells = []
        for row in self.rows:
            line = [
                row.term,
                _figure(row.estimate),
                _figure(row.se, 3),
                "" if row.statistic is None else f"{row.statistic:.3f}",
                "" if row.p is None else _p(row.p),
                _figure(row.low, 3),
                _figure(row.high, 3),
            ]
            if self.kind in RATIOS:
                line += [_figure(value, 3) for value in row.ratio()]
            cells.append(line)
        return cells

    def _aligned(self) -> list[str]:
        grid = [self._heads(), *self._cells()]
        return _columns(grid, least=0 if self.kind in RATIOS else 10)

    def _sections(self) -> list[tuple[str, list[list[str]]]]:
        """Return the smaller tables below the coefficients, each with its heading; the first row has the heads."""
        found: list[tuple[str, list[list[str]]]] = []
        if self.joint:
            kind = "F" if self.joint[0].df_residual is not None else "chi2"
            lines = [
                [test.column, f"{test.statistic:.3f}", _df(test.df, test.df_residual), _p(test.p)]
                for test in self.joint
            ]
            found.append(("Joint tests", [["", kind, "df", f"P>{kind}"], *lines]))
        if self.vif:
            lines = [[term, f"{value:.3f}"] for term, value in self.vif.items()]
            found.append(("Variance inflation", [["", "VIF"], *lines]))
        if self.sites.random is not None:
            lines = [[site, _figure(value)] for site, value in self.sites.random.effects.items()]
            found.append(("Predicted site effects (BLUP)", [["", "effect"], *lines]))
        if self.sites.intercepts:
            lines = [[site, _figure(value)] for site, value in self.sites.intercepts.items()]
            found.append(("Intercepts of the sites", [["", "intercept"], *lines]))
        if self.heterogeneity:
            heads = ["", "sites", "lowest", "highest", "Q", "df", "P>Q", "I2"]
            lines = [
                [
                    one.term,
                    str(len(one.sites)),
                    *(_figure(pick((site.estimate for site in one.sites), default=None)) for pick in (min, max)),
                    "" if one.q is None else f"{one.q:.3f}",
                    str(one.df),
                    "" if one.p is None else _p(one.p),
                    "" if one.i_squared is None else f"{100 * one.i_squared:.1f} %",
                ]
                for one in self.heterogeneity
            ]
            found.append(("Differences between sites", [heads, *lines]))
        if self.missing:
            lines = [[gap.column, gap.site or "all sites", str(gap.cells), gap.treatment] for gap in self.missing]
            found.append(("Missing cells", [["", "site", "cells", "treatment"], *lines]))
        return found

    # Other forms
    def _repr_html_(self) -> str:
        """Return plain HTML tables, for notebooks."""
        figures = [*self._facts(), *self._figures()]
        about = "".join(f"<tr><th>{_html(name)}</th><td>{_html(value)}</td></tr>" for name, value in figures)
        tables = [("", [self._heads(), *self._cells()]), *self._sections()]
        notes = "".join(f"<li>{_html(note)}</li>" for note in self.notes)
        return (
            f"<table><caption>{_html(self.title)}</caption><tbody>{about}</tbody></table>"
            + "".join(_html_table(heading, grid) for heading, grid in tables)
            + (f"<ol>{notes}</ol>" if notes else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as dicts, lists and plain values, ready for JSON."""
        found: dict[str, Any] = _plain(asdict(self) | {"rows": self.records()})
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return one dict of names and values for each coefficient."""
        keys = ("ratio", "ratio_low", "ratio_high")
        ratios = self.kind in RATIOS
        return [asdict(row) | (dict(zip(keys, row.ratio(), strict=True)) if ratios else {}) for row in self.rows]

    def to_csv(self) -> str:
        """Return the coefficients as CSV, with all digits."""
        out = io.StringIO()
        write = csv.writer(out, lineterminator="\n")
        ratios = ("ratio", "ratio_low", "ratio_high") if self.kind in RATIOS else ()
        write.writerow([*(each.name for each in fields(Coefficient)), *ratios])
        for record in self.records():
            write.writerow(
                guarded(visible(value)) if isinstance(value, str) else "" if value is None else repr(value)
                for value in record.values()
            )
        return out.getvalue()

    def to_latex(self) -> str:
        """Return the coefficients as a LaTeX table, which needs the package booktabs."""
        heads, *lines = [self._heads(), *self._cells()]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{latex(self.title)}}}",
                rf"  \begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
                r"    \toprule",
                rf"    {_latex_row(heads)}",
                r"    \midrule",
                *(f"    {_latex_row(line)}" for line in lines),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_pandas(self) -> Any:
        """Return the coefficients as a pandas frame, indexed by term; raise if pandas is not installed."""
        pandas = require("pandas", "pandas", "a pandas frame")
        return pandas.DataFrame.from_records(self.records()).set_index("term")


def _exp(value: float) -> float:
    """Return exp(value), infinite where that is too large for a floating-point number."""
    return exp(value) if value < 700 else float("inf")


def _figure(value: float | None, digits: int = 4) -> str:
    """Return a number with so many decimals, or significant digits if it is very large or very small; "" for None.

    >>> _figure(1.23456), _figure(0.0), _figure(0.0000123), _figure(1234567.0), _figure(None)
    ('1.2346', '0.0000', '1.23e-05', '1.235e+06', '')
    """
    if value is None:
        return ""
    small = value != 0 and (abs(value) >= 1e5 or abs(value) < 10.0 ** (1 - digits))
    return f"{value:.{max(digits, 4) if abs(value) >= 1 else 3}g}" if small else f"{value:.{digits}f}"


def _p(value: float) -> str:
    """Return a p value with three decimals.

    >>> _p(0.0421), _p(1e-7)
    ('0.042', '<0.001')
    """
    return f"{value:.3f}" if value >= 0.0005 else "<0.001"


def _df(df: int, residual: float | None) -> str:
    return f"{df}" if residual is None else f"{df}, {residual:g}"


def _columns(grid: Sequence[Sequence[str]], least: int = 0) -> list[str]:
    """Return rows of texts as aligned lines: the first column left, the others right."""
    grid = [[visible(text) for text in row] for row in grid]
    widths = [max(least, *map(len, column)) for column in zip(*grid, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in grid]


def _two_columns(left: Sequence[tuple[str, str]], right: Sequence[tuple[str, str]], width: int) -> Iterable[str]:
    """Yield lines with a name and a value on the left and on the right."""
    half = max(width // 2 - 1, *(len(name) + len(value) + 3 for name, value in left))
    for i in range(max(len(left), len(right))):
        one = _spread(*left[i], half) if i < len(left) else " " * half
        other = _spread(*right[i], width - half - 2) if i < len(right) else ""
        yield f"{one}  {other}".rstrip()


def _spread(name: str, value: str, width: int) -> str:
    return f"{name}:{value:>{max(width - len(name) - 1, len(value) + 1)}}"


def _html(text: str) -> str:
    return escape(visible(text))


def _html_table(heading: str, grid: Sequence[Sequence[str]]) -> str:
    caption = f"<caption>{_html(heading)}</caption>" if heading else ""
    head = "".join(f"<th>{_html(text)}</th>" for text in grid[0])
    body = "".join(
        f"<tr><th>{_html(name)}</th>{''.join(f'<td>{_html(text)}</td>' for text in texts)}</tr>"
        for name, *texts in grid[1:]
    )
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _latex_row(texts: Sequence[str]) -> str:
    # A row that begins with a bracket would be taken for the argument of the end of the row before it.
    return "{}" + " & ".join(map(latex, texts)) + r" \\"


def _plain(value: Any) -> Any:
    """Return a value with dicts and lists only; a number that JSON lacks becomes None."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
