"""A scenario: the setting in which methods are compared, from the data to the test samples, described once.

A new setting needs a field of `Column` and its use in `prepare`. Experiment files, keys, records and tables follow
from the field; on the command line it has an option in `cli/options.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, Self, cast, get_args, get_origin

import numpy as np

from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.hashing import hash_text
from fedgram.core.randomness import generator
from fedgram.core.schema import Count, Natural, Share, alternatives, annotations_of, read_fields
from fedgram.data.client import make_clients
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad, check_on_bad
from fedgram.data.own.cells import Notation
from fedgram.data.partition import BY_GROUP, check_min_size, client_names, read_partition, spread
from fedgram.data.published.catalog import CATALOG, GROUPED
from fedgram.data.shift import read_shift, shifted
from fedgram.experiments.loader import Loader, Source
from fedgram.experiments.prepared import Prepared, with_shares
from fedgram.experiments.variants import show
from fedgram.features import featurize
from fedgram.studies.loading import state_of

# Where test samples come from: each client holds back some of its own; the data set's own test set; or, for data
# sets without one, a share of the samples held back before the rest is spread, the same for every seed.
LOCAL, STANDARD, HELD_OUT = TESTS = ("local", "standard", "held-out")
WITHOUT_GROUPS = "dirichlet:0.1"  # the default partition of samples without owners


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of result tables: a scenario without its seed.

    A field that a record lacks has the default given here. A field that is added later has
    the default None: that leaves the keys of finished runs as they are.
    """

    data: str = ""
    backbone: str | None = None
    clients: Natural | None = None
    partition: str = ""
    test: str = LOCAL
    test_fraction: Share | None = None
    samples: Count | None = None
    label_column: str | None = None
    client_column: str | None = None
    shift: str | None = None
    on_bad: str | None = None
    study: str | None = None
    columns: str | None = None
    drop: str | None = None
    test_data: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    min_size: Count | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the column in a record of results; raise ValueError for a wrong type."""
        values = read_fields(cls, record, error=ValueError, json=True)
        return cls(**{name: value for name, value in values.items() if value != ""})

    @property
    def spread(self) -> str:
        """The partition in words."""
        kind, _, value = self.partition.partition(":")
        match kind:
            case "dirichlet":
                return f"α = {value}"
            case "shards":
                return f"{value} shards"
            case "pathological":
                classes, _, shares = value.partition(":")
                return f"{classes} classes" + (f", {shares}" if shares else "")
            case "iid":
                return "IID"
        return self.partition.replace("_", " ")

    @property
    def crowd(self) -> str:
        """The number of clients in words."""
        return "" if self.clients is None else f"{self.clients:,} client" + "s" * (self.clients != 1)

    @property
    def has_common_test(self) -> bool:
        """Whether one model is scored on one test set; not so if the data set's own test samples belong to groups."""
        return self.test == HELD_OUT or (self.test == STANDARD and self.partition != BY_GROUP)

    @property
    def details(self) -> dict[str, str]:
        """The other settings in words, which headings show only if columns differ in them."""
        said = {
            "data": self.data,
            "backbone": self.backbone or "no backbone",
            "samples": "all samples" if self.samples is None else f"{self.samples:,} samples",
            "label_column": f"label {self.label_column}" if self.label_column else "usual label",
            "client_column": f"clients by {self.client_column}" if self.client_column else "",
            "shift": f"shift {self.shift}" if self.shift else "no shift",
            "test": f"{self.test} test",
            "test_fraction": f"{100 * self.test_fraction:g} % held back" if self.test_fraction else "",
            "on_bad": "bad samples skipped" if self.on_bad == "skip" else "",
            "study": f"study {self.study}" if self.study else "",
            "columns": f"columns {self.columns}" if self.columns else "",
            "drop": f"without {self.drop}" if self.drop else "",
            "test_data": f"tested on {self.test_data}" if self.test_data else "",
            "decimal": f"numbers with {self.decimal!r}" if self.decimal else "",
            "thousands": f"thousands with {self.thousands!r}" if self.thousands else "",
            "min_size": f"at least {self.min_size:,} samples a client" if self.min_size else "no least size",
        }
        others = {field.name for field in fields(Column)}.difference(said, ("clients", "partition"))
        return said | {name: f"{name} {show(getattr(self, name))}" for name in sorted(others)}


