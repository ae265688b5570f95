"""Options that `fedgram run` and `fedgram compare` share, each defined once."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.lock import only_writer
from fedgram.core.terminal import one_line
from fedgram.experiments.scenario import Scenario, kind_of
from fedgram.protocol.method import Engine, Require, engines
from fedgram.protocol.parameters import read_require

PARTITIONS = (
    "dirichlet:ALPHA, shards:PER_CLIENT, pathological:CLASSES (or pathological:CLASSES:unbalanced), iid, by_group. "
    "Default: the data's own groups, or else dirichlet:0.1."
)
# What --help says of the scenario's settings, by name.
SETTINGS = {
    "data": "A data set by name (see [b]fedgram data list[/]), or a path: a folder of images per class, an .npz, CSV "
    "or Parquet file, or several tables with commas, one a party (with --study).",
    "backbone": "What turns samples into features: lite0:96, FILE.onnx, hub:NAME, minilm, pixels, …",
    "samples": "Use only so many of the samples.",
    "label_column": "The label column of your table.",
    "client_column": "The column that names each sample's client.",
    "study": "The study that says what a table's columns are. Default: drafted, where a table is not all numbers.",
    "columns": "The only columns of your table to use, with commas.",
    "drop": "Columns of your table not to use, with commas.",
    "test_data": "A table with test samples, or several with commas, one a party.",
    "on_bad": "What to do with bad images or rows of yours: refuse (default) or skip.",
    "shift": "Give each client's images a change of its own: camera:STRENGTH or rotation:DEGREES.",
    "test": "local: each client holds back some of its own (default); standard: the data set's own test set; "
    "held-out: samples that no client gets.",
    "test_fraction": "Share of the samples held back. Default: 0.2.",
}
RUNNING = {
    "require": (str, "Clients that must take part: all (default), a number, or a fraction."),
    "engine": (str, "What carries the messages: inprocess (default), or flower-sim (Flower's simulation)."),
    "workers": (
        int,
        "Clients side by side: threads of the in-process engine (default: as many as pay off), processes of flower-sim "
        "(default: one per processor). The result is the same.",
    ),
    "wait": (bool, "Wait for another program that writes to the folder of --out; else stop at once."),
}
FLAGS = {"label_column": "--label"}  # where the option has another name


@dataclass(frozen=True)
class Running:
    """How runs are performed: by which engine, with how many of the clients, and who may write to their folder."""

    engine: Engine
    require: Require | None
    wait: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Running":
        """Check what was given."""
        name, workers, require = given["engine"] or "inprocess", given["workers"], given["require"]
        if name not in engines:
            raise UnknownName("engine", name, engines)
        if workers is not None and workers < 1:
            raise InvalidParameter(f"workers must be at least 1, got {workers}")
        engine = engines[name]() if workers is None else engines[name](workers=workers)
        return cls(engine, None if require is None else read_require(require), bool(given["wait"]))

    @contextmanager
    def sole_writer(self, folder: Path, console: Console) -> Iterator[None]:
        """Keep others from writing to the folder; where one does already, wait or stop."""

        def told(busy: str) -> None:
            console.print(f"waiting: {one_line(busy)}")

        with only_writer(folder, wait=told if self.wait else None):
            yield


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above, between its positional parameters and its keyword-only ones.

    It gets them as `settings`, those that were given by name, and `running`.
    """
    own = list(inspect.signature(command).parameters.values())
    kinds = {field.name: kind_of(field) for field in fields(Scenario)}
    about = {name: (kinds[name], text) for name, text in SETTINGS.items()} | RUNNING
    common = [_parameter(name, kind, text) for name, (kind, text) in about.items()]
    first = [one for one in own if one.kind is one.POSITIONAL_OR_KEYWORD]
    last = [one for one in own if one.kind is one.KEYWORD_ONLY and one.name not in ("settings", "running")]

    def called(**options: Any) -> None:
        running = Running.of({name: options.pop(name) for name in RUNNING})
        own = {name: value for name, value in options.items() if name not in SETTINGS}
        command(**own, settings=given_settings(options), running=running)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature([*first, *common, *last])  # type: ignore[attr-defined]
    return called


def _parameter(name: str, kind: type, text: str) -> inspect.Parameter:
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    annotation = Annotated[kind | None, typer.Option(flag, help=text)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scenario's settings among the options of a command."""
    return {name: options[name] for name in SETTINGS if options[name] is not None}


def split_settings(texts: list[str]) -> dict[str, str]:
    """Return what `--set NAME=VALUE` gives, by name."""
    for text in texts:
        if "=" not in text:
            raise InvalidParameter(f"--set takes NAME=VALUE, got {text!r}")
    settings = dict(text.split("=", 1) for text in texts)
    if len(settings) < len(texts):
        raise InvalidParameter(f"--set names a parameter twice: {' '.join(texts)}")
    return settings
