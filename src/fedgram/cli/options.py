"""Options of `fedgram run` and `fedgram compare`, each defined once, and the progress that both show."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.filesystem import only_writer
from fedgram.core.progress_bars import Lines, bars
from fedgram.core.terminal import one_line
from fedgram.experiments import Run, Scenario, finished
from fedgram.experiments.journal import heal
from fedgram.experiments.results import Column, Result
from fedgram.experiments.runner import Finished
from fedgram.experiments.scenario import kinds_of_settings, stable_key
from fedgram.protocol.method import Engine, Require, engines
from fedgram.protocol.parameters import read_require
from fedgram.protocol.transport import Progress as Report

PARTITIONS = (
    "dirichlet:ALPHA, shards:PER_CLIENT, pathological:CLASSES (or pathological:CLASSES:unbalanced), iid, by_group. "
    "Default: the data's own groups, or else dirichlet:0.1."
)
# The --help texts of the scenario's settings, by name.
SETTINGS = {
    "data": "A data set by name (see [b]fedgram data list[/]), or a path: a folder of images per class, an .npz, CSV "
    "or Parquet file, or several tables with commas, one a party (with --study).",
    "backbone": "What turns samples into features: lite0:96, FILE.onnx, hub:NAME, minilm, pixels, …",
    "samples": "Use only so many of the samples.",
    "label_column": "The column of your table to be predicted.",
    "client_column": "The column that names each sample's client.",
    "study": "The study that says what a table's columns are. Default: drafted, where a table is not all numbers.",
    "columns": "The only columns of your table to use, with commas.",
    "drop": "Columns of your table not to use, with commas.",
    "test_data": "A table with test samples, or several with commas, one a party.",
    "decimal": "The decimal mark of your table's numbers: . (default) or a comma.",
    "thousands": "The mark between thousands in your table's numbers: none (default), a point, comma or blank, or '.",
    "on_bad": "What to do with bad images or rows of yours: refuse (default) or skip.",
    "shift": "Give each client's images a change of its own: camera:STRENGTH or rotation:DEGREES.",
    "test": "local: each client holds back some of its own (default); standard: the data set's own test set; "
    "held-out: samples that no client gets.",
    "test_fraction": "Share of the samples held back. Default: 0.2.",
    "min_size": "Least number of samples of a client in a dirichlet partition, test samples included: 50 leaves ten to "
    "test on. Default: none.",
}
RUNNING = {
    "require": (str, "Clients that must take part: all (default), a number, or a fraction."),
    "engine": (str, "What carries the messages: inprocess (default), or flower-sim (Flower's simulation)."),
    "workers": (
        int,
        "Clients side by side: threads of the in-process engine (default: as many as pay off), processes of flower-sim "
        "(default: one per processor). The result is the same.",
    ),
    "wait": (bool, "Wait for another program that writes to the folder of --out; else stop at once."),
}
FLAGS = {"label_column": ("--outcome", "--label")}  # where the option has other names


@dataclass(frozen=True)
class Running:
    """The options for performing runs: engine, share of clients required, and waiting for the results folder."""

    engine: Engine
    require: Require | None
    wait: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Running":
        """Return the options in `given`; raise for wrong values."""
        name, workers, require = given["engine"] or "inprocess", given["workers"], given["require"]
        if name not in engines:
            raise UnknownName("engine", name, engines)
        if workers is not None and workers < 1:
            raise InvalidParameter(f"workers must be at least 1, got {workers}")
        engine = engines[name]() if workers is None else engines[name](workers=workers)
        return cls(engine, None if require is None else read_require(require), bool(given["wait"]))

    @contextmanager
    def sole_writer(self, folder: Path, console: Console) -> Iterator[None]:
        """Lock the folder against other writers; if it is locked already, wait or raise."""

        def told(busy: str) -> None:
            console.print(f"waiting: {one_line(busy)}")

        with only_writer(folder, wait=told if self.wait else None):
            yield


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options above, between its positional and its keyword-only parameters.

    The original command gets them as `settings`, a dict of the settings that were given, and `running`.
    """
    own = list(inspect.signature(command).parameters.values())
    kinds = kinds_of_settings()
    about = {name: (kinds[name], text) for name, text in SETTINGS.items()} | RUNNING
    common = [_parameter(name, kind, text) for name, (kind, text) in about.items()]
    first = [one for one in own if one.kind is one.POSITIONAL_OR_KEYWORD]
    last = [one for one in own if one.kind is one.KEYWORD_ONLY and one.name not in ("settings", "running")]

    def called(**options: Any) -> None:
        running = Running.of({name: options.pop(name) for name in RUNNING})
        own = {name: value for name, value in options.items() if name not in SETTINGS}
        command(**own, settings=given_settings(options), running=running)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature([*first, *common, *last])  # type: ignore[attr-defined]
    return called


