"""A cache of its own for every test."""

import pytest


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"
