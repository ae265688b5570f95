"""Options of regression tables, which `fedgram coefficients` and `fedgram run` share."""

from typing import Annotated

import typer

from fedgram.core.errors import InvalidParameter
from fedgram.studies.design import Likelihood, Request, SiteEffects

SiteEffectsOption = Annotated[
    str,
    typer.Option(
        "--site-effects",
        metavar="none|fixed|random",
        help="An intercept for each site: none, fixed (a dummy for each), or random (from a normal distribution).",
    ),
]
Ml = Annotated[bool, typer.Option("--ml", help="Random effects by plain maximum likelihood instead of REML.")]
Robust = Annotated[
    str | None,
    typer.Option("--robust", metavar="site", help="Standard errors that are robust to correlation within sites."),
]
HeterogeneityOption = Annotated[
    bool, typer.Option("--heterogeneity", help="Compare the coefficients of the sites: Cochran's Q and I².")
]
RidgeOption = Annotated[
    float | None, typer.Option("--ridge", help="A penalty on coefficients of standardised columns; without p values.")
]
Level = Annotated[float, typer.Option("--level", help="The confidence level of the intervals.")]


def names_in(text: str | None) -> list[str] | None:
    """Return the names in a text with commas, None for None.

    >>> names_in("age, sex"), names_in(None)
    (['age', 'sex'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def request_of(
    *,
    outcome: str | None,
    columns: str | None,
    site_effects: str,
    ml: bool,
    robust: str | None,
    heterogeneity: bool,
    ridge: float | None,
    level: float,
) -> Request:
    """Return the options of a table as they stand on the command line."""
    if robust not in (None, "site"):
        raise InvalidParameter(
            f"--robust: expected site, got {robust!r}; errors that are robust to heteroscedasticity (HC) need sums of "
            "weighted rows, which summaries do not hold"
        )
    if ml and site_effects != "random":
        raise InvalidParameter(f"--ml: expected --site-effects random, got {site_effects}; leave one of them out")
    likelihood: Likelihood = "ml" if ml else "reml"
    effects: SiteEffects = site_effects  # type: ignore[assignment]  # which Request checks
    return Request(
        outcome=outcome,
        columns=names_in(columns),
        site_effects=effects,
        likelihood=likelihood,
        robust=robust is not None,
        heterogeneity=heterogeneity,
        ridge=ridge,
        level=level,
    )
