"""Very many small parties in a tree of sums, through the code of real files: each is encoded, read with every check,
and added to its region's sum; regions go up as combined files. `PARTIES=100000` sets the number.
"""

import os
import time

import numpy as np

from benchmarks.measure import Results, peak_bytes
from fedgram import Moments
from fedgram.exchange.format import fgm
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.store.combined import Combined, leaves_of, part_of
from fedgram.exchange.store.index import Leaf

PARTIES, REGION = int(os.environ.get("PARTIES", "2000")), 100
D, CLASSES, SAMPLES = 16, 2, 40


def main() -> None:
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((5_000, D)), rng.integers(0, CLASSES, 5_000)
    started = time.process_time()
    total = country(*pool, PARTIES)
    seconds = time.process_time() - started
    few, many = (peak_bytes(lambda count=count: country(*pool, count)) for count in (2 * REGION, 4 * REGION))
    results = Results(f"{PARTIES:,} parties of {SAMPLES} samples in {D} columns, regions of {REGION}")
    results.note("samples in all", f"{total.n:,}")
    results.note("CPU milliseconds a party, both sides", f"{seconds / PARTIES * 1e3:.2f}")
    results.note("peak kilobytes with two and with four regions", f"{few / 1e3:,.0f}, {many / 1e3:,.0f}")
    results.at_most("memory with four regions / with two", many / few, 1.2)
    results.show()


def country(x: np.ndarray, y: np.ndarray, parties: int) -> Sum:
    """Return the sum of all regions."""
    total: Sum | None = None
    for first in range(0, parties, REGION):
        held = fgm.read(region(x, y, first, min(first + REGION, parties)))
        part = held.payload.total
        total = part if total is None else total + part
    assert total is not None
    return total


def region(x: np.ndarray, y: np.ndarray, first: int, last: int) -> bytes:
    """Return the combined file of some parties."""
    total: Sum | None = None
    leaves: list[Leaf] = []
    for number in range(first, last):
        rows = np.random.default_rng(number).integers(0, len(x), SAMPLES)
        moments = Moments.of(x[rows], y[rows], classes=CLASSES)
        file = fgm.read(fgm.encode("summary", moments, study="", party=f"party-{number}", samples=SAMPLES))
        total = (Sum.empty(moments.schema) if total is None else total).plus(part_of(file))
        leaves += leaves_of(file)
    assert total is not None
    return fgm.encode("combined", Combined(total, leaves), study="", party=f"region-{first}", samples=total.n)


if __name__ == "__main__":
    main()
