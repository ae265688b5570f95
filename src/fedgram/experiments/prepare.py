"""A setting made real: the data loaded, put through the backbone, and spread over clients. Once for all methods."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.labels import to_indices
from fedgram.core.randomness import generator
from fedgram.data.client import Client, make_clients
from fedgram.data.dataset import Dataset
from fedgram.data.shift import shifted
from fedgram.data.spread import BY_GROUP, client_names, spread
from fedgram.evaluation import Evaluation, count_correct
from fedgram.experiments.config import HELD_OUT, LOCAL, STANDARD
from fedgram.experiments.grid import Setting
from fedgram.features import featurize, load_features, load_samples
from fedgram.models import Model
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit

TEST_SET = "test set"


@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set spread over clients."""

    setting: Setting
    data: Dataset
    clients: list[Client]

    @property
    def tested_by_clients(self) -> bool:
        """Whether every client has test samples of its own, rather than all one test set."""
        owned = self.data.groups_test is not None and self.setting.partition == BY_GROUP
        return self.setting.test == LOCAL or (self.setting.test == STANDARD and owned)

    @property
    def fingerprint(self) -> str:
        """What the features are features of, and what made them."""
        return "/".join(part for part in (self.data.fingerprint, self.data.features) if part)

    @cached_property
    def class_counts(self) -> list[list[int]]:
        """Training samples by client and class."""
        classes = len(self.data.classes)
        return [np.bincount(self._indices(client.y), minlength=classes).tolist() for client in self.clients]

    @cached_property
    def total(self) -> Moments:
        """The moments of all training samples pooled; only the reference looks at them."""
        parts = (
            Moments.of(_flat(client.x), client.y, classes=self.data.classes) for client in self.clients if len(client.x)
        )
        return Moments.sum(parts)

    def centralised(self, ridge: float, *, intercept: bool) -> Evaluation:
        """Score the reference: least squares on all training samples pooled, which nobody could send."""
        model = self.total.model(ridge, intercept=intercept)
        if not self.tested_by_clients:
            return self._on_test_set(model, _flat(self.data.x_test))
        tested = {client.name: len(client.y_test) for client in self.clients}
        correct = {
            client.name: count_correct(model, _flat(client.x_test), self._indices(client.y_test))
            for client in self.clients
            if tested[client.name]
        }
        return Evaluation(correct | {name: 0 for name, n in tested.items() if not n}, tested)

    def evaluation(self, fit: Fit) -> Evaluation | None:
        """Return the accuracies that the setting asks for."""
        if self.tested_by_clients:
            return fit.evaluation
        if fit.model is None:
            raise InvalidParameter(
                f"method {fit.method!r} has no global model to score on a common test set: use test = 'local'"
            )
        return self._on_test_set(fit.model, self.data.x_test)

    def _on_test_set(self, model: Model, x: Any) -> Evaluation:
        y = self.data.y_test
        assert y is not None
        return Evaluation({TEST_SET: count_correct(model, x, y)}, {TEST_SET: len(y)})

    def _indices(self, labels: Any) -> Any:
        return to_indices(labels, self.data.classes)


def prepare(setting: Setting) -> Prepared:
    """Load and spread the data of a setting."""
    data = _load(
        setting.data,
        setting.backbone,
        setting.shift is None,
        setting.samples,
        setting.label_column,
        setting.client_column,
        setting.test == STANDARD,
        # Only what is drawn depends on these; everything else is loaded once.
        *((setting.clients, setting.seed) if setting.is_drawn else (1, 0)),
    )
    if setting.test == HELD_OUT:
        data = _hold_out(data, setting.test_fraction)
    parts = spread(data, setting.partition, clients=setting.clients, seed=setting.seed)
    names = client_names(data, setting.partition, len(parts))
    if setting.shift is not None:
        data = featurize(shifted(data, parts, names, setting.shift, seed=setting.seed), setting.backbone)
    fraction = setting.test_fraction if setting.test == LOCAL else 0.0
    clients = make_clients(data, parts, test_fraction=fraction, seed=setting.seed, names=names)
    return Prepared(setting, data, clients)


@lru_cache(maxsize=1)
def _load(
    name: str,
    backbone: str | None,
    as_features: bool,
    samples: int | None,
    label: str | None,
    group: str | None,
    own_test: bool,
    clients: int,
    seed: int,
) -> Dataset:
    options: dict[str, Any] = {"samples": samples, "own_test": own_test, "label": label, "group": group}
    options |= {"clients": clients, "seed": seed}
    if as_features:
        return load_features(name, backbone=backbone, **options)
    return load_samples(name, **options)


def _hold_out(data: Dataset, fraction: float) -> Dataset:
    """Return the data set with a test set of its own, the same for every partition and seed."""
    shuffled = generator(0, "held-out").permutation(len(data))
    count = round(fraction * len(data))
    if not 0 < count < len(data):
        raise InvalidParameter(f"test_fraction {fraction} of {len(data)} samples leaves nothing to test or train on")
    test, train = np.sort(shuffled[:count]), np.sort(shuffled[count:])
    groups = None if data.groups is None else data.groups[train]
    x, y = data.x, data.y
    return replace(data, x=x[train], y=y[train], groups=groups, x_test=x[test], y_test=y[test])


def _flat(x: Any) -> Any:
    """Return images as rows of pixels, and features as they are."""
    return x if x.ndim == 2 and x.dtype.kind == "f" else x.reshape(len(x), -1).astype(np.float32)
