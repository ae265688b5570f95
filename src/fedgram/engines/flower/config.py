"""What a deployment reads: the app's configuration (`flwr run -c`) and each node's own (`--node-config`).

Flower's values are text, numbers or true/false; both are checked here, by name, before anything is computed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from platformdirs import user_data_path

from fedgram.data import load_dataset
from fedgram.data.bad import OnBad
from fedgram.data.client import Client, make_clients
from fedgram.data.spread import spread
from fedgram.engines.flower.node import folder_name
from fedgram.errors import InvalidParameter, UnknownName
from fedgram.features import featurize
from fedgram.features.specs import in_catalogue
from fedgram.methods.base import Method, Require
from fedgram.methods.parameters import read_require, read_settings
from fedgram.methods.registry import registry

T = TypeVar("T")
Config = Mapping[str, bool | float | int | str]
SETTINGS = "settings."  # in front of the method's hyper-parameters


@dataclass(frozen=True)
class App:
    """What a run is: the same for the server and all nodes. Empty text means: not given."""

    method: str = "afl"
    classes: str = ""
    backbone: str = ""
    test_fraction: float = 0.2
    seed: int = 0
    clients: str = ""
    nodes: int = 2
    require: str = "all"
    wait: float = 300.0
    timeout: float = 600.0
    out: str = ""
    settings: Mapping[str, str] | None = None

    @classmethod
    def read(cls, config: Config) -> "App":
        """Read an app's configuration."""
        settings = {key.removeprefix(SETTINGS): str(value) for key, value in config.items() if key.startswith(SETTINGS)}
        rest = {key: value for key, value in config.items() if not key.startswith(SETTINGS)}
        app = _read(cls, rest, "app configuration", hidden=("settings",))
        app = replace(app, settings=settings)
        if app.nodes < 0 or app.wait <= 0 or app.timeout <= 0:
            raise InvalidParameter(
                "app configuration: wait and timeout must be positive, nodes at least 0; "
                f"got {app.wait:g}, {app.timeout:g} and {app.nodes}"
            )
        return app

    def configured(self) -> Method:
        """Return the method with its hyper-parameters."""
        chosen = registry[self.method]
        return chosen(**read_settings(chosen, dict(self.settings or {})))

    def class_names(self) -> int | list[str | int] | None:
        """Return the classes: a number of them, or names in order; None to take the labels that occur."""
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
    label: str = ""
    on_bad: str = "refuse"
    backbone: str = ""
    folder: str = ""
    partition: str = "iid"
    partition_id: int = -1
    num_partitions: int = 0

    @classmethod
    def read(cls, config: Config) -> "NodeConfig":
        """Read a node's configuration."""
        return _read(cls, config, "node-config")

    def client_name(self) -> str:
        """Return the client's name, which other nodes must not have."""
        if self.name:
            return self.name
        if self.partition_id >= 0:
            return f"client-{self.partition_id}"
        raise InvalidParameter("this node has no name: start it with --node-config 'name=\"hospital-a\" …'")

    def model_folder(self) -> Path:
        """Return the folder for the node's model: its own, by default among the user's data, never a shared one."""
        if self.folder:
            return Path(self.folder).expanduser()
        return user_data_path("fedgram", appauthor=False) / "nodes" / folder_name(self.client_name())

    def client(self, app: App) -> Client:
        """Open the node's data as the app wants them: features, and some samples held back for testing.

        Data with a test set of their own (`x_test` of an .npz) are tested on that. With `partition-id` and
        `num-partitions` the node takes its part of the data only, to try things out.
        """
        if not self.data:
            raise InvalidParameter("this node has no data: start it with --node-config 'data=\"PATH\" …'")
        data = load_dataset(
            self.data, seed=app.seed, label=self.label or None, on_bad=cast("OnBad", self.on_bad), one_of_many=True
        )
        data = featurize(data, self._backbone(app), progress=False)
        labels = np.asarray(data.classes)  # nodes agree on names, not on numbers of their own
        name = self.client_name()
        if self.num_partitions:
            data = data.pooled()
            part = spread(data, self.partition, clients=self.num_partitions, seed=app.seed)[self.partition_id]
        elif data.x_test is not None:
            return Client(name, data.x, labels[data.y], data.x_test, labels[data.y_test], data.features, data.columns)
        else:
            part = np.arange(len(data))
        named = replace(data, y=labels[data.y])
        [client] = make_clients(named, [part], test_fraction=app.test_fraction, seed=app.seed, names=[name])
        return client

    def _backbone(self, app: App) -> str | None:
        """Return what turns samples into features; a run may name what comes with fedgram, all else the node itself."""
        if not self.backbone and app.backbone and not in_catalogue(app.backbone):
            raise InvalidParameter(
                f"the run names the backbone {app.backbone!r}, which does not come with fedgram: if this node has and "
                "trusts it, start it with --node-config 'backbone=\"…\" …'"
            )
        return self.backbone or app.backbone or None


def split(text: str) -> list[str]:
    """Return what stands between commas.

    >>> split("cat, dog"), split("")
    (['cat', 'dog'], [])
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def _read(cls: type[T], config: Config, what: str, hidden: Iterable[str] = ()) -> T:
    """Return a dataclass from Flower's values; names are written with hyphens there."""
    defaults = {name.replace("_", "-"): getattr(cls, name) for name in cls.__dataclass_fields__ if name not in hidden}  # type: ignore[attr-defined]
    values = {}
    for key, value in config.items():
        if key not in defaults:
            raise UnknownName(f"name in {what}", key, defaults)
        kind = type(defaults[key])
        if (
            isinstance(value, bool)
            or (kind is not str and isinstance(value, str))
            or (kind is int and value != int(value))
        ):
            raise InvalidParameter(f"{what}: {key} must be {'text' if kind is str else 'a number'}, got {value!r}")
        values[key.replace("-", "_")] = kind(value)
    return cls(**values)
