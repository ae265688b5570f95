"""Progress bars on stderr, for anything that can take more than two seconds.

`show` is True, False, or None for "if a person is watching" (stderr is a terminal).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")
PATIENCE = 1.0  # seconds before a bar comes up that hardly anybody would see otherwise


class Part(Protocol):
    """A part of something that is read bit by bit."""

    @property
    def share(self) -> float:
        """How much of the whole has been read with it, up to 1."""
        ...


P = TypeVar("P", bound=Part)


@contextmanager
def byte_bar(text: str, total: int | None, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Show how many bytes are there; call what is given with the number that was added."""
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with bars(columns, show) as bar:
        task = bar.add_task(text, total=total)
        yield lambda added: bar.advance(task, added)


@contextmanager
def spinner(text: str, show: bool | None = None) -> Iterator[None]:
    """Show that something of unknown length goes on; it vanishes at the end."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with bars((SpinnerColumn(), TimeElapsedColumn()), show, transient=True) as bar:
        bar.add_task(text, total=None)
        yield


@contextmanager
def count_bar(
    text: str, total: int | None, show: bool | None = None, *, done: int = 0, transient: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show how many of something are done, and how many a second; call what is given with the number that was added.

    `total` is None where nobody knows how many there will be.
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
    """Pass the items on and show how many have gone by."""
    with count_bar(text, total, show) as advance:
        for item in items:
            yield item
            advance(1)


def with_bar(parts: Iterable[P], text: str, show: bool | None = None) -> Iterator[P]:
    """Pass the parts on and show how much of the whole has gone by, if it takes longer than a moment."""
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

    Every bar that fedgram shows is made here.
    """
    from rich.progress import Progress, TextColumn

    from fedgram.core import terminal

    text = TextColumn("{task.description}", markup=False)
    console = console or terminal.console(stderr=True)
    visible = console.is_terminal if show is None else show
    transient = transient and console.is_terminal
    return Progress(*before, text, *columns, console=console, disable=not visible, transient=transient)
