"""The runs of an experiment. Each has a key that depends only on what is run, so that a finished one is known again."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fedgram.experiments.config import Experiment
from fedgram.experiments.keys import stable_key
from fedgram.experiments.prepared import no_global_model
from fedgram.experiments.scenario import Scenario
from fedgram.experiments.variants import CENTRALISED
from fedgram.protocol.method import Method, Require, check_outcomes

REFERENCE_REVISION = 1  # of the centralised reference, as methods have a `revision`


@dataclass(frozen=True)
class Run:
    """One method in one scenario; `method` None is the reference: least squares on all training samples pooled."""

    scenario: Scenario
    label: str
    method: Method | None
    require: Require = "all"
    ridge: float = 0.0
    intercept: bool = True

    def __post_init__(self) -> None:
        """Refuse a run whose result could not be scored, before anything is run."""
        if self.method and self.scenario.has_common_test and not self.method.has_global_model:
            raise no_global_model(self.name)
        if self.method:
            check_outcomes([self.method], self.scenario.outcomes)

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name if self.method else CENTRALISED

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters."""
        return self.method.settings() if self.method else {"ridge": self.ridge, "intercept": self.intercept}

    @property
    def revision(self) -> int:
        """The version of the method's computation."""
        return self.method.revision if self.method else REFERENCE_REVISION

    @cached_property
    def key(self) -> str:
        """The key of the run and its computation; label and engine do not change it."""
        about = {"method": self.name, "settings": self.settings, "require": self.require, "revision": self.revision}
        return stable_key(asdict(self.scenario) | about)


def runs_of(experiment: Experiment) -> Iterator[Run]:
    """Yield the runs, scenario by scenario; seeds come last, so that the first pass already fills every table.

    >>> experiment = Experiment.of({"data": "digits", "methods": ["afl"], "seeds": [0, 1]})
    >>> [(run.label, run.scenario.seed) for run in runs_of(experiment)]
    [('centralised', 0), ('afl', 0), ('centralised', 1), ('afl', 1)]
    """
    ridge, intercept = experiment.centralised_ridge, experiment.centralised_intercept
    for scenario in experiment.scenarios:
        check_outcomes((variant.method for variant in experiment.variants), scenario.outcomes)  # all at once
        yield Run(scenario, CENTRALISED, None, ridge=ridge, intercept=intercept)
        for variant in experiment.variants:
            yield Run(scenario, variant.label, variant.method, experiment.require)
