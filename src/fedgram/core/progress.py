"""Progress bars on stderr, for anything that can take more than two seconds.

`show` is True, False, or None for "if a person is watching" (stderr is a terminal).
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")


@contextmanager
def byte_bar(text: str, total: int | None, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Show how many bytes are there; call what is given with the number that was added."""
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with _bars(columns, show) as bars:
        task = bars.add_task(text, total=total)
        yield lambda added: bars.advance(task, added)


@contextmanager
def spinner(text: str, show: bool | None = None) -> Iterator[None]:
    """Show that something of unknown length goes on."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with _bars((SpinnerColumn(), TimeElapsedColumn()), show) as bars:
        bars.add_task(text, total=None)
        yield


def counted(items: Iterable[T], text: str, total: int, show: bool | None = None) -> Iterator[T]:
    """Pass the items on and show how many have gone by."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    with _bars((BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()), show) as bars:
        task = bars.add_task(text, total=total)
        for item in items:
            yield item
            bars.advance(task)


def _bars(columns: "Iterable[ProgressColumn]", show: bool | None) -> "Progress":
    from rich.progress import Progress, TextColumn

    from fedgram.core import terminal

    visible = sys.stderr.isatty() if show is None else show
    text = TextColumn("{task.description}", markup=False)
    return Progress(text, *columns, console=terminal.console(stderr=True), disable=not visible)
