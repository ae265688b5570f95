"""Every test has an empty cache without network; real data come from the shared cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.data import Server, Start, archive_of, first_of_mnist, offline_cache, processes, serving


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return offline_cache(tmp_path, monkeypatch)


@pytest.fixture
def start() -> Iterator[Start]:
    with processes() as starter:
        yield starter


@pytest.fixture(scope="session")
def mnist_archive() -> Path:
    return archive_of("mnist")


@pytest.fixture(scope="session")
def idx_files() -> dict[str, bytes]:
    return first_of_mnist()


@pytest.fixture
def server(idx_files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The files' home on the loopback, with permission to use it."""
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with serving(idx_files) as home:
        yield home