@dataclass(frozen=True, kw_only=True)
class Scenario(Column):
    """Data spread over clients, and a seed: the setting of every run on one machine.

    `data` is the name of a data set or a path, `backbone` the name of the map from samples to features. The default
    partition is by the data's own groups (those of `client_column`, where one is given), or else dirichlet:0.1 over
    `clients`. `test` says where test samples come from: "local", "standard" or "held-out".

    A table that is not all numbers is read under a study: the file that `study` names, or one that is drafted from the
    table. `columns` (the only ones that are used) and `drop` (those that are not) change it; both have commas between
    names. `data` may be several tables with commas between them, one a party, and `test_data` those with test samples.
    With `min_size` every client of a Dirichlet partition has at least so many samples, test samples included.

    >>> import fedgram as fg
    >>> prepared = Scenario(data="digits", clients=10, partition="iid").prepare()
    >>> fit = prepared.fit(fg.FedGram())
    >>> prepared.score(fit).client_mean > 0.9
    True
    """

    clients: Count = 20
    test_fraction: Share = 0.2
    seed: Natural = 0

    def __post_init__(self) -> None:
        """Raise for wrong settings, and set those that follow from others."""
        if self.clients < 1:
            raise InvalidParameter(f"clients must be at least 1, got {self.clients}")
        if self.test not in TESTS:
            raise UnknownName("kind of test", self.test, TESTS)
        if not 0 <= self.test_fraction < 1:
            raise InvalidParameter(f"test_fraction must be at least 0 and less than 1, got {self.test_fraction}")
        if self.test_data and self.test == LOCAL:
            object.__setattr__(self, "test", STANDARD)
        if self.test_data and self.test != STANDARD:
            raise InvalidParameter(f"test_data holds the test samples, so test cannot be {self.test!r}: leave one out")
        if self.test == STANDARD:
            object.__setattr__(self, "test_fraction", 0.0)
        if self.on_bad is not None:
            check_on_bad(self.on_bad)
        if self.shift is not None:
            read_shift(self.shift)
            if self.test != LOCAL:
                wrong = f"with {self.test!r} the data have a test set that belongs to no single client"
                raise InvalidParameter(f"shift needs test = {LOCAL!r}: {wrong}")
        for key in ("label_column", "client_column", "study", "columns", "drop", "test_data"):
            if getattr(self, key) and self._base in CATALOG:
                raise InvalidParameter(f"{key} is for tables of your own; data set {self.data!r} has no columns")
        object.__setattr__(self, "partition", self.partition or self._stated_partition())
        read_partition(self.partition or WITHOUT_GROUPS)
        check_min_size(self.partition or WITHOUT_GROUPS, self.min_size or 0)

    @cached_property
    def key(self) -> str:
        """The key of the scenario, the same on every machine."""
        return stable_key(asdict(self))

    @property
    def is_drawn(self) -> bool:
        """Whether the data are drawn at random for so many clients."""
        return self._base == "synthetic"

    @property
    def counts_clients(self) -> bool:
        """Whether the number of clients is a setting: groups are as many as the data have."""
        return self.partition != BY_GROUP or self.is_drawn

    @property
    def source(self) -> Source:
        """The source from which the data are loaded."""
        # Only drawn data depend on clients and seed; all others are loaded once.
        drawn = (self.clients, self.seed) if self.is_drawn else (1, 0)
        on_bad = cast("OnBad", self.on_bad or "refuse")
        tables = self.study, self.columns, self.drop, self.test_data
        state = tuple(map(state_of, (self.data, self.study, self.test_data)))
        notation = Notation(self.decimal or ".", self.thousands or "")
        return Source(self.data, self.label_column, self.client_column, on_bad, *drawn, *tables, notation, state)

    def outcomes(self, loader: Loader) -> Columns:
        """Return the numeric outcomes, () where there are classes; a table without an agreed study is opened to see."""
        return () if self._base in CATALOG else loader.outcomes(self.source)

    def resolve(self, loader: Loader | None = None) -> Self:
        """Return the scenario with the partition that follows from its data, which are opened to see if need be."""
        if self.partition:
            return self
        owned = state_of(self.data) is not None and (loader or Loader()).has_groups(self.source)
        return replace(self, partition=BY_GROUP if owned else WITHOUT_GROUPS)

    def describe(self) -> str:
        """Return a line that describes the scenario."""
        crowd = f"{self.clients} clients, " if self.counts_clients else ""
        shift = f"{self.shift}, " if self.shift else ""
        through = f" through {self.backbone}" if self.backbone else ""
        least = f"at least {self.min_size} samples each, " if self.min_size else ""
        return f"{self.data}{through}, {crowd}{self.partition}, {least}{shift}seed {self.seed}"

    def prepare(self, loader: Loader | None = None, *, labels_only: bool = False) -> Prepared:
        """Return the scenario with its data loaded, passed through the backbone, and spread over clients.

        A `loader` opens data once for all the scenarios that are prepared with it.
        With `labels_only`, zeros take the place of features and no backbone runs; the clients' labels are the same.
        """
        loader = loader or Loader()
        partition = self.resolve(loader).partition
        as_features = self.shift is None and not labels_only
        own_test = self.test == STANDARD
        data = loader.load(self.source, self.backbone, as_features=as_features, samples=self.samples, own_test=own_test)
        if labels_only:
            x, x_test = (None if part is None else np.zeros((len(part), 1)) for part in (data.x, data.x_test))
            data = replace(data, x=x, x_test=x_test)
        if self.test == HELD_OUT:
            data = _hold_out(data, self.test_fraction)
        parts = spread(data, partition, clients=self.clients, seed=self.seed, min_size=self.min_size or 0)
        names = client_names(data, partition, len(parts))
        if self.shift is not None and not labels_only:
            data = featurize(shifted(data, parts, names, self.shift, seed=self.seed), self.backbone)
        fraction = self.test_fraction if self.test == LOCAL else 0.0
        clients = make_clients(data, parts, test_fraction=fraction, seed=self.seed, names=names)
        owned = own_test and partition == BY_GROUP and data.groups_test is not None
        own_tests = self.test == LOCAL or owned
        return Prepared(data, clients if own_tests else with_shares(clients, data), self.seed, own_tests)

    def _stated_partition(self) -> str:
        """Return the default partition if it follows from the description, "" if it depends on the data."""
        if self._base in CATALOG:
            return BY_GROUP if self._base in GROUPED else WITHOUT_GROUPS
        return BY_GROUP if self.client_column else ""

    @property
    def _base(self) -> str:
        return self.data.partition(":")[0].lower()


