"""What a run costs in memory, as far as the system tells."""

import sys
from pathlib import Path

_LINUX = Path("/proc/self")


def reset_peak_memory() -> None:
    """Start counting anew, where the system can (Linux)."""
    try:
        (_LINUX / "clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int | None:
    """Return the most bytes this process has held in memory: since the reset on Linux, since its start elsewhere."""
    try:
        for line in (_LINUX / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
