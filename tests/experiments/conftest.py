"""Methods that are there for a test only."""

import pytest

from support.runner import add_methods


@pytest.fixture
def made_up_methods(monkeypatch):
    add_methods(monkeypatch)
