"""A process that extracts features, for tests that kill it, starve it or run two of it."""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from fedgram.core.errors import FedgramError
from fedgram.features import extract


class Rows:
    """Samples that exist only during the use of a slice; sample i is the number i."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, part: slice) -> np.ndarray:
        return np.arange(*part.indices(self.n))


class Logged:
    """A backbone with known features, which notes every batch in a file."""

    name, fingerprint, batch = "logged", "logged-1", 64

    def __init__(self, log: Path, dim: int = 16, pause: float = 0.0) -> None:
        self.log, self.dim, self.pause = log, dim, pause

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {batch[0]} {len(batch)}\n")
        time.sleep(self.pause)
        return expected(batch, self.dim)

    def batches(self) -> list[tuple[int, int, int]]:
        """(process, first sample, samples) of every batch so far."""
        return [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]


def expected(samples: np.ndarray, dim: int) -> np.ndarray:
    return np.sin(samples[:, None] * 0.01 + np.arange(dim)).astype(np.float32)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--quota", type=int, help="the largest file the system lets this process write, in bytes")
    options = parser.parse_args()
    if options.quota:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (options.quota, options.quota))
    backbone = Logged(options.log, options.dim, options.pause)
    try:
        extract(Rows(options.rows), backbone, data_fingerprint="rows", cache=options.cache)
    except FedgramError as error:
        print(error)
        return 2
    if sys.platform == "linux":
        # Not getrusage, which would count the parent's memory too.
        print(Path("/proc/self/status").read_text(encoding="ascii").split("VmHWM:")[1].split()[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
