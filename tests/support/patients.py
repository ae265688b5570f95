"""A study of two parties, and tables of made-up patients for it."""

import tomllib

import numpy as np

from fedgram.studies import Study

TEXT = """\
[study]
name = "stroke"
outcome = "diagnosis"
classes = ["ill", "well"]
parties = ["north", "south"]
method = "fedgram"
minimum_samples = 12
minimum_cell = 3
minimum_group = 0

[columns.patient_id]
kind = "ignore"
[columns.age]
kind = "number"
unit = "years"
range = [0, 120]
missing = "mean"
[columns.sex]
kind = "category"
values = ["F", "M"]
"""
STUDY = Study.parse(TEXT)
RUN = {"study": TEXT, "study-fingerprint": STUDY.fingerprint, "method": "fedgram"}


def rows(n, seed, *, ill=0.5):
    """Return the cells of a table, by column."""
    rng = np.random.default_rng(seed)
    sick = np.arange(n) < ill * n
    age = np.where(rng.random(n) < 0.1, "NA", rng.integers(20, 60, n) + 20 * sick)
    cells = {"patient_id": [f"W{1000 + k}" for k in range(n)], "age": age, "sex": rng.choice(["F", "M"], n)}
    return cells | {"diagnosis": np.where(sick, "ill", "well")}


def write_table(path, cells, columns=None):
    names = columns or list(cells)
    lines = [",".join(names), *(",".join(row) for row in zip(*(cells[name] for name in names), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def config_of(folder):
    """Return the configuration of an app as Flower gives it: nested names with dots."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    return config | {f"settings.{name}": value for name, value in config.pop("settings").items()}
