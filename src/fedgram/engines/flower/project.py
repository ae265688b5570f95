"""A Flower app that needs no code: `fedgram flower new`."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedgram.core.errors import InvalidParameter
from fedgram.core.filesystem import replace_file, slug, writing
from fedgram.core.schema import describe
from fedgram.protocol.method import Method
from fedgram.protocol.named_methods import is_code, resolve
from fedgram.protocol.parameters import parameter_types, read_settings
from fedgram.studies import Study
from fedgram.studies.study import read_text

DEFAULT = "afl"  # method
_APP = '''\
# A Flower app of fedgram. There is no code to write: choose below, start the nodes, and
#
#     flwr run . CONNECTION
#
# Any value can be changed for one run: flwr run . CONNECTION -c 'require="0.8" settings.NAME=VALUE'.
# Which samples a node uses, and how few it takes part with, is the node's own choice (--node-config).
# docs/guides/flower.md of fedgram goes through it step by step.

[project]
name = "{name}"
version = "1.0.0"
description = "{title}"
license = "Apache-2.0"
dependencies = ["fedgram[flower]"]

[tool.flwr.app]
publisher = "fedgram"

[tool.flwr.app.components]
serverapp = "fedgram.engines.flower.app:server"
clientapp = "fedgram.engines.flower.app:client"

[tool.flwr.app.config]
# Which method; `fedgram methods` lists them. Or a file, PATH.py, or MODULE:CLASS: the server reads that, and a node
# that names the same file or module in its own configuration (methods) reads its own copy.
method = {method}
# How many classes ("10"), or their names in order ("ill, well"). Empty: the labels that occur at the nodes.
classes = ""
# The backbone, which turns samples into features: lite0:96, minilm, pixels. Empty: samples are features, or nodes name
# their own (FILE.onnx, hub:NAME), which a run cannot choose for them.
backbone = ""
# The study that the nodes have agreed on, with its fingerprint. It says what classes and backbones there are, so leave
# these empty above. Each node reads its own copy, and refuses a run of another study.
study = {study}
study-fingerprint = "{fingerprint}"
# Everything random follows from it.
seed = 0

# The clients: their names ("hospital-a, hospital-b"), or else the parties that the study lists, or else
# how many nodes (0: all that are connected).
clients = ""
nodes = 2
# Public keys of the clients' nodes, a line each, as in NODE.pub: NAME = ecdsa-sha2-nistp384 AAAA... With keys, a
# client is the node that has its key, and all listed clients are expected if `clients` is empty. Without keys, any node
# can use any name.
keys = """{keys}"""
# How many of them must take part to the end: "all", a number ("2") or a fraction ("0.8"). The result lists who did.
require = "all"
# A node takes part only with at least this many training samples, and this many of each class that it has. Each node
# has its own minima, too (10 and 3 unless it says otherwise); the stricter ones count.
minimum-samples = 0
minimum-cell = 0
# Seconds to wait for nodes to connect, and for a node to perform one step.
wait = 300.0
timeout = 600.0

# The server writes its result into this folder, in a folder per run. Empty: the user's data folder.
out = ""

# Hyper-parameters, and the method that they are of. A run of another method (-c 'method="afl"') has its own defaults
# and takes over only what was changed here and is the same for both, such as the rounds of gradient methods.
settings-of = {method}
[tool.flwr.app.config.settings]
{settings}
'''


def write_app(
    folder: Path,
    method: str | None,
    settings: Mapping[str, str],
    keys: Sequence[str] = (),
    *,
    study: Path | None = None,
) -> Path:
    """Write an app into a new folder and return its path; what is there already is never overwritten.

    `keys` are lines of `NAME = PUBLIC KEY` (see `node_keys.key_line`). `study` is a study file, which the app then
    carries; its method is used where none is given.
    """
    agreed = None if study is None else Study.read(study)
    method = method or (DEFAULT if agreed is None else agreed.method)
    cls = resolve(method)
    chosen = cls(**read_settings(cls, dict(settings)))
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise InvalidParameter(f"{folder} exists and is not an empty folder: choose another")
    kinds = parameter_types(cls)
    lines = []
    for field in fields(cls):
        lines.append(f"# {describe(kinds[field.name])}")
        lines.append(f"{field.name} = {_toml(getattr(chosen, field.name))}")
    title = (cls.__doc__ or "").strip().splitlines()[0].replace("\\", "").replace('"', "'")
    listed = "".join(f"\n{line}" for line in keys) + ("\n" if keys else "")
    names = {"name": _project_name(folder), "title": title, "method": _toml(_written(method, cls))}
    names |= {"study": '""' if study is None else _carried(study), "fingerprint": agreed.fingerprint if agreed else ""}
    text = _APP.format(**names, keys=listed, settings="\n".join(lines))
    written = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    assert written["keys"].split() == listed.split()
    assert written["study"] == ("" if study is None else read_text(study))
    with writing(folder, InvalidParameter):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "pyproject.toml", text.encode())
    return folder


def _written(method: str, cls: type[Method]) -> str:
    """Return the method's name, or its file with an absolute path, since the server starts in another folder."""
    if not is_code(method):
        return cls.name
    path, ending, name = method.rpartition(".py")
    return f"{Path(path).expanduser().resolve()}{ending}{name}" if ending else method


def _toml(value: Any) -> str:
    """Return a hyper-parameter in TOML; None becomes "none", read back by the parameter's type."""
    return (
        str(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else _quoted("none" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
    )


def _quoted(text: str) -> str:
    """Return a text in quotation marks, as TOML reads it; JSON's surrogate pairs, which TOML lacks, are avoided."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _carried(study: Path) -> str:
    """Return a study file as a TOML string: verbatim if that is valid, else escaped."""
    text = read_text(study)
    readable = "'''" not in text and all(c.isprintable() or c in "\t\n" for c in text)
    return f"'''\n{text}'''" if readable else _quoted(text)


def _project_name(folder: Path) -> str:
    """Return a name that Flower accepts.

    >>> _project_name(Path("My Study_2")), _project_name(Path("..."))
    ('my-study-2', 'app')
    """
    return slug(folder.resolve().name).strip("-") or "app"