def kinds_of_settings() -> dict[str, type]:
    """Return the plain types of a scenario's settings by name, without their sizes and None."""
    kinds = {name: alternatives(kind)[0] for name, kind in annotations_of(Scenario).items()}
    return {name: get_args(kind)[0] if get_origin(kind) is Annotated else kind for name, kind in kinds.items()}


def _hold_out(data: Dataset, fraction: float) -> Dataset:
    """Return the data set with a test set of its own, the same for every partition and seed."""
    shuffled = generator(0, "held-out").permutation(len(data))
    held_back = round(fraction * len(data))
    if not 0 < held_back < len(data):
        raise InvalidParameter(f"test_fraction {fraction} of {len(data)} samples leaves nothing to test or train on")
    test, train = np.sort(shuffled[:held_back]), np.sort(shuffled[held_back:])
    groups = None if data.groups is None else data.groups[train]
    x, y = data.x, data.y
    return replace(data, x=x[train], y=y[train], groups=groups, x_test=x[test], y_test=y[test])


def stable_key(about: Any) -> str:
    """Return a key of 16 hexadecimal digits for some plain values.

    >>> stable_key({"b": 1, "a": 2.0}) == stable_key({"a": 2, "b": 1})
    True
    """
    text = json.dumps(_plain(about), sort_keys=True, separators=(",", ":"), default=str)
    return hash_text(text)[:16]


def _plain(value: Any) -> Any:
    """Return values with 1.0 as 1, and without None, so that an option that is added later changes no key."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
