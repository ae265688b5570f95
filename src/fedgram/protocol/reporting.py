"""What to report of a fit, ready for JSON."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.evaluation import Evaluation
from fedgram.moments.validation import SiteError
from fedgram.numeric_evaluation import NumericEvaluation
from fedgram.protocol.sites import Sites
from fedgram.protocol.timing import Timing

if TYPE_CHECKING:
    from fedgram.protocol.fit import Fit


def outcome(fit: "Fit", evaluation: Evaluation | NumericEvaluation | None = None) -> dict[str, Any]:
    """Return what to report of a fit; `evaluation` stands in for the fit's own."""
    tested = evaluation or fit.evaluation or fit.errors
    return {
        "method": fit.method,
        "settings": dict(fit.settings),
        "seed": fit.seed,
        "engine": fit.engine,
        **scores(tested),
        "untested": tested.untested if tested else len(fit.contributors),
        "failed": dict(tested.failed) if tested else {},
        "absent": dict(fit.absent),
        "lost": dict(fit.lost),
        "traffic": {"up": fit.traffic.up, "down": fit.traffic.down},
        "carried": dict(fit.carried),
        "reveals": fit.notes.get("reveals"),
        "seconds": round(fit.seconds, 6),
        "cpu_seconds": {who: round(seconds, 6) for who, seconds in fit.cpu_seconds.items()},
        "timing": {span: round(value, 6) for span, value in Timing.summary(fit.timing).items()},
        **({} if fit.sites is None else {"validation": validation(fit.sites)}),
    }


def scores(tested: Evaluation | NumericEvaluation | None) -> dict[str, Any]:
    """Return how good models are over all test samples: accuracies and probabilities, or errors of numeric outcomes."""
    if isinstance(tested, NumericEvaluation):
        errors = {name: _known(errors) for name, errors in tested.summary().items()}
        return {"accuracy": None, "errors": errors}
    if tested is None or not any(tested.tested.values()):
        return {"accuracy": None}
    told = {} if tested.probabilities is None else {"probabilities": tested.probabilities.summary()}
    return {"accuracy": tested.summary(), **told}


def validation(sites: Sites) -> dict[str, Any]:
    """Return the errors at each party of models without it, of all, and of its own samples; or why they are left out.

    They are lists in the order of `names`: by numeric outcome, or for classes under the name "".
    """
    if sites.why_not:
        return {"left_out": sites.why_not}
    found = sites.validation
    if not found:
        return {"left_out": "there are no two parties with samples"}
    targets = {"": slice(None)} if sites.outcomes is None else _places(sites.outcomes.names)
    return {
        "names": list(found),
        "samples": [site.left_out.n for site in found.values()],
        "errors": {
            target: {
                which: {
                    measure: [_number(of(_at(getattr(site, which), place))) for site in found.values()]
                    for measure, of in _MEASURES.items()
                    if target == "" or measure != "brier"
                }
                for which in ("left_out", "pooled", "own")
            }
            for target, place in targets.items()
        },
    }


_MEASURES: dict[str, Callable[[SiteError], float]] = {
    "mse": lambda error: error.mse,
    "r2": lambda error: error.r2,
    "brier": lambda error: error.brier,
}


def _places(names: tuple[str, ...]) -> dict[str, slice]:
    return {name: slice(place, place + 1) for place, name in enumerate(names)}


def _at(error: SiteError, place: slice) -> SiteError:
    return replace(
        error, squared_errors=error.squared_errors[place], squares_about_mean=error.squares_about_mean[place]
    )


def _known(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in figures.items()}


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return float(np.float64(value)) if isfinite(value) else None
