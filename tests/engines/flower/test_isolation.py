"""Processes that we start with Flower are quiet, and earlier settings are restored afterwards."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from fedgram.core.errors import InvalidParameter
from fedgram.engines.flower.isolation import QUIET, be_quiet, quiet


@pytest.fixture
def ray(monkeypatch):
    """Ray was imported before fedgram."""
    module = ModuleType("ray._private.ray_constants")
    module.ENABLE_RAY_CLUSTER = True
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_quiet_inside_and_as_before_outside(ray, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("PYTHONPATH", "mine")
    before = dict(os.environ)
    with quiet():
        assert os.environ.items() >= QUIET.items()
        assert ray.ENABLE_RAY_CLUSTER is False
        os.environ["PYTHONPATH"] = "Flower's"
    assert dict(os.environ) == before
    assert ray.ENABLE_RAY_CLUSTER is True


def test_a_switch_that_is_gone_is_an_error(ray, monkeypatch):
    for name in QUIET:
        monkeypatch.setenv(name, QUIET[name])
    del ray.ENABLE_RAY_CLUSTER
    with pytest.raises(InvalidParameter, match="has no ray._private.ray_constants.ENABLE_RAY_CLUSTER"):
        be_quiet()


def test_the_switches_are_those_that_flower_and_ray_have():
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    code = (
        "import flwr.supercore.telemetry as telemetry, ray._private.ray_constants as constants\n"
        "from fedgram.engines.flower.isolation import quiet\n"
        "print(telemetry.FLWR_TELEMETRY_ENABLED, constants.ENABLE_RAY_CLUSTER)\n"
        "with quiet():\n"
        "    print(telemetry.FLWR_TELEMETRY_ENABLED, constants.ENABLE_RAY_CLUSTER)\n"
    )
    loud = {name: value for name, value in os.environ.items() if name not in QUIET}
    loud["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"
    done = subprocess.run([sys.executable, "-c", code], env=loud, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", "0", "False"]
