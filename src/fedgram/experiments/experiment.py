"""Experiments: a TOML file, or the same keys from the command line, checked before anything runs; and their runs.

A description opens no file: `Experiment.resolve` and `Run.resolve` open the data, and settle what follows from them.

>>> methods = ["afl", {"name": "local", "ridge": 2}]
>>> experiment = Experiment.of({"data": "digits", "clients": [10, 50], "methods": methods})
>>> [scenario.clients for scenario in experiment.scenarios], [variant.label for variant in experiment.variants]
([10, 50], ['afl', 'local (ridge=2)'])
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.filesystem import read_regular
from fedgram.core.schema import Count, Name, NotNegative, PositiveShare, annotations_of, given, read, shown
from fedgram.data.partition import read_partition
from fedgram.experiments.loader import Loader
from fedgram.experiments.prepared import no_global_model
from fedgram.experiments.scenario import STANDARD, Scenario, stable_key
from fedgram.experiments.variants import CENTRALISED, EXAMPLE, Variant, read_variants
from fedgram.protocol.method import Method, Require, check_outcomes
from fedgram.protocol.named_methods import is_file

MOST_BYTES = 1 << 20  # of a file
DEEPEST = 16  # levels of tables and lists in a file: more than any experiment needs
REFERENCE_REVISION = 1  # of the centralised reference, as methods have a `revision`


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Every combination of data, backbone, number of clients, partition, seed and method is one run."""

    title: str
    scenarios: tuple[Scenario, ...]
    variants: tuple[Variant, ...]
    require: Require = "all"
    centralised_ridge: float = 0.0
    centralised_intercept: bool = True
    clients_asked: bool = False  # whether clients are given without partitions, for samples without owners only

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the experiment in a table of keys as in a TOML file; raise for wrong ones."""
        for key in table:
            if key not in _KINDS:
                raise UnknownName("key of an experiment", key, _KINDS)
        for key in ("data", "methods"):
            if not table.get(key):
                raise InvalidParameter(f"an experiment needs {key!r}, as in {_EXAMPLES[key]}")
        values = {key: _value(key, value) for key, value in table.items()}
        own = {key: values.pop(key) for key in _OWN if key in values}
        own["variants"] = own.pop("methods")
        own["title"] = own.get("title") or ", ".join(values["data"])
        asked = "clients" in values and "partitions" not in values
        return cls(scenarios=_scenarios(values), clients_asked=asked, **own)

    def resolve(self, loader: Loader | None = None) -> Self:
        """Return the experiment completed from its data, which are opened; raise if settings cannot be compared.

        Where samples have owners, only one number of clients is left.
        """
        loader = loader or Loader()
        scenarios = [scenario.resolve(loader) for scenario in self.scenarios]
        for scenario in scenarios:
            if self.clients_asked and not scenario.counts_clients:
                clients = list(dict.fromkeys(scenario.clients for scenario in scenarios))
                raise InvalidParameter(
                    f"clients = {clients}, but the samples of {scenario.data} belong to clients already: "
                    "leave clients out, or say with partitions how the samples are spread"
                )
        outcomes = {data: scenario.outcomes(loader) for data, scenario in {s.data: s for s in scenarios}.items()}
        if len(set(map(bool, outcomes.values()))) > 1:
            kinds = ", ".join(f"{data} has {'numbers' if names else 'classes'}" for data, names in outcomes.items())
            raise InvalidParameter(f"data: outcomes must be all classes or all numbers in an experiment, and {kinds}")
        for names in outcomes.values():
            check_outcomes((variant.method for variant in self.variants), names)
        first = scenarios[0].clients
        kept = (scenario for scenario in scenarios if scenario.counts_clients or scenario.clients == first)
        return replace(self, scenarios=tuple(kept))


def _scenarios(values: Mapping[str, Any]) -> tuple[Scenario, ...]:
    """Return every combination of the values of the keys that take lists."""
    settings = {key: value for key, value in values.items() if key not in _LISTS and value is not None}
    lists = {name: values[key] for key, name in _LISTS.items() if key in values}
    order = [name for name in ("seed", "data", "backbone", "clients", "partition") if name in lists]
    made = [
        Scenario(**settings, **dict(zip(order, chosen, strict=True)))
        for chosen in product(*(lists[name] for name in order))
    ]
    if made[0].test != STANDARD and not made[0].test_fraction:
        raise InvalidParameter(f"test_fraction 0 leaves nothing to test on: give more, or test = {STANDARD!r}")
    return tuple(made)


@dataclass(frozen=True)
class Run:
    """One method in one scenario; `method` None is the reference: least squares on all training samples pooled."""

    scenario: Scenario
    label: str
    method: Method | None
    require: Require = "all"
    ridge: float = 0.0
    intercept: bool = True

    def resolve(self, loader: Loader | None = None) -> Self:
        """Return the run with its scenario resolved; refuse a run whose result could not be scored."""
        loader = loader or Loader()
        run = replace(self, scenario=self.scenario.resolve(loader))
        if self.method:
            if run.scenario.has_common_test and not self.method.has_global_model:
                raise no_global_model(self.name)
            check_outcomes([self.method], self.scenario.outcomes(loader))
        return run

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


def runs_of(experiment: Experiment, loader: Loader | None = None) -> Iterator[Run]:
    """Yield the runs, scenario by scenario; seeds come last, so that the first pass already fills every table.

    The data are opened before the first run, and kept by the `loader`.

    >>> experiment = Experiment.of({"data": "digits", "methods": ["afl"], "seeds": [0, 1]})
    >>> [(run.label, run.scenario.seed) for run in runs_of(experiment)]
    [('centralised', 0), ('afl', 0), ('centralised', 1), ('afl', 1)]
    """
    ridge, intercept = experiment.centralised_ridge, experiment.centralised_intercept
    for scenario in experiment.resolve(loader).scenarios:
        yield Run(scenario, CENTRALISED, None, ridge=ridge, intercept=intercept)
        for variant in experiment.variants:
            if scenario.has_common_test and not variant.method.has_global_model:
                raise no_global_model(variant.method.name)
            yield Run(scenario, variant.label, variant.method, experiment.require)


def read_file(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file, unchecked; a file without a title is called by its name.

    Files of methods are named from the experiment's folder, so that it runs from any other.
    """
    too_deep = f"{path} is nested deeper than the {DEEPEST} levels that an experiment may have"
    try:
        table = tomllib.loads(read_regular(path, most=MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise InvalidParameter(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} is not a TOML file: {error}") from error
    except RecursionError:
        raise InvalidParameter(too_deep) from None
    if _deeper(table, DEEPEST):  # dotted keys nest without the parser's noticing
        raise InvalidParameter(too_deep)
    if isinstance(table.get("methods"), list):
        table["methods"] = [_beside(path, entry) for entry in table["methods"]]
    return {"title": path.stem, **table}


def _beside(path: Path, entry: Any) -> Any:
    """Return an entry of `methods` with the path of its file, if it names one, from the folder of `path`."""
    if isinstance(entry, dict) and "name" in entry:
        return {**entry, "name": _beside(path, entry["name"])}
    return str(path.parent / Path(entry).expanduser()) if isinstance(entry, str) and is_file(entry) else entry


def _deeper(value: Any, levels: int) -> bool:
    """Return whether tables and lists are nested deeper than `levels`."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(items) and (levels == 0 or any(_deeper(item, levels - 1) for item in items))


def _value(key: str, value: Any) -> Any:
    """Return the checked value of a key; for a key that takes a list, a single value will do."""
    if key == "methods":
        return read_variants(value)
    if key not in _LISTS:
        found = read(given(_KINDS[key]), value, key, error=InvalidParameter)
        return None if found == "" else found
    items = tuple(read(given(_KINDS[key]), item, key, error=InvalidParameter) for item in _listed(value))
    if not items:
        raise InvalidParameter(f"{key}: expected at least one value, got none; give one, or leave {key} out")
    if twice := [item for item in items if items.count(item) > 1]:
        raise InvalidParameter(f"{key}: expected each value once, got {shown(twice[0])} twice; leave one out")
    if key == "partitions":
        for name in items:
            kind, argument = read_partition(name)
            if ":" in name and not 0 < argument < inf:
                raise InvalidParameter(f"{key}: {kind} takes a number > 0, got {name!r}")
    return items


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


_EXAMPLES = {"data": 'data = "digits"', "methods": EXAMPLE}
# Settings that take a list of values, by their keys in a file.
_LISTS = {"data": "data", "backbone": "backbone", "clients": "clients", "partitions": "partition", "seeds": "seed"}
_OWN: dict[str, Any] = {
    "title": str,
    "methods": Any,
    "require": Literal["all"] | Count | PositiveShare,
    "centralised_ridge": NotNegative,
    "centralised_intercept": bool,
}
_SETTINGS = annotations_of(Scenario)
_KINDS: dict[str, Any] = {
    **{name: kind for name, kind in _SETTINGS.items() if name not in _LISTS.values()},
    **{key: Name if _SETTINGS[name] is str else _SETTINGS[name] for key, name in _LISTS.items()},
    **_OWN,
}
