"""Shared fixtures of Flower's tests; every test in this folder is marked `flower`."""

from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flower)


@pytest.fixture
def node(tmp_path):
    """A node with 60 patients."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 2)
    return {"name": "a", "data": str(tmp_path / "a.npz"), "folder": str(tmp_path / "a")}
