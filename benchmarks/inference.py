"""Regression tables of 200 columns from a store of 100 parties, against the work that every table needs: reading the
store's total, one Cholesky factor and one inverse of that size. `PARTIES=1000` is a larger store.

Tables with site effects read each party's file once, so reading all files is measured, too. Memory must not grow with
the number of parties.
"""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.linalg import lapack

from benchmarks.measure import Results, cpu_seconds, peak_bytes
from fedgram.exchange.format import fgm
from fedgram.exchange.store.combined import part_of
from fedgram.exchange.store.study_store import Store
from fedgram.inference.linear import LeastSquares, Sums
from fedgram.studies import Study, summarize
from fedgram.studies.kinds import Number

PARTIES = int(os.environ.get("PARTIES", "100"))
COLUMNS, ROWS = 200, 650
NAMES = [f"x{place}" for place in range(COLUMNS)]
STUDY = Study("wide", "y", {name: Number(range=(-8.0, 8.0)) for name in NAMES} | {"y": Number(range=(-900.0, 900.0))})


class Table(dict[str, Any]):
    """A table in memory."""

    columns = property(list)

    def __len__(self) -> int:
        """Return the number of rows."""
        return ROWS


def make_store(folder: Path, parties: int) -> Path:
    """Join this number of parties, each with an intercept and rows of its own."""
    rng = np.random.default_rng(0)
    with Store(folder) as store:
        for k in range(parties):
            x = rng.standard_normal((ROWS, COLUMNS)).clip(-8, 8)
            y = x.sum(axis=1) + rng.standard_normal() + 10 * rng.standard_normal(ROWS)
            moments = summarize(STUDY, f"party-{k:04d}", Table(dict(zip(NAMES, x.T, strict=True)) | {"y": y}))
            about: dict[str, Any] = {"party": f"party-{k:04d}", "samples": ROWS, "columns": moments.schema.columns}
            data = fgm.encode("summary", moments, study=STUDY, **about)
            [each] = store.join(data)
            assert each.outcome == "joined", each
    return folder


def bare(folder: Path) -> Any:
    """Read the parties' names and rows and the total, factor it and invert it."""
    with Store(folder) as store:
        store.index.leaves()
        gram = store.total().moments().gram
    triangle, _ = lapack.dpotrf(np.asfortranarray(gram), lower=1)
    return lapack.dpotri(triangle, lower=1)


def read_all(folder: Path) -> None:
    """Read the file of each party, and do what `bare` does."""
    with Store(folder) as store:
        for each in store.contributions():
            part_of(store.objects.read(each.digest))
    bare(folder)


def table(folder: Path, **options: Any) -> Callable[[], Any]:
    """Return a job that makes a table of a store."""

    def job() -> None:
        with Store(folder) as store:
            store.coefficients(**options)

    return job


def in_memory() -> None:
    """Print the cost of a table of sums in memory."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((10 * COLUMNS, COLUMNS + 1))
    sums = Sums.of(rows, [*NAMES, "y"])
    gram = np.asfortranarray(sums.scatter[:-1, :-1])
    column_of = {name: name for name in NAMES}

    def floor() -> None:
        lapack.dpotri(lapack.dpotrf(gram, lower=1)[0], lower=1)

    ours, least = cpu_seconds(lambda: LeastSquares(sums).table(column_of), floor, repeats=15)
    results = Results(f"A regression table of {COLUMNS} columns, from sums in memory")
    results.note("CPU milliseconds: table, one Cholesky and one inverse", f"{ours * 1e3:.1f}, {least * 1e3:.1f}")
    results.show()


def main() -> None:
    in_memory()
    with TemporaryDirectory() as made:
        store, small = (make_store(Path(made) / f"store-{n}", n) for n in (PARTIES, PARTIES // 10))
        kinds = {
            "least squares": {},
            "fixed effects": {"site_effects": "fixed"},
            "random effects": {"site_effects": "random"},
            "robust errors": {"robust": True},
            "differences between sites": {"heterogeneity": True},
        }
        jobs = [lambda: bare(store), lambda: read_all(store), *(table(store, **options) for options in kinds.values())]
        floor, reading, *found = cpu_seconds(*jobs, repeats=5)
        results = Results(f"Regression tables of {COLUMNS} columns and {PARTIES:,} parties, CPU time")
        said = ", ".join(f"{seconds * 1e3:.0f}" for seconds in (floor, reading))
        results.note("milliseconds: total, Cholesky, inverse; the same and all files", said)
        for what, seconds in zip(kinds, found, strict=True):
            results.note(f"milliseconds: {what}", f"{seconds * 1e3:.0f}")
        by_kind = dict(zip(kinds, found, strict=True))
        results.at_most("least squares / total, Cholesky, inverse", by_kind["least squares"] / floor, 1.5)
        results.at_most("random effects / the same and all files", by_kind["random effects"] / reading, 2)
        few, many = (peak_bytes(table(each, site_effects="random")) for each in (small, store))
        results.note(f"peak megabytes with {PARTIES // 10} and {PARTIES} parties", f"{few / 1e6:.1f}, {many / 1e6:.1f}")
        results.at_most("memory with all / with a tenth", many / few, 1.1)
        results.show()
