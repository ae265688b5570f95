"""Progress bars on stderr, for anything that can take more than two seconds.

`show` is True, False, or None for "if stderr is a terminal".
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")
PATIENCE = 1.0  # seconds before a bar appears; shorter work shows none


class Part(Protocol):
    """A part of a whole that is read part by part."""

    @property
    def share(self) -> float:
        """The share of the whole that has been read with this part, up to 1."""


P = TypeVar("P", bound=Part)


@contextmanager
def byte_bar(text: str, total: int | None, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Show the number of bytes so far; yields a function to call with each number of bytes added."""
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with bars(columns, show) as bar:
        task = bar.add_task(text, total=total)
        yield lambda added: bar.advance(task, added)


@contextmanager
def spinner(text: str, show: bool | None = None) -> Iterator[None]:
    """Show that work of unknown length goes on; the line vanishes at the end."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with bars((SpinnerColumn(), TimeElapsedColumn()), show, transient=True) as bar:
        bar.add_task(text, total=None)
        yield


@contextmanager
def count_bar(
    text: str, total: int | None, show: bool | None = None, *, done: int = 0, transient: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a count and its speed; yields a function to call with each number added.

    `total` is None if it is not known.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[speed]}")
    with bars((BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn()), show, transient=transient) as bar:
        task = bar.add_task(text, total=total, completed=done, speed="")

        def advance(added: int) -> None:
            bar.advance(task, added)
            if (speed := bar.tasks[0].speed) is not None:
                bar.update(task, speed=f"{speed:,.0f}/s")

        yield advance


def counted(items: Iterable[T], text: str, total: int, show: bool | None = None) -> Iterator[T]:
    """Yield the items and show their count."""
    with count_bar(text, total, show) as advance:
        for item in items:
            yield item
            advance(1)


def with_bar(parts: Iterable[P], text: str, show: bool | None = None) -> Iterator[P]:
    """Yield the parts and show the share of the whole, if it takes longer than a moment."""
    started = time.monotonic()
    with ExitStack() as stack:
        bar = None
        for part in parts:
            if bar is None and time.monotonic() - started > PATIENCE:
                from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

                columns = BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
                bar = stack.enter_context(bars(columns, show, transient=True))
                task = bar.add_task(text, total=1.0)
            if bar is not None:
                bar.update(task, completed=part.share)
            yield part


def bars(
    columns: "Iterable[ProgressColumn]",
    show: bool | None = None,
    *,
    before: "Iterable[ProgressColumn]" = (),
    transient: bool = False,
    console: "Console | None" = None,
) -> "Progress":
    """Return progress bars with these columns behind their texts, or `before` them; `transient` ones vanish at the end.

    Every bar that fedgram shows is made here. A text that comes last is cut where the line ends; the columns before it
    keep their width.
    """
    from rich.progress import Progress, TextColumn
    from rich.table import Column

    from fedgram.core import terminal

    columns = tuple(columns)
    text = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
    )
    console = console or terminal.console(stderr=True)
    visible = console.is_terminal if show is None else show
    transient = transient and console.is_terminal
    options: dict[str, Any] = {"console": console, "disable": not visible, "transient": transient}
    return Progress(*before, text, *columns, expand=not columns, **options)


class Lines:
    """Progress in a log, where no bar is drawn: at most a line a minute, so that long work is seen to go on."""

    EVERY = 60.0

    def __init__(self, console: "Console") -> None:
        self._console, self._last = console, time.monotonic()

    def tell(self, text: str) -> None:
        """Print the text, unless this is a terminal or the last line is less than a minute old."""
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= self.EVERY:
            self._last = now
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
