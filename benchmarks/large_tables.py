"""Tables larger than memory: a study's moments, predictions, a node's answers, and fits.

Moments and predictions are compared with bare pyarrow and BLAS. A node answers hello, sends its moments, receives a
model and evaluates it, and reads the table twice for each of these; a fit personalizes and evaluates in several passes.

`python -m benchmarks.large_tables --rows 5_000_000` has the size that the guide promises: 2.4 GB of CSV in the
temporary folder, and some minutes. Each job has a process of its own, because its memory is part of the result.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from scipy.linalg import blas
from typer.testing import CliRunner

from benchmarks.measure import Results
from fedgram.cli import app
from fedgram.core import wire
from fedgram.heads.least_squares import least_squares
from fedgram.models import LinearModel
from fedgram.protocol.registry import registry
from fedgram.studies import Study, summarize
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Number

LEVELS, MEGABYTES = ("high", "low", "middle", "none"), 600
# Our predictions are also scored and written, a line for each row; the bare job does not do that.
RATIOS = {"moments": 1.5, "predict": 2.1}
NUMBERS = {
    f"n{k}": Number(range=(100 * k - 250, 100 * k + 250), outside="clip", missing="mean" if k < 5 else "refuse")
    for k in range(40)
}
TEXTS = {f"c{k}": Category(LEVELS) for k in range(5)} | {f"f{k}": Flag() for k in range(4)}
STUDY = Study("large", "outcome", NUMBERS | TEXTS, ("ill", "well"))
COLUMNS = [*NUMBERS, *TEXTS, "outcome"]


def write_tables(folder: Path, rows: int) -> None:
    """Write the same table as CSV and as Parquet; five of the forty numbers are missing now and then."""
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64() if name in NUMBERS else pa.string()) for name in COLUMNS])
    with (
        arrow_csv.CSVWriter(
            folder / "table.csv", schema, write_options=arrow_csv.WriteOptions(quoting_style="needed")
        ) as as_csv,
        pq.ParquetWriter(folder / "table.parquet", schema) as as_parquet,
    ):
        for start in range(0, rows, 100_000):
            n = min(100_000, rows - start)
            columns = [
                pa.array(rng.normal(100 * k, 30, n).round(5), mask=rng.random(n) < (0.02 if k < 5 else 0.0))
                for k in range(len(NUMBERS))
            ]
            columns += [pa.array(rng.choice(LEVELS if name[0] == "c" else ("no", "yes"), n)) for name in TEXTS]
            columns += [pa.array(rng.choice(STUDY.classes, n))]
            part = pa.table(columns, schema=schema)
            as_csv.write(part)
            as_parquet.write_table(part)


def bare(batches: Iterable[Any], numbers: Iterable[str], width: int) -> Any:
    """Return XᵀX of this number of columns, as a study sends it; cells that are not numbers are read, too."""
    gram, space = np.zeros((width, width), order="F"), np.zeros(0)
    for batch in batches:
        if space.size < batch.num_rows * width:
            space = np.zeros(batch.num_rows * width)
        x = space[: batch.num_rows * width].reshape(width, -1).T
        for place, name in enumerate(numbers):
            x[:, place] = batch.column(name).to_numpy(zero_copy_only=False)
        gram = blas.dsyrk(1.0, x, beta=1.0, c=gram, trans=1, overwrite_c=1)
    return gram


def bare_csv(path: Path) -> Any:
    """Read a CSV file with pyarrow in blocks, with given types of columns."""
    types = {name: pa.float64() if name in NUMBERS else pa.string() for name in COLUMNS}
    batches = arrow_csv.open_csv(path, convert_options=arrow_csv.ConvertOptions(column_types=types))
    return bare(batches, NUMBERS, len(STUDY.sent))


def bare_parquet(path: Path) -> Any:
    """Read a Parquet file and add up."""
    return bare(parquet_batches(path), NUMBERS, len(STUDY.sent))


def parquet_batches(path: Path) -> Iterator[Any]:
    """Read a Parquet file row group by row group."""
    with pq.ParquetFile(path) as file:
        for place in range(file.num_row_groups):
            yield from file.read_row_group(place).to_batches()


def predict(path: Path, model: str = "model", *options: str) -> None:
    """Predict every row by a model, into a file."""
    arguments = ["predict", str(path.with_name(model)), str(path), "--out", str(path) + ".out", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def predict_by_numbers(path: Path) -> None:
    """Predict every row by a model that has no study, of the columns that are never missing."""
    columns = tuple(name for name, column in NUMBERS.items() if column.missing == "refuse")
    model = LinearModel(np.ones((len(columns), 2)), STUDY.classes, columns=columns)
    path.with_name("numbers").write_bytes(wire.encode(model))
    predict(path, "numbers", "--label", "outcome", "--probabilities")


def study_file() -> str:
    """Return the parties' study."""
    lines = ["[study]", f"name = {STUDY.name!r}", f"outcome = {STUDY.outcome!r}", f"classes = {list(STUDY.classes)}"]
    for name, column in STUDY.columns.items():
        lines += [f"[columns.{name}]", f"kind = {column.kind!r}"]
        lines += [f"{key} = {value!r}" for key, value in STUDY.plain(name).items()]
    return "\n".join(lines)


