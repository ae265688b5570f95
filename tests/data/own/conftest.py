"""Every test has a cache of its own; the photographs come from the shared one; tables with and without pyarrow."""

import sys
from pathlib import Path

import pytest

from support.data import Bytes, private_cache, some_photos


@pytest.fixture(scope="session")
def photos() -> Bytes:
    return some_photos()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return private_cache(tmp_path, monkeypatch)


@pytest.fixture(params=["with pyarrow", "without pyarrow"])
def arrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "without pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    return bool(request.param == "with pyarrow")
