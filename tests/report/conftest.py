"""Results on disk, and a browser to look at their page."""

import pytest

from support.browser import browser
from support.made_up import write
from support.report import SMALL


def pytest_collection_modifyitems(items):
    """Mark and group the tests that need a browser: one browser serves all."""
    for item in items:
        if "chrome" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def chrome(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "results.jsonl", SMALL)
