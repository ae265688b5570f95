"""A scenario: what methods are compared on, from the data to the test samples, described once.

A new setting is a field of `Column` and what `prepare` makes of it. Experiment files, keys, records and tables follow
from the field; on the command line it has an option in `cli/options.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from functools import cached_property
from types import NoneType
from typing import Any, Self, cast, get_args

import numpy as np

from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.core.randomness import generator
from fedgram.data.client import make_clients
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad, check_on_bad
from fedgram.data.published.catalog import CATALOG, GROUPED
from fedgram.data.shift import read_shift, shifted
from fedgram.data.spread import BY_GROUP, client_names, read_partition, spread
from fedgram.experiments.fields import count, maybe, number, share, text
from fedgram.experiments.keys import stable_key
from fedgram.experiments.opening import Source, load_source, open_source, outcomes_of
from fedgram.experiments.prepared import Prepared, with_shares
from fedgram.experiments.variants import show
from fedgram.features import featurize
from fedgram.studies.loading import state_of

# Where test samples come from: each client holds back some of its own; the data set's own test set; or, for data
# sets without one, a share of the samples held back before the rest is spread, the same for every seed.
LOCAL, STANDARD, HELD_OUT = TESTS = ("local", "standard", "held-out")
WITHOUT_GROUPS = "dirichlet:0.1"  # the partition where none is given and samples have no owners


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a table compares methods on: a scenario without its seed.

    Read from a record that does not say everything, a field has the default given here. A field that is added later has
    the default None: that leaves the keys of finished runs as they are.
    """

    data: str = ""
    backbone: str | None = None
    clients: int | None = None
    partition: str = ""
    test: str = LOCAL
    test_fraction: float | None = None
    samples: int | None = None
    label_column: str | None = None
    client_column: str | None = None
    shift: str | None = None
    on_bad: str | None = None
    study: str | None = None
    columns: str | None = None
    drop: str | None = None
    test_data: str | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read a record of results; what is of a wrong kind is a ValueError."""
        read: dict[type, Callable[[str, Any], Any]] = {str: text, int: count, float: number}
        values = {field.name: maybe(read[kind_of(field)], record, field.name) for field in fields(cls)}
        values["test_fraction"] = maybe(share, record, "test_fraction")
        return cls(**{name: value for name, value in values.items() if value not in (None, "")})

    @property
    def spread(self) -> str:
        """The partition as a reader wants it."""
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
        """Whether one model is scored on one test set. The data set's own may belong to its groups: then it is not."""
        return self.test == HELD_OUT or (self.test == STANDARD and self.partition != BY_GROUP)

    @property
    def details(self) -> dict[str, str]:
        """The other settings in words: what a heading says only where columns differ in it."""
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
        }
        others = {field.name for field in fields(Column)}.difference(said, ("clients", "partition"))
        return said | {name: f"{name} {show(getattr(self, name))}" for name in sorted(others)}


