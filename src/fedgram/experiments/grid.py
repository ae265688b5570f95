"""The runs of an experiment. Each has a key that depends only on what is run, so that a finished one is known again."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import Any

from fedgram.core.hashing import hash_text
from fedgram.data.spread import BY_GROUP
from fedgram.experiments.config import STANDARD, Experiment
from fedgram.experiments.variants import CENTRALISED
from fedgram.protocol.method import Method, Require


@dataclass(frozen=True)
class Setting:
    """What all methods are compared on: data spread over clients, and a seed."""

    data: str
    backbone: str | None
    clients: int
    partition: str
    test: str
    test_fraction: float
    seed: int
    samples: int | None = None
    label_column: str | None = None
    client_column: str | None = None
    shift: str | None = None

    @cached_property
    def key(self) -> str:
        """The same for the same setting, everywhere."""
        return stable_key(asdict(self))

    @property
    def is_drawn(self) -> bool:
        """Whether the data are drawn at random for so many clients."""
        return self.data.startswith("synthetic")

    @property
    def counts_clients(self) -> bool:
        """Whether the number of clients says anything: there are as many groups as the data have."""
        return self.partition != BY_GROUP or self.is_drawn

    def describe(self) -> str:
        """Say in one line what the setting is."""
        crowd = f"{self.clients} clients, " if self.counts_clients else ""
        shift = f"{self.shift}, " if self.shift else ""
        return f"{self.data}, {crowd}{self.partition}, {shift}seed {self.seed}"


@dataclass(frozen=True)
class Run:
    """One method in one setting; `method` None is the reference: least squares on all training samples pooled."""

    setting: Setting
    label: str
    method: Method | None
    require: Require = "all"
    ridge: float = 0.0
    intercept: bool = True

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name if self.method else CENTRALISED

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters."""
        return self.method.settings() if self.method else {"ridge": self.ridge, "intercept": self.intercept}

    @cached_property
    def key(self) -> str:
        """The same for the same run, whatever its label."""
        # Runs without what there was not at first keep the keys that they had.
        added = (("intercept", False), ("alone", False))
        settings = {name: value for name, value in self.settings.items() if (name, value) not in added}
        about = {"method": self.name, "settings": settings, "require": self.require}
        return stable_key(asdict(self.setting) | about)


def runs_of(experiment: Experiment) -> Iterator[Run]:
    """Yield the runs, setting by setting; seeds come last, so that the first pass already fills every table.

    >>> experiment = Experiment.of({"data": "digits", "methods": ["afl"], "seeds": [0, 1]})
    >>> [(run.label, run.setting.seed) for run in runs_of(experiment)]
    [('centralised', 0), ('afl', 0), ('centralised', 1), ('afl', 1)]
    """
    fraction = 0.0 if experiment.test == STANDARD else experiment.test_fraction
    combinations = product(experiment.seeds, experiment.data, experiment.clients, experiment.partitions)
    for seed, data, clients, partition in combinations:
        setting = Setting(
            data,
            experiment.backbone,
            clients,
            partition,
            experiment.test,
            fraction,
            seed,
            experiment.samples,
            experiment.label_column,
            experiment.client_column,
            experiment.shift,
        )
        if not setting.counts_clients and clients != experiment.clients[0]:
            continue
        ridge, intercept = experiment.centralised_ridge, experiment.centralised_intercept
        yield Run(setting, CENTRALISED, None, ridge=ridge, intercept=intercept)
        for variant in experiment.variants:
            yield Run(setting, variant.label, variant.method, experiment.require)


def stable_key(about: Any) -> str:
    """Return 16 hexadecimal digits that stand for some plain values.

    >>> stable_key({"b": 1, "a": 2.0}) == stable_key({"a": 2, "b": 1})
    True
    """
    text = json.dumps(_plain(about), sort_keys=True, separators=(",", ":"), default=str)
    return hash_text(text)[:16]


def _plain(value: Any) -> Any:
    """Write 1.0 as 1, the same hyper-parameter, and leave out what is None: an option added later changes no key."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
