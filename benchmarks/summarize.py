"""A party's `summarize`, from a table on the disk to a signed file, against reading the same table with pyarrow in
blocks and adding up with bare `dsyrk`.

Summarizing also checks every cell against its range, scales it, adds up by class and signs; the bare job does not.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from scipy.linalg import blas

from benchmarks.large_tables import bare, parquet_batches
from benchmarks.measure import Results, cpu_seconds
from fedgram.exchange.rounds.party_side import Party, summarize
from fedgram.secure.signing_keys import PrivateKey
from fedgram.studies import Study
from fedgram.studies.kinds import Number

ROWS, COLUMNS = 40_000, 512
NUMBERS = {f"n{k}": Number(range=(-8.0, 8.0)) for k in range(COLUMNS)}
STUDY = Study("wide", "outcome", NUMBERS, ("ill", "well"))


def write_tables(folder: Path) -> None:
    """Write the same table as CSV and as Parquet."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.standard_normal(ROWS).round(5) for name in NUMBERS}
    table = pa.table(columns | {"outcome": rng.choice(STUDY.classes, ROWS)})
    arrow_csv.write_csv(table, folder / "table.csv")
    pq.write_table(table, folder / "table.parquet")


def bare_csv(path: Path) -> Any:
    """Read a CSV file with pyarrow in blocks, with given types of columns, and add up."""
    types = dict.fromkeys(NUMBERS, pa.float64()) | {"outcome": pa.string()}
    return bare(
        arrow_csv.open_csv(path, convert_options=arrow_csv.ConvertOptions(column_types=types)), NUMBERS, COLUMNS
    )


def bare_parquet(path: Path) -> Any:
    """Read a Parquet file in blocks, and add up."""
    return bare(parquet_batches(path), NUMBERS, COLUMNS)


def only_syrk(x: Any) -> Any:
    """Add up a matrix that is already in memory."""
    return blas.dsyrk(1.0, x, trans=1)


def main() -> None:
    party, x = Party("north", PrivateKey.new()), np.asfortranarray(np.random.default_rng(0).random((ROWS, COLUMNS)))
    with TemporaryDirectory() as made:
        write_tables(Path(made))
        for kind, suffix, floor in (("CSV", "csv", bare_csv), ("Parquet", "parquet", bare_parquet)):
            path = Path(made) / f"table.{suffix}"
            jobs = [lambda p=path: summarize(STUDY, p, party), lambda p=path, f=floor: f(p), lambda: only_syrk(x)]
            ours, least, syrk = cpu_seconds(*jobs, repeats=5)
            results = Results(
                f"summarize: {ROWS:,} rows × {COLUMNS} columns, {path.stat().st_size / 1e6:.0f} MB of {kind}"
            )
            results.note("CPU seconds: summarize, pyarrow in blocks with dsyrk", f"{ours:.2f}, {least:.2f}")
            results.note("CPU seconds: dsyrk alone, of a matrix in memory", f"{syrk:.2f}")
            results.at_most("summarize / pyarrow in blocks with dsyrk", ours / least, 1.3)
            results.show()