@dataclass(frozen=True, kw_only=True)
class Scenario(Column):
    """Data spread over clients, and a seed; everything that is run on one machine is run on one of these.

    `data` is the name of a data set or a path, `backbone` what turns its samples into features. The default partition
    is by the data's own groups (those of `client_column`, where one is given), or else dirichlet:0.1 over `clients`.
    `test` says where test samples come from: "local", "standard" or "held-out".

    A table that is not all numbers is read under a study: the file that `study` names, or one that is drafted from the
    table. `columns` (the only ones that are used) and `drop` (those that are not) change it; both have commas between
    names. `data` may be several tables with commas between them, one a party, and `test_data` those with test samples.

    >>> import fedgram as fg
    >>> prepared = Scenario(data="digits", clients=10, partition="iid").prepare()
    >>> fit = prepared.fit(fg.FedGram())
    >>> prepared.score(fit).client_mean > 0.9
    True
    """

    clients: int = 20
    test_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings, and settle those that follow from others."""
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
                wrong = f"with {self.test!r} there is a test set that is no client's"
                raise InvalidParameter(f"shift needs test = {LOCAL!r}: {wrong}")
        for key in ("label_column", "client_column", "study", "columns", "drop", "test_data"):
            if getattr(self, key) and self._base in CATALOG:
                raise InvalidParameter(f"{key} is for tables of your own; data set {self.data!r} has no columns")
        if not self.partition:
            object.__setattr__(self, "partition", BY_GROUP if self._has_groups() else WITHOUT_GROUPS)
        read_partition(self.partition)

    @cached_property
    def key(self) -> str:
        """The same for the same scenario, everywhere."""
        return stable_key(asdict(self))

    @property
    def is_drawn(self) -> bool:
        """Whether the data are drawn at random for so many clients."""
        return self._base == "synthetic"

    @property
    def counts_clients(self) -> bool:
        """Whether the number of clients says anything: there are as many groups as the data have."""
        return self.partition != BY_GROUP or self.is_drawn

    @cached_property
    def outcomes(self) -> Columns:
        """The numeric outcomes, () where there are classes; a table without an agreed study is opened to see."""
        if self._base in CATALOG or not (self.study or state_of(self.data)):
            return ()
        try:
            return outcomes_of(self._source)
        except (FedgramError, OSError):
            return ()  # preparing will say what is wrong with them

    def describe(self) -> str:
        """Say in one line what the scenario is."""
        crowd = f"{self.clients} clients, " if self.counts_clients else ""
        shift = f"{self.shift}, " if self.shift else ""
        through = f" through {self.backbone}" if self.backbone else ""
        return f"{self.data}{through}, {crowd}{self.partition}, {shift}seed {self.seed}"

    def prepare(self, *, labels_only: bool = False) -> Prepared:
        """Load the data, put them through the backbone, and spread them over clients.

        With `labels_only` samples go through no backbone and a zero stands for each: who has which labels is the same.
        """
        as_features = self.shift is None and not labels_only
        data = load_source(self._source, self.backbone, as_features, self.samples, self.test == STANDARD)
        if labels_only:
            x, x_test = (None if part is None else np.zeros((len(part), 1)) for part in (data.x, data.x_test))
            data = replace(data, x=x, x_test=x_test)
        if self.test == HELD_OUT:
            data = _hold_out(data, self.test_fraction)
        parts = spread(data, self.partition, clients=self.clients, seed=self.seed)
        names = client_names(data, self.partition, len(parts))
        if self.shift is not None and not labels_only:
            data = featurize(shifted(data, parts, names, self.shift, seed=self.seed), self.backbone)
        fraction = self.test_fraction if self.test == LOCAL else 0.0
        clients = make_clients(data, parts, test_fraction=fraction, seed=self.seed, names=names)
        owned = self.test == STANDARD and self.partition == BY_GROUP and data.groups_test is not None
        own_tests = self.test == LOCAL or owned
        return Prepared(data, clients if own_tests else with_shares(clients, data), self.seed, own_tests)

    @property
    def _base(self) -> str:
        return self.data.partition(":")[0].lower()

    @property
    def _source(self) -> Source:
        """What the data are loaded from."""
        # Only what is drawn depends on clients and seed; everything else is loaded once.
        drawn = (self.clients, self.seed) if self.is_drawn else (1, 0)
        on_bad = cast("OnBad", self.on_bad or "refuse")
        tables = self.study, self.columns, self.drop, self.test_data
        state = tuple(map(state_of, (self.data, self.study, self.test_data)))
        return Source(self.data, self.label_column, self.client_column, on_bad, *drawn, *tables, state)

    def _has_groups(self) -> bool:
        """Say whether the samples have owners; a table in which no column was named is opened to see."""
        if self._base in CATALOG:
            return self._base in GROUPED
        if self.client_column or not state_of(self.data):
            return bool(self.client_column)
        try:
            return open_source(self._source).groups is not None
        except (FedgramError, OSError):
            return False  # preparing will say what is wrong with them


def kind_of(field: "Field[Any]") -> type:
    """Return the type of a setting, None left aside."""
    (kind,) = (kind for kind in get_args(field.type) or (field.type,) if kind is not NoneType)
    return cast("type", kind)


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
