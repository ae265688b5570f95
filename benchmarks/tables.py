"""Reading a CSV of 20,000 rows and 100 columns, with and without pyarrow, against numpy's reader."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from benchmarks.measure import Results, cpu_seconds
from fedgram.data.files import open_path


def main() -> None:
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        rows = np.column_stack([rng.standard_normal((20_000, 100)), rng.integers(0, 3, 20_000)])
        np.savetxt(path, rows, fmt=["%.6f"] * 100 + ["%d"], delimiter=",", header=_header(), comments="")
        quick, plain, numpys = cpu_seconds(
            lambda: open_path(path),
            lambda: _without_pyarrow(path),
            lambda: np.loadtxt(path, delimiter=",", skiprows=1),
            repeats=3,
        )
    results = Results("A CSV of 20,000 rows and 100 columns, checked cell by cell")
    results.note("CPU seconds: with pyarrow, without, numpy.loadtxt", f"{quick:.2f}, {plain:.2f}, {numpys:.2f}")
    results.at_most("with pyarrow / numpy.loadtxt", quick / numpys, 1.0)
    results.at_most("without pyarrow / numpy.loadtxt", plain / numpys, 3.0)
    results.show()


def _header() -> str:
    return ",".join([*(f"f{i}" for i in range(100)), "y"])


def _without_pyarrow(path: Path) -> None:
    with patch.dict(sys.modules, {"pyarrow": None}):
        open_path(path)
