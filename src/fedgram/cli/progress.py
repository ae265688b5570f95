"""A progress bar on the terminal, for whatever takes longer than a moment."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

from fedgram.core.progress import bars
from fedgram.protocol.transport import Progress as Report


@contextmanager
def progress_bar(label: str) -> Iterator[Report]:
    """Show what a method is at, and how many clients have replied; on standard error, and it vanishes at the end.

    It is there from the first. Where all have replied it is the server that computes, which is said, too.
    """
    with bars((BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()), transient=True) as bar:
        task = bar.add_task(f"{label} · starting", total=None)

        def report(step: str, round: int, done: int, total: int) -> None:
            which = f"round {round + 1} · " if round else ""
            what = f"{step} done, the server computes" if done == total else step
            bar.update(task, description=f"{label} · {which}{what}", completed=done, total=total, refresh=done == total)

        yield report
