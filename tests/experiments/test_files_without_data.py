"""Experiment files without their data or weights can start: here on the pixels of made-up images."""

from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram.data.dataset import Dataset
from fedgram.data.published import catalog
from fedgram.experiments import read_file
from support.runner import records, run

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet-r": 200}
EACH = 6  # images of a class


def made_up(name: str, side: int) -> Dataset:
    """Return images of as many classes as the data set has, each around a pattern of its class."""
    classes, rng = CLASSES[name], np.random.default_rng(0)
    patterns = rng.integers(0, 200, (classes, side, side, 3))
    y, y_test = np.arange(EACH * classes) % classes, np.arange(classes)
    x, x_test = (np.uint8(patterns[of] + rng.integers(0, 50, (len(of), side, side, 3))) for of in (y, y_test))
    return Dataset(name, x, y, tuple(range(classes)), f"made-up-{name}", x_test=x_test, y_test=y_test)


@pytest.mark.parametrize(
    ("file", "backbone", "side"),
    [
        ("table-1-cifar100", "pixels", 5),
        ("table-1-imagenet-r", "pixels", 5),
        ("fedapa-table-1-cifar100", "images", 16),  # the smallest that LeNet-5 takes
        ("afl-table-4-hub", "pixels", 3),
    ],
)
def test_starts(file: str, backbone: str, side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method learns for a round, with ten clients and all classes, on one partition of each kind in the file."""
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path / "cache"))
    table = read_file(EXAMPLES / f"{file}.toml")
    data, classes = table["data"], CLASSES[table["data"]]
    entry = catalog.Entry(data, "made up", EACH * classes, classes, classes, make=lambda: made_up(data, side))
    monkeypatch.setitem(catalog.CATALOG, data, entry)
    methods = [
        method | ({"rounds": 1, "epochs": 1} if "rounds" in fg.registry[method["name"]]().settings() else {})
        for method in table["methods"]
    ]
    kinds = {spec.partition(":")[0]: spec for spec in np.atleast_1d(table["partitions"]).tolist()}
    small = {"clients": 10, "partitions": list(kinds.values()), "methods": methods, "backbone": backbone}
    outcome = run(tmp_path / "results.jsonl", **table | small)
    assert outcome.failed == {}
    found = {(record["label"], record["partition"]) for record in records(tmp_path / "results.jsonl")}
    assert found >= {(method["label"], spec) for method in methods for spec in kinds.values()}
