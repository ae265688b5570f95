"""Helpers for tests of experiments: methods to run, a small comparison, and its records."""

import json

from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.experiments import Experiment, execute, runs_of
from support.gradual import Fragile, Gradual, Modelless, Nobody, Stopped, Telling

SMALL = ["--data", "digits", "--clients", "4", "--partition", "iid", "--methods", "afl,local"]


def add_methods(monkeypatch):
    for cls in (Gradual, Fragile, Modelless, Stopped, Telling):
        monkeypatch.setitem(fg.registry._methods, cls.name, cls)


def run(path, watcher=None, done=None, **keys):
    experiment = Experiment.of({"data": "digits", "clients": 4, "partitions": "iid", "methods": ["afl"], **keys})
    return execute(list(runs_of(experiment)), path, watcher=watcher or Nobody(), done=done)


def records(path, kind="run"):
    return [json.loads(line) for line in path.read_text().splitlines() if json.loads(line)["kind"] == kind]


def compare(*options):
    return CliRunner().invoke(app, ["compare", *options])
