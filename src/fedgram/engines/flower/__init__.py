"""Flower carries the messages: between machines, or simulated ones on Ray. Needs the extra `flower`.

`grid` is the server's way to the nodes, `node` the one adapter that performs any method's steps there, `app` what a
deployment runs, `simulation` the engine `flower-sim`. Importing this package imports nothing of Flower.
"""

import os

# Flower and Ray read these when they are imported. Nothing that we start reports home, looks for updates or installs
# packages, and a simulation does not listen to other machines.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own switch for "this machine only", meant for desktops: all its servers listen on loopback then.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Without this, a Ray worker that needs no GPU warns that a future version will hide GPUs from it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
os.environ.update(QUIET)