def _parameter(name: str, kind: type, text: str) -> inspect.Parameter:
    flags = FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    annotation = Annotated[kind | None, typer.Option(*flags, help=text)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scenario's settings among the options of a command."""
    return {name: options[name] for name in SETTINGS if options[name] is not None}


def split_settings(texts: list[str]) -> dict[str, str]:
    """Return the values of `--set NAME=VALUE` by name."""
    for text in texts:
        if "=" not in text:
            raise InvalidParameter(f"--set takes NAME=VALUE, got {text!r}")
    settings = dict(text.split("=", 1) for text in texts)
    if len(settings) < len(texts):
        raise InvalidParameter(f"--set names a parameter twice: {' '.join(texts)}")
    return settings


def already_in(path: Path, console: Console) -> Finished:
    """Return the runs in a results file, mended if its last line is half-written; warn of damaged lines."""
    if not path.exists():
        return Finished()
    if healed := heal(path):
        console.print(f"[yellow]warning:[/] {one_line(healed)}")
    done, damaged = finished(path)
    for damage in damaged:
        console.print(f"[yellow]warning:[/] {one_line(damage)}; left out")
    return done


@contextmanager
def watching(runs: Sequence[Run], done: frozenset[str], console: Console) -> Iterator["Watching"]:
    """Show the progress of unfinished runs: a bar that vanishes at the end, or in a log a line for each run."""
    left = [run for run in runs if run.key not in done]
    if done:
        console.print(f"{len(runs) - len(left)} of {len(runs)} runs are finished already")
    before = BarColumn(12), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}")
    with bars((), before=before, transient=True, console=console) as bar:
        yield Watching(bar, bar.add_task("", total=len(runs), completed=len(runs) - len(left), left=""), left)


class Watching:
    """A progress bar for the events of the runner; where standard error is not a terminal, lines."""

    def __init__(self, bar: Progress, task: TaskID, left: Sequence[Run]) -> None:
        self._bar, self._task, self._left = bar, task, list(left)
        self._pace, self._log = Pace(), Lines(bar.console)

    def prepares(self, scenario: Scenario) -> None:
        """Stop the bar while data are loaded and features extracted, which have bars of their own."""
        self._bar.stop()

    def starts(self, run: Run) -> None:
        """Show the method that begins."""
        self._bar.start()
        self._bar.update(self._task, description=f"{run.label} · {run.scenario.describe()}")

    def steps(self, run: Run, step: str, round: int, done: int, total: int) -> None:
        """Show the round and the clients."""
        rounds = run.settings.get("rounds")
        which = f"round {round + 1}{f' of {rounds}' if rounds else ''} · " if rounds or round else ""
        text = f"{which}{run.label} · {step} {done}/{total} · {run.scenario.describe()}"
        self._bar.update(self._task, description=text)
        self._log.tell(one_line(text))

    def ends(self, run: Run, record: dict[str, Any]) -> None:
        """Count the run and estimate the time left from runs of the same method, or of all if it had none yet."""
        self._left = [other for other in self._left if other is not run]
        self._pace.add(run, record["total_seconds"])
        left = sum(self._pace.of(other, self._pace.mean) for other in self._left)
        shown = f"about {duration(left)} left" if self._left else ""
        self._bar.update(self._task, advance=1, left=shown)
        if not self._bar.console.is_terminal:
            task = self._bar.tasks[0]
            took = f"{record['status']} after {duration(record['total_seconds'])}"
            line = f"{task.completed:g} of {task.total:g}: {run.label} · {run.scenario.describe()}: {took}"
            self._bar.console.print(one_line(", ".join(filter(None, (line, shown)))))


class Pace:
    """The seconds of finished runs, from which those of others are estimated."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Hashable, ...], list[float]] = defaultdict(list)
        self._known: dict[str, tuple[tuple[Hashable, ...], ...]] = {}  # by run: thousands may be left at each end

    def add(self, run: Run | Result, seconds: float) -> None:
        """Note the seconds of a run."""
        for key in self._likeness(run):
            self._seconds[key].append(seconds)

    def of(self, run: Run, unknown: float = nan) -> float:
        """Return the mean of the same method and setting with other seeds, else in other settings, else `unknown`."""
        *alike, _ = self._likeness(run)
        return next((fmean(self._seconds[key]) for key in alike if key in self._seconds), unknown)

    @property
    def mean(self) -> float:
        """The mean of all."""
        return fmean(self._seconds[()])

    def _likeness(self, run: Run | Result) -> tuple[tuple[Hashable, ...], ...]:
        """Return what a run has in common with others, from much to nothing."""
        if run.key not in self._known:
            if isinstance(run, Result):
                name, column = run.method, run.column
            else:
                name, column = run.name, Column.of(asdict(run.scenario))
            method = stable_key({"method": name, "settings": dict(run.settings)})
            self._known[run.key] = (method, column), (method,), ()
        return self._known[run.key]


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(42), duration(100), duration(7300)
    ('42 s', '2 min', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress_bar(label: str) -> Iterator[Report]:
    """Show a method's step and the number of replies on standard error; the bar vanishes at the end.

    It is visible from the start. After the last reply its text says that the server computes.
    """
    with bars((BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()), transient=True) as bar:
        task, log = bar.add_task(f"{label} · starting", total=None), Lines(bar.console)

        def report(step: str, round: int, done: int, total: int) -> None:
            which = f"round {round + 1} · " if round else ""
            what = f"{step} done, the server computes" if done == total else step
            text = f"{label} · {which}{what}"
            bar.update(task, description=text, completed=done, total=total, refresh=done == total)
            log.tell(one_line(f"{text} {done}/{total}"))

        yield report
