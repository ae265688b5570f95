"""A progress bar on the terminal, for whatever takes longer than a moment."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedgram.core import terminal
from fedgram.protocol.transport import Progress as Report


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Show how many clients have replied; goes to standard error and vanishes at the end."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(step: str, round: int, done: int, total: int) -> None:
            which = f"round {round + 1} · " if round else ""
            bar.update(task, description=which + step, completed=done, total=total)

        yield report
