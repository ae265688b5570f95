"""What one sees of a comparison: what is there already, runs done, the method and its round, the time left."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedgram.core.progress import bars
from fedgram.core.terminal import one_line
from fedgram.experiments import Run, Scenario, finished
from fedgram.experiments.journal import heal
from fedgram.experiments.runner import Finished


def already_in(path: Path, console: Console) -> Finished:
    """Return what a results file holds, mended if its last line is half-written; say what of it cannot be used."""
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
    """Show the progress of the runs that are not done; it vanishes at the end."""
    left = [run for run in runs if run.key not in done]
    if done:
        console.print(f"{len(runs) - len(left)} of {len(runs)} runs are finished already")
    before, after = (BarColumn(24), MofNCompleteColumn()), (TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    with bars(after, before=before, transient=True, console=console) as bar:
        yield Watching(bar, bar.add_task("", total=len(runs), completed=len(runs) - len(left), left=""), left)


class Watching:
    """A progress bar that hears what the runner does."""

    def __init__(self, bar: Progress, task: TaskID, left: Sequence[Run]) -> None:
        self._bar, self._task, self._left = bar, task, list(left)
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def prepares(self, scenario: Scenario) -> None:
        """Make way for the progress of loading and extracting."""
        self._bar.stop()

    def starts(self, run: Run) -> None:
        """Show the method that begins."""
        self._bar.start()
        self._bar.update(self._task, description=f"{run.label} · {run.scenario.describe()}")

    def steps(self, run: Run, step: str, round: int, done: int, total: int) -> None:
        """Show the round and the clients."""
        rounds = run.settings.get("rounds")
        which = f" · round {round + 1}{f' of {rounds}' if rounds else ''}" if rounds or round else ""
        text = f"{run.label} · {run.scenario.describe()}{which} · {step} {done}/{total}"
        self._bar.update(self._task, description=text)

    def ends(self, run: Run, record: dict[str, Any]) -> None:
        """Count the run and estimate the time left from runs of the same method, or of any if there was none yet."""
        self._left = [other for other in self._left if other is not run]
        self._seconds[run.label].append(record["total_seconds"])
        overall = fmean(value for values in self._seconds.values() for value in values)
        left = sum(fmean(self._seconds.get(other.label, [overall])) for other in self._left)
        self._bar.update(self._task, advance=1, left=f"about {_duration(left)} left" if self._left else "")


def _duration(seconds: float) -> str:
    """Write a time as one would say it.

    >>> _duration(42), _duration(100), _duration(7300)
    ('42 s', '2 min', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
