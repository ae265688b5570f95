"""Configurations of a deployment: the app's (`flwr run -c`) and each node's own (`--node-config`).

Flower's values are text, numbers or true/false; all are checked here, by name, before anything is computed.

Which samples a node holds back for testing is its own choice, the same in every run: if a run could choose, the
difference of two runs would show single samples. So the choice is a keyed hash of each sample, with a key that only the
node has. No other party can tell, or change, which samples are used.
"""

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from platformdirs import user_data_path

from fedgram.core.classes import Label
from fedgram.core.errors import InvalidData, InvalidParameter, UnknownName
from fedgram.core.filesystem import file_name, locked, replace_file
from fedgram.core.schema import BelowOne, Bounds, Natural, Positive, annotations_of, read
from fedgram.data import load_dataset
from fedgram.data.client import Client
from fedgram.data.own.bad import OnBad
from fedgram.data.own.cells import POINT, Notation
from fedgram.data.partition import spread
from fedgram.engines.flower.node_keys import LONGEST_NAME, PublicKey, read_keys
from fedgram.features import featurize
from fedgram.features.backbones.named_backbones import in_catalogue
from fedgram.protocol.method import Method, Require
from fedgram.protocol.named_methods import is_code, resolve
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.parameters import read_require, read_settings
from fedgram.protocol.registry import registry
from fedgram.protocol.replies import expected
from fedgram.studies import Study
from fedgram.studies.study import check_same

KEY_FILE = "split.key"
_KEY_BYTES = 32
_AT_ONCE = 1024  # samples


def node_key(folder: Path) -> bytes:
    """Return the node's key, kept in its folder; the first call makes it, and nothing ever writes over it.

    A damaged one is an error, since with a new key other samples would be held back than in the runs before.
    """
    path = folder / KEY_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f".{KEY_FILE}.lock"), nullcontext):
                if not path.exists():
                    replace_file(path, secrets.token_bytes(_KEY_BYTES), mode=0o600)
        key = path.read_bytes()
    except OSError as error:
        raise InvalidData(f"cannot read or write {path}: {error.strerror or error}").telling(
            "the node cannot use its own folder"
        ) from error
    if len(key) != _KEY_BYTES:
        raise InvalidData(
            f"{path} is damaged: it has {len(key)} bytes, not {_KEY_BYTES}. Bring it back from a copy: with another "
            "key other samples would be held back than in earlier runs"
        ).telling("the key of the node's split is damaged")
    return key


def held_back(x: Any, labels: Sequence[Label], fraction: float, key: bytes) -> npt.NDArray[np.bool_]:
    """Return a mask of held-back samples: about that fraction, by the keyed hash of each sample with its label.

    Equal samples are on the same side, and no sample changes sides when others are added or removed.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for i, (content, label) in enumerate(zip(_contents(x), labels, strict=True)):
        name = str(label).encode()
        about = blake2b(len(name).to_bytes(8, "big") + name, digest_size=8, key=key, person=b"fedgram split")
        about.update(content)
        chosen[i] = int.from_bytes(about.digest(), "big") < fraction * 2**64
    return chosen


def _contents(x: Any) -> Iterator[bytes]:
    """Yield the bytes of each sample, the same for equal numbers of any type; of an image file, the file's."""
    paths: Sequence[Path] | None = getattr(x, "paths", None)
    if paths is not None:  # reading a file is quicker than decoding it
        yield from (path.read_bytes() for path in paths)
        return
    for start in range(0, len(x), _AT_ONCE):
        block = np.asarray(x[start : start + _AT_ONCE])
        if block.dtype.kind in "OUS":
            yield from (str(sample).encode() for sample in block)
        else:
            rows = block.reshape(len(block), -1).astype("<f8") + 0.0  # -0.0 becomes 0.0
            yield from (row.tobytes() for row in rows)


Find = Callable[[str], type[Method]]
_FINGERPRINT = re.compile("[0-9a-f]{64}")
MOST_NODES = 10**6
SETTINGS = "settings."  # in front of the method's hyper-parameters
log = logging.getLogger("flwr")  # Flower's log, so that our lines appear among its own
T = TypeVar("T")
Config = Mapping[str, bool | float | int | str]
_SHOWN = 60  # characters of what is wrong


