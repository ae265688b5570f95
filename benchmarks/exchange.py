"""`join` of many parties at 1,280 columns, against the work that every store needs: reading and hashing the same bytes,
one semidefinite check and one synced write each; and fixed point. `PARTIES=1000` joins 1,000 parties, once. With few
parties the imports of the first joins would be most of the time.

Of 41 ms of CPU a file, 25 are that bare work. Ten more go into the sum in fixed point, without which a removal would
not be exact to the bit, and the rest into ledger, index and marks: that is why the bound is 1.8 and not 1.5.
"""

import hashlib
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measure import Results, cpu_and_wall_seconds, cpu_seconds, peak_bytes
from fedgram import Moments
from fedgram.core import wire
from fedgram.core.fixed_point import Fixed
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store

PARTIES = int(os.environ.get("PARTIES", "100"))
D, CLASSES, SAMPLES = 1280, 10, 2_000


def write_summaries(folder: Path, count: int) -> list[Path]:
    """Write this number of summaries: the same samples in other units, which are quick to make and as slow to check."""
    rng = np.random.default_rng(0)
    first = Moments.of(rng.standard_normal((SAMPLES, D)), rng.integers(0, CLASSES, SAMPLES), classes=CLASSES)
    sums, paths = first.cross.T, []
    for k in range(count):
        unit = 1 + k / count
        moments = Moments(first.schema, sums=sums * unit, counts=first.counts.copy(), packed=first.packed * unit**2)
        paths.append(folder / f"party-{k:04d}.fgm")
        paths[-1].write_bytes(fgm.encode("summary", moments, study="", party=f"party-{k:04d}", samples=SAMPLES))
    return paths


def join(paths: list[Path]) -> list[float]:
    """Join all, and return the CPU time after each."""
    ticks = [time.process_time()]
    with TemporaryDirectory(dir=paths[0].parent) as folder, Store(folder) as store:
        found = store.join(*paths, progress=lambda _: ticks.append(time.process_time()))
        assert all(each.outcome == "joined" for each in found)
    return ticks


def bare(paths: list[Path]) -> None:
    """Read, hash, check, and write."""
    with TemporaryDirectory(dir=paths[0].parent) as folder:
        for path in paths:
            data = path.read_bytes()
            hashlib.sha256(data).hexdigest()
            wire.decode(data, sealed=False)["payload"].check()
            with open(Path(folder) / path.name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())


def main() -> None:
    ticks: list[float] = []
    with TemporaryDirectory() as made:
        paths = write_summaries(Path(made), PARTIES)
        jobs = [lambda: ticks.extend(join(paths)), lambda: bare(paths)]
        (ours, slow), (floor, quick) = cpu_and_wall_seconds(*jobs, repeats=2 if PARTIES <= 100 else 1)
        few, many = (peak_bytes(lambda part=part: join(part)) for part in (paths[:4], paths))
        size = paths[0].stat().st_size
    results = Results(f"join of {PARTIES:,} parties, {D:,} columns, {size / 1e6:.1f} MB each")
    each, part = 1000 / PARTIES, PARTIES // 4
    results.note("CPU milliseconds a party: join, bare", f"{ours * each:.0f}, {floor * each:.0f}")
    results.note("milliseconds by the clock: join, bare", f"{slow * each:.0f}, {quick * each:.0f}")
    results.at_most("join / reading, hashing, checking, writing", ours / floor, 1.8)
    # The store grows, but the cost of a join must not.
    first, last = ticks[part] - ticks[0], ticks[PARTIES] - ticks[PARTIES - part]
    results.at_most("the last quarter of the joins / the first", last / first, 1.3)
    results.note("peak megabytes with 4 and all parties", f"{few / 1e6:.0f}, {many / 1e6:.0f}")
    results.at_most("memory with all / with 4", many / few, 1.1)
    results.show()
    one_at_a_time(max(PARTIES, 200))
    _fixed_point()


def one_at_a_time(count: int) -> None:
    """Join this number of small files, each by a store that is opened for it alone, as commands do."""
    rng, ticks = np.random.default_rng(0), [time.process_time()]
    with TemporaryDirectory() as folder:
        for k in range(count):
            moments = Moments.of(rng.standard_normal((6, 4)), np.arange(6) % 2, classes=2)
            data = fgm.encode("summary", moments, study="", party=f"party-{k:04d}", samples=6)
            with Store(folder) as store:
                assert [each.outcome for each in store.join(data)] == ["joined"]
            ticks.append(time.process_time())
    part = count // 10
    first, last = ticks[part] - ticks[0], ticks[-1] - ticks[-1 - part]
    results = Results(f"{count:,} small files, one at a time")
    results.note(
        "CPU milliseconds a file: the first tenth, the last", f"{first * 1e3 / part:.1f}, {last * 1e3 / part:.1f}"
    )
    results.at_most("the last tenth / the first", last / first, 1.3)
    results.show()


def _fixed_point() -> None:
    x = np.random.default_rng(0).standard_normal(D * (D + 1) // 2)
    fixed = Fixed.of(x)
    jobs = [lambda: Fixed.of(x), lambda: fixed + fixed, lambda: fixed.plus({"": x}), fixed.floats, lambda: x + x]
    *ours, floats = cpu_seconds(*jobs, repeats=7)
    results = Results(f"{len(x):,} numbers in fixed point")
    said = ", ".join(f"{seconds * 1e3:.1f}" for seconds in ours)
    results.note("CPU milliseconds: to fixed point, adding, both at once, to float64", said)
    results.note("adding as many float64", f"{floats * 1e3:.1f}")
    results.show()