def node(path: Path) -> None:
    """Let a Flower node with this table answer: hello, its moments, and the evaluation of a model on rows held back."""
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fedgram.engines.flower import app as flower
    from fedgram.engines.flower import flower_messages

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a process of Flower's
    study = path.with_name("study.toml")
    study.write_text(study_file())
    config = {"name": "party", "data": str(path), "study": str(study), "folder": str(path.with_name("node"))}
    run = {"method": "afl", "study-fingerprint": STUDY.fingerprint}
    context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config=run)

    def ask(step: str, payload: Any = None) -> Any:
        request = {"round": 0, "seed": 0, "step": step, "classes": STUDY.classes, "payload": payload}
        message = Message(flower_messages.letter(wire.encode(request)), 1, flower_messages.STEP)
        message.metadata.__dict__.update(_message_id=step, _run_id=1)
        reply = flower.client(message, context)
        assert not reply.has_error(), reply.error.reason
        return wire.decode(flower_messages.body(reply))

    ask("hello")
    ask("receive", least_squares(ask("summarize"), 1.0, intercept=True))
    assert ask("evaluate")["samples"].sum() > 0


def fit(path: Path, method: str) -> None:
    """Fit a method with one party, in this process; the rows to train on also test."""
    client = read_client(STUDY, "party", path)
    client = replace(client, x_test=client.x, y_test=client.y)
    assert registry[method]().fit([client], study=STUDY, classes=STUDY.classes).evaluation


JOBS: dict[str, Callable[[Path], Any]] = {
    "bare csv": bare_csv,
    "bare parquet": bare_parquet,
    "moments": lambda path: summarize(STUDY, "party", path),
    "predict": predict,
    "predict without a study": predict_by_numbers,
    "node": node,
    "fit afl": lambda path: fit(path, "afl"),
    f"fit {STUDY.method}": lambda path: fit(path, STUDY.method),
}


def measured(job: str, path: Path) -> tuple[float, float]:
    """Return CPU seconds and peak megabytes of a job in a process of its own, imports aside and included."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.large_tables", "--job", job, str(path)],
        capture_output=True,
        check=True,
        text=True,
    )
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # Linux's other figure counts the parent's memory at the start of this process.
    return float(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def compare(rows: int, repeats: int = 3) -> None:
    """Print the ratios and the memory for a table of so many rows."""
    with TemporaryDirectory() as folder:
        write_tables(Path(folder), rows)
        for suffix in ("csv", "parquet"):
            path = Path(folder) / f"table.{suffix}"
            model = least_squares(summarize(STUDY, "party", path), 1.0, intercept=True)
            path.with_name("model").write_bytes(wire.encode(STUDY.model(model)))
            best: dict[str, tuple[float, float]] = {}
            for _ in range(repeats):
                for job in (f"bare {suffix}", "moments", "predict"):
                    best[job] = min(best.get(job, (np.inf, np.inf)), measured(job, path))
            best |= {job: measured(job, path) for job in JOBS if job not in RATIOS and not job.startswith("bare")}
            size = f"{path.stat().st_size / 1e9:.2f} GB of {'CSV' if suffix == 'csv' else 'Parquet'}"
            _show(f"{rows:,} rows × {len(COLUMNS)} columns, {size}", best.pop(f"bare {suffix}"), best)


def _show(title: str, bare: tuple[float, float], ours: dict[str, tuple[float, float]]) -> None:
    results = Results(title)
    results.note("CPU seconds and MB of pyarrow in blocks with dsyrk", f"{bare[0]:.2f}, {bare[1]:.0f}")
    for job, (seconds, megabytes) in ours.items():
        results.note(f"CPU seconds: {job}", f"{seconds:.2f}")
        if job in RATIOS:
            results.at_most(f"{job} / pyarrow in blocks with dsyrk", seconds / bare[0], RATIOS[job])
        results.at_most(f"peak MB: {job}", megabytes, MEGABYTES)
    results.show()


def main() -> None:
    compare(500_000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is None:
        compare(given.rows, given.repeats)
    else:
        started = time.process_time()
        JOBS[given.job[0]](Path(given.job[1]))
        seconds = time.process_time() - started
        print(json.dumps([seconds, peak_megabytes()]))
