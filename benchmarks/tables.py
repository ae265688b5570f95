"""Reading a CSV of 20,000 rows and 100 columns, with and without pyarrow, against numpy's reader; and the cost of one
bad cell in a wide file.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from benchmarks.measure import Results, cpu_seconds
from fedgram.data.own.files import open_path


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
    _wide(rng)


def _wide(rng: np.random.Generator) -> None:
    """Compare a clean file of 2,000 columns with the same one after one cell has been spoilt."""
    with TemporaryDirectory() as folder:
        clean = Path(folder) / "clean.csv"
        rows = np.column_stack([rng.standard_normal((2_000, 2_000)), rng.integers(0, 3, 2_000)])
        np.savetxt(clean, rows, fmt=["%.6f"] * 2_000 + ["%d"], delimiter=",", header=_header(2_000), comments="")
        lines = clean.read_text().split("\n")
        spoilt = {}
        for what, cell in {"an empty cell": "", "a text": "unknown"}.items():
            cells = lines[1_500].split(",")
            cells[700] = cell
            spoilt[what] = Path(folder) / f"{len(spoilt)}.csv"
            spoilt[what].write_text("\n".join([*lines[:1_500], ",".join(cells), *lines[1_501:]]))
        jobs = [lambda path=path: _skipping(path) for path in (clean, *spoilt.values())]
        whole, *rest = cpu_seconds(*jobs, repeats=3)
        plain, *plain_rest = cpu_seconds(*(lambda job=job: _without(job) for job in jobs), repeats=1)
    results = Results("A CSV of 2,000 rows and 2,000 columns with one bad cell")
    results.note("CPU seconds of the clean file: with pyarrow, without", f"{whole:.2f}, {plain:.2f}")
    for what, seconds, slow in zip(spoilt, rest, plain_rest, strict=True):
        results.at_most(f"{what} / clean, with pyarrow", seconds / whole, 3.0 if what == "a text" else 2.0)
        results.at_most(f"{what} / clean, without pyarrow", slow / plain, 2.0)
    results.show()


def _header(columns: int = 100) -> str:
    return ",".join([*(f"f{i}" for i in range(columns)), "y"])


def _skipping(path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        open_path(path, on_bad="skip")


def _without(job: Callable[[], None]) -> None:
    with patch.dict(sys.modules, {"pyarrow": None}):
        job()


def _without_pyarrow(path: Path) -> None:
    _without(lambda: _skipping(path))