@dataclass(frozen=True)
class App:
    """The configuration of a run: the same for the server and all nodes. An empty text stands for no value."""

    method: str = "afl"
    classes: str = ""
    backbone: str = ""
    study: str = ""
    study_fingerprint: str = ""
    seed: int = 0
    clients: str = ""
    keys: str = ""
    nodes: Annotated[int, Bounds(0, MOST_NODES)] = 2
    require: str = "all"
    minimum_samples: Natural = 0
    minimum_cell: Natural = 0
    wait: Positive = 300.0
    timeout: Positive = 600.0
    out: str = ""
    settings_of: str = ""
    settings: Mapping[str, str] | None = None

    @classmethod
    def read(cls, config: Config) -> "App":
        """Read an app's configuration."""
        settings = {key.removeprefix(SETTINGS): str(value) for key, value in config.items() if key.startswith(SETTINGS)}
        if wrong := [name for name in settings if not isinstance(config[SETTINGS + name], (str, bool, int, float))]:
            raise InvalidParameter(f"app configuration: settings.{wrong[0]} must be text, a number or true/false")
        rest = {key: value for key, value in config.items() if not key.startswith(SETTINGS)}
        if "test-fraction" in rest:
            raise InvalidParameter(
                "app configuration: test-fraction is each node's own choice, in its --node-config: remove it here"
            )
        app = read_values(cls, rest, "app configuration", hidden=("settings",))
        app = replace(app, settings=settings)
        if app.study_fingerprint and not _FINGERPRINT.fullmatch(app.study_fingerprint):
            raise InvalidParameter(
                "app configuration: study-fingerprint: expected 64 hexadecimal digits, got "
                f"{app.study_fingerprint[:64]!r}: write the app anew with fedgram flower new --study"
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
        """Return the names of the expected clients: those listed, else those of the keys, else the study's parties."""
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
        """Return the number or share of clients that must take part."""
        return cast("Require", read_require(self.require))


def is_recorded(method: type[Method]) -> bool:
    """Return whether a method's clients reveal only their moments and answers that the record of answers checks.

    That is so for methods that publish, and for those that send nothing.
    """
    own = [step for step in method.steps() if not hasattr(Method, step)]
    sent = [expected(method, step) for step in own]  # type: ignore[arg-type]
    return issubclass(method, Publishing) or not any(reply is not None for reply in sent)


@dataclass(frozen=True)
class NodeConfig:
    """A node's own configuration, which is never sent."""

    name: str = ""
    data: str = ""
    test_data: str = ""
    study: str = ""
    label: str = ""
    on_bad: str = "refuse"
    backbone: str = ""
    folder: str = ""
    test_fraction: BelowOne = 0.2
    methods: str = ""
    networks: str = ""
    minimum_samples: Natural = 10
    minimum_cell: Natural = 3
    timeout: Positive = 86400.0
    partition: str = "iid"
    partition_id: int = -1
    num_partitions: int = 0
    partition_seed: int = 0
    decimal: str = "."
    thousands: str = ""

    @classmethod
    def read(cls, config: Config) -> "NodeConfig":
        """Read a node's configuration."""
        own = read_values(cls, config, "node-config")
        if own.num_partitions and not 0 <= own.partition_id < own.num_partitions:
            raise InvalidParameter(
                f"node-config: partition-id must be from 0 to {own.num_partitions - 1}, one less than num-partitions, "
                f"got {own.partition_id}"
            )
        if own.notation != POINT and not own.study:
            raise InvalidParameter("node-config: decimal and thousands are for a table under a study: add study")
        return own

    @property
    def notation(self) -> Notation:
        """The notation of numbers in the node's own tables."""
        try:
            return Notation(self.decimal, self.thousands)
        except InvalidParameter as error:
            raise InvalidParameter(f"node-config: {error}") from None

    def client_name(self) -> str:
        """Return the client's name, which other nodes must not have."""
        if self.name:
            if len(self.name) > LONGEST_NAME or not self.name.isprintable() or self.name != self.name.strip():
                raise InvalidParameter(
                    f"node-config: name: expected up to {LONGEST_NAME} printable characters without blanks around "
                    f"them, got {self.name[:60]!r}"
                ).telling("node-config: name: expected printable characters without blanks around them")
            return self.name
        if self.partition_id >= 0:
            return f"client-{self.partition_id}"
        raise InvalidParameter("this node has no name: start it with --node-config 'name=\"hospital-a\" …'").telling()

    @property
    def has_minimum(self) -> bool:
        """Whether the node has a minimum of samples or of a cell."""
        return bool(self.minimum_samples or self.minimum_cell)

    def model_folder(self) -> Path:
        """Return the folder for the node's model: its own, by default among the user's data, never a shared one."""
        if self.folder:
            return Path(self.folder).expanduser()
        return user_data_path("fedgram", appauthor=False) / "nodes" / file_name(self.client_name())

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
        """Return the function by which this node looks up the method of a run.

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
        """Return the client if it may take part: in methods that the node allows, and with enough samples; else raise.

        Under a study these are its method, and methods whose answers are recorded or tell the same as a summary. With
        others, a server that chooses weights and reads them after a step would evade the record of answers.
        Networks that do not come with fedgram are imported only if the node lists them in `networks`. Of the node's own
        minimum, the run's and the study's the strictest counts. The refusal names the rule; figures stay here. A test
        set that is smaller than a cell is left aside.
        """
        if self.methods and method.name not in {allowed.name for allowed in self.own_methods().values()}:
            raise InvalidParameter(f"methods: this node takes no part in {method.name}").telling()
        if study is not None and not self.methods and not (method.name == study.method or is_recorded(type(method))):
            raise InvalidParameter(
                f"methods: this node takes no part in {method.name} under study {study.name!r}, which names "
                f"{study.method}; its operator can allow that with --node-config 'methods=\"{method.name}\"'"
            ).telling()
        if strange := sorted(set(method.imports()).difference(split(self.networks))):
            raise InvalidParameter(
                f"networks: this node does not import {strange[0]!r}; its operator can allow that with "
                f"--node-config 'networks=\"{strange[0]}\"'"
            ).telling()
        asking = (self, app) if study is None else (self, app, study)
        samples, cell = max(one.minimum_samples for one in asking), max(one.minimum_cell for one in asking)
        if (used := method.fewest_samples(len(client.y))) < samples:
            raise InvalidData(f"{used} training samples in a reply, minimum-samples is {samples}").telling(
                "minimum-samples: a reply would cover fewer training samples than this node allows"
            )
        counts = client.label_counts()
        for label in client.labels():
            if (count := counts.get(label, 0)) < cell:
                raise InvalidData(f"{count} training samples of class {label!r}, minimum-cell is {cell}").telling(
                    "minimum-cell: a class has fewer training samples than this node allows"
                )
        if client.x_test is not None and len(client.x_test) < cell:
            return replace(client, x_test=np.zeros((0, *client.x_test.shape[1:])), y_test=np.asarray(client.y_test)[:0])
        return client


def read_values(cls: type[T], config: Config, what: str, hidden: Iterable[str] = ()) -> T:
    """Return a dataclass from Flower's values, checked by its annotations; names are written with hyphens there."""
    own: type = cls
    kinds = {name.replace("_", "-"): kind for name, kind in annotations_of(own).items() if name not in hidden}
    values = {}
    for key, value in config.items():
        if key not in kinds:
            raise UnknownName(f"name in {what}", str(key)[:_SHOWN], kinds)
        kind = str | float if kinds[key] is str else kinds[key]
        found = read(kind, value, f"{what}: {key}", error=InvalidParameter, json=True)
        values[key.replace("-", "_")] = str(value) if kinds[key] is str else found
    return cls(**values)


def split(text: str) -> list[str]:
    """Return the parts of a text between commas.

    >>> split("cat, dog"), split("")
    (['cat', 'dog'], [])
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def taken_over(written: type[Method], chosen: type[Method], given: dict[str, str]) -> dict[str, str]:
    """Return the settings that a run of another method takes over from an app: those changed there, with equal meaning.

    The same name may mean another thing (alpha does), unless both methods have it from a common base.
    """
    usual = written().settings()
    changed = {name for name, value in read_settings(written, given).items() if value != usual[name]}
    bases = set(written.__mro__).intersection(chosen.__mro__)
    common = {name for name in usual if any(name in vars(base).get("__annotations__", {}) for base in bases)}
    if lost := sorted(changed - common):
        log.info("settings of %s that are not those of %s are left out: %s", written.name, chosen.name, ", ".join(lost))
    return {name: given[name] for name in changed & common}
