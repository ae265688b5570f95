"""What a deployment reads: the app's configuration (`flwr run -c`) and each node's own (`--node-config`).

Flower's values are text, numbers or true/false; both are checked here, by name, before anything is computed.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path, PurePath
from typing import cast

import numpy as np
from platformdirs import user_data_path

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.data import load_dataset
from fedgram.data.client import Client
from fedgram.data.own.bad import OnBad
from fedgram.data.spread import spread
from fedgram.engines.flower.keys import PublicKey, read_keys
from fedgram.engines.flower.node import folder_name
from fedgram.engines.flower.split import held_back, node_key
from fedgram.engines.flower.values import Config, read_values, split, taken_over
from fedgram.features import featurize
from fedgram.features.backbones.specs import in_catalogue
from fedgram.protocol.method import Method, Require
from fedgram.protocol.parameters import read_require, read_settings
from fedgram.protocol.registry import registry
from fedgram.protocol.sources import is_code, resolve
from fedgram.studies import Study
from fedgram.studies.identity import check_same

Find = Callable[[str], type[Method]]
_FINGERPRINT = re.compile("[0-9a-f]{64}")
SETTINGS = "settings."  # in front of the method's hyper-parameters

log = logging.getLogger("flwr")  # so that it shows where Flower's own lines do


@dataclass(frozen=True)
class App:
    """What a run is: the same for the server and all nodes. Empty text means: not given."""

    method: str = "afl"
    classes: str = ""
    backbone: str = ""
    study: str = ""
    study_fingerprint: str = ""
    seed: int = 0
    clients: str = ""
    keys: str = ""
    nodes: int = 2
    require: str = "all"
    minimum_samples: int = 0
    minimum_cell: int = 0
    wait: float = 300.0
    timeout: float = 600.0
    out: str = ""
    settings_of: str = ""
    settings: Mapping[str, str] | None = None

    @classmethod
    def read(cls, config: Config) -> "App":
        """Read an app's configuration."""
        settings = {key.removeprefix(SETTINGS): str(value) for key, value in config.items() if key.startswith(SETTINGS)}
        rest = {key: value for key, value in config.items() if not key.startswith(SETTINGS)}
        if "test-fraction" in rest:
            raise InvalidParameter(
                "app configuration: test-fraction is each node's own choice, in its --node-config: remove it here"
            )
        app = read_values(cls, rest, "app configuration", hidden=("settings",))
        app = replace(app, settings=settings)
        if app.nodes < 0 or not (0 < app.wait < inf and 0 < app.timeout < inf):
            raise InvalidParameter(
                "app configuration: wait and timeout must be positive, nodes at least 0; "
                f"got {app.wait:g}, {app.timeout:g} and {app.nodes}"
            )
        if app.study_fingerprint and not _FINGERPRINT.fullmatch(app.study_fingerprint):
            raise InvalidParameter(
                f"app configuration: study-fingerprint: expected 64 hexadecimal digits, got {app.study_fingerprint!r}: "
                "write the app anew with fedgram flower new --study"
            )
        if app.study_fingerprint and (app.classes or app.backbone):
            raise InvalidParameter(
                f"app configuration: classes {app.classes!r} and backbone {app.backbone!r} are given, and the study "
                "says what there is: leave both empty"
            )
        if strangers := set(split(app.clients)).difference(app.public_keys() or split(app.clients)):
            raise InvalidParameter(f"app configuration: keys are listed, but none for the client {min(strangers)!r}")
        return app

    def configured(self, find: Find = registry.__getitem__) -> Method:
        """Return the method with its hyper-parameters; `find` looks a method up, by default by its name alone."""
        chosen, given = find(self.method), dict(self.settings or {})
        if self.settings_of and (written := find(self.settings_of)) is not chosen:
            given = taken_over(written, chosen, given)
        return chosen(**read_settings(chosen, given))

    def public_keys(self) -> dict[str, PublicKey]:
        """Return the nodes' public keys by client name; empty if the app lists none."""
        return read_keys(self.keys)

    @cached_property
    def agreed(self) -> Study | None:
        """The study of the run, which the server needs; a node reads its own, and compares the two."""
        study = Study.parse(self.study, where="app configuration: study") if self.study else None
        remedy = "write the app anew with fedgram flower new --study"
        what = "app configuration: study-fingerprint"
        check_same(what, study, self.study_fingerprint, remedy=remedy, error=InvalidParameter)
        return study

    def client_names(self) -> list[str]:
        """Return the clients that are expected by name: those given, or whose keys are, or the study's parties."""
        return split(self.clients) or list(self.public_keys()) or list(self.agreed.parties if self.agreed else ())

    def class_names(self) -> int | Sequence[str | int] | None:
        """Return the classes: a number of them, or names in order; None to take the labels that occur."""
        if self.agreed is not None:
            return self.agreed.classes or None
        names = split(self.classes)
        if len(names) == 1 and names[0].isdecimal():
            return int(names[0])
        return [int(name) if name.isdecimal() else name for name in names] or None

    def requirement(self) -> Require:
        """Return how many clients must take part."""
        return cast("Require", read_require(self.require))


