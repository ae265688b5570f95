"""Settings of all tests: one thread per process, Hypothesis' sizes, the order of long tests, and Ctrl-C."""

import os
import signal

from support.threads import VARIABLES

# As many test processes as processors run at once, so more threads only get in each other's way. This must be said
# before numpy and torch are imported; the processes that tests start hear it too.
for _variable in VARIABLES:
    os.environ.setdefault(_variable, "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from support import campaign  # noqa: E402

# Examples may wait for a busy processor: only their number counts.
settings.register_profile("fedgram", deadline=None, max_examples=campaign.size(campaign.USUAL))
settings.load_profile("fedgram")

# Groups of tests that take a minute or more, longest first. They start first, so that the end is not a long wait.
LONGEST = ("federation", "simulation", "browser", "simulation-command")


@pytest.hookimpl(trylast=True)  # folders form their groups before
def pytest_collection_modifyitems(config, items):
    """Let long groups come first; xdist hands tests out in this order."""
    if campaign.QUICK:
        items[:], left = campaign.one_case_each(items)
        config.hook.pytest_deselected(items=left)

    def place(item):
        mark = item.get_closest_marker("xdist_group")
        group = mark.args[0] if mark else ""
        return LONGEST.index(group) if group in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One worker more than there are processors: the one with Flower's processes mostly waits for them."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else None


if campaign.CORE_ONLY:
    from fedgram.core.errors import MissingExtra

    def _skip_without_extra(item):
        """Skip what needs an extra, where only the core is installed."""
        try:
            return (yield)
        except MissingExtra as error:
            pytest.skip(str(error))

    pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_skip_without_extra)
    pytest_runtest_call = pytest.hookimpl(wrapper=True)(_skip_without_extra)


@pytest.fixture
def interruptible():
    """Let processes that a test starts hear SIGINT, even if the suite runs in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def registered():
    """Let examples register methods and types of messages, and forget these afterwards."""
    from fedgram import registry
    from fedgram.core import wire

    before, messages = set(registry), dict(wire.registered)
    yield registry
    for name in set(registry) - before:
        registry._methods.pop(name)
    for name, kind in list(wire.registered.items()):
        if name not in messages and not kind.__module__.startswith("fedgram."):
            wire.registered.pop(name)


@pytest.fixture
def default_threads(monkeypatch):
    """Let BLAS have its default threads here; other tests have one thread."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with threadpool_limits(os.cpu_count(), user_api="blas"):
        yield


@pytest.fixture(scope="session")
def exports(tmp_path_factory):
    """One cache of exported models for all test processes: exporting takes seconds."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