@dataclass(frozen=True)
class NodeConfig:
    """What a node says about itself; nobody else sees it."""

    name: str = ""
    data: str = ""
    test_data: str = ""
    study: str = ""
    label: str = ""
    on_bad: str = "refuse"
    backbone: str = ""
    folder: str = ""
    test_fraction: float = 0.2
    methods: str = ""
    networks: str = ""
    minimum_samples: int = 10
    minimum_cell: int = 3
    partition: str = "iid"
    partition_id: int = -1
    num_partitions: int = 0
    partition_seed: int = 0

    @classmethod
    def read(cls, config: Config) -> "NodeConfig":
        """Read a node's configuration."""
        own = read_values(cls, config, "node-config")
        if not 0 <= own.test_fraction < 1:
            raise InvalidParameter(
                f"node-config: test-fraction must be at least 0 and less than 1, got {own.test_fraction}"
            )
        if min(own.minimum_samples, own.minimum_cell) < 0:
            raise InvalidParameter(
                "node-config: minimum-samples and minimum-cell must be whole numbers ≥ 0, "
                f"got {own.minimum_samples} and {own.minimum_cell}"
            )
        if own.num_partitions and not 0 <= own.partition_id < own.num_partitions:
            raise InvalidParameter(
                f"node-config: partition-id must be from 0 to {own.num_partitions - 1}, one less than num-partitions, "
                f"got {own.partition_id}"
            )
        return own

    def client_name(self) -> str:
        """Return the client's name, which other nodes must not have."""
        if self.name:
            return self.name
        if self.partition_id >= 0:
            return f"client-{self.partition_id}"
        raise InvalidParameter("this node has no name: start it with --node-config 'name=\"hospital-a\" …'").telling()

    @property
    def has_minimum(self) -> bool:
        """Whether the node has anything to protect."""
        return bool(self.minimum_samples or self.minimum_cell)

    def model_folder(self) -> Path:
        """Return the folder for the node's model: its own, by default among the user's data, never a shared one."""
        if self.folder:
            return Path(self.folder).expanduser()
        return user_data_path("fedgram", appauthor=False) / "nodes" / folder_name(self.client_name())

    def backbone_for(self, app: App) -> str | None:
        """Return the node's own backbone, or else the run's; a run may choose only among those that fedgram brings."""
        if self.backbone or not app.backbone:
            return self.backbone or None
        if not in_catalogue(app.backbone):
            raise InvalidParameter(
                f"the run's backbone {app.backbone!r} does not come with fedgram: a node takes part only if its own "
                "--node-config names its backbone"
            ).telling()
        return app.backbone

    def client(self, app: App) -> Client:
        """Open the node's data: features, and some samples held back for testing.

        Which samples are used does not depend on the run: what is held back is decided by the node's own key (see
        `split`), or by the data's own test set (`x_test` of an .npz). With `partition-id` and `num-partitions` the
        node takes its part of the data only, to try things out.
        """
        if self.test_data:
            raise InvalidParameter("node-config: test-data is for nodes under a study: remove it").telling()
        if not self.data:
            raise InvalidParameter("this node has no data: start it with --node-config 'data=\"PATH\" …'").telling()
        raw = load_dataset(
            self.data,
            seed=self.partition_seed,
            label=self.label or None,
            on_bad=cast("OnBad", self.on_bad),
            one_of_many=True,
        )
        if raw.about:
            log.info("%s", raw.about)  # the node's own log: a number of patients should not become a feature unseen
        data = featurize(raw, self.backbone_for(app), progress=False)
        if self.num_partitions:
            raw, data = raw.pooled(), data.pooled()
            parts = spread(data, self.partition, clients=self.num_partitions, seed=self.partition_seed)
            part = parts[self.partition_id]
        else:
            part = np.arange(len(data))
        labels = np.asarray(data.classes)  # nodes agree on names, not on numbers of their own
        name, y = self.client_name(), labels[data.y]
        if data.x_test is not None:
            return Client(name, data.x, y, data.x_test, labels[data.y_test], data.features, data.columns)
        # Columns by name, so that a file whose columns come in another order holds back the same rows.
        content = raw.x[:, np.argsort(raw.columns)] if raw.columns else raw.x
        tested = held_back(content, y.tolist(), self.test_fraction, node_key(self.model_folder()))
        train, test = part[~tested[part]], part[tested[part]]
        return Client(name, data.x[train], y[train], data.x[test], y[test], data.features, data.columns)

    def own_methods(self) -> dict[str, type[Method]]:
        """Return the methods that this node's configuration names, read from its own files where it says so."""
        return {text: resolve(text) for text in split(self.methods)}

    def finding(self) -> Find:
        """Return how this node looks up the method of a run.

        A run never makes it read code: a file or module that the run names is found only among those that the node's
        own configuration names. For a file its name is enough, since nodes have it in folders of their own.
        """
        own = self.own_methods()

        def find(text: str) -> type[Method]:
            if not is_code(text):
                return registry[text]
            for known, method in own.items():
                if known == text or (is_code(known) and PurePath(known).name == PurePath(text).name):
                    return method
            raise InvalidParameter(
                f"methods: the run's method {text!r} is code of its own, which a node takes part in only if its own "
                "--node-config names that file or module"
            )

        return find

    def admitted(self, client: Client, app: App, method: Method, study: Study | None = None) -> Client:
        """Return the client as it may take part, or refuse: only in methods that the node allows, not with too little.

        Networks that do not come with fedgram are imported only if the node lists them in `networks`. Of the node's own
        minimum, the run's and the study's the strictest counts. The refusal names the rule; figures stay here. A test
        set that is smaller than a cell is left aside.
        """
        if self.methods and method.name not in {allowed.name for allowed in self.own_methods().values()}:
            raise InvalidParameter(f"methods: this node takes no part in {method.name}").telling()
        if strange := sorted(set(method.imports()).difference(split(self.networks))):
            raise InvalidParameter(
                f"networks: this node does not import {strange[0]!r}; whoever runs it can allow that with "
                f"--node-config 'networks=\"{strange[0]}\"'"
            ).telling()
        asking = (self, app) if study is None else (self, app, study)
        samples, cell = max(one.minimum_samples for one in asking), max(one.minimum_cell for one in asking)
        if (used := method.fewest_samples(len(client.y))) < samples:
            raise InvalidData(f"{used} training samples in a reply, minimum-samples is {samples}").telling(
                "minimum-samples: a reply would be made of fewer training samples than this node sends anything of"
            )
        counts = client.label_counts()
        for label in client.labels():
            if (count := counts.get(label, 0)) < cell:
                raise InvalidData(f"{count} training samples of class {label!r}, minimum-cell is {cell}").telling(
                    "minimum-cell: a class has fewer training samples than this node sends anything of"
                )
        if client.x_test is not None and len(client.x_test) < cell:
            return replace(client, x_test=np.zeros((0, *client.x_test.shape[1:])), y_test=np.asarray(client.y_test)[:0])
        return client
