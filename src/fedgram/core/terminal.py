"""Printing on terminals. Names and labels come from other parties' files: control characters are shown as text.

An escape sequence in a client's name could otherwise recolour, erase or forge what a terminal shows.
"""

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.control import Control
from rich.markup import escape
from rich.segment import ControlType, Segment

# Control characters, marks that change the direction of writing, and lone surrogates, which cannot be printed.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BUT_LINES = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_HALVES = re.compile("[\ud800-\udfff]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text with its control characters written out; with `lines`, tabs and ends of lines stay.

    >>> print(visible("ward\x1b[2J\n7"))
    ward\x1b[2J\n7
    """
    return (_BUT_LINES if lines else _CONTROLS).sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def one_line(error: object) -> str:
    """Return a message of any origin as one line for Rich, neither with control characters nor with markup."""
    return escape(visible(" ".join(str(error).splitlines())))


def human_size(count: float) -> str:
    """Return a number of bytes with three significant digits and its unit.

    >>> human_size(512), human_size(20_480), human_size(3_500_000)
    ('512 B', '20.5 kB', '3.50 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if unit == "B" or count >= 10 else f"{count:.2f} {unit}"


class _Plain(Console):
    """A console that writes control characters out as text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, lines=True))


def console(**options: Any) -> Console:
    """Return a Rich console for text that comes from other parties."""
    return _Plain(**options)


def fresh_line(shown: Console) -> None:
    """Clear a progress bar from the terminal's present line before other output; it is drawn again below."""
    shown.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


def echo(text: object, *, end: str = "\n", err: bool = False) -> None:
    """Print a text: on a terminal with control characters written out, to a file or a pipe unchanged.

    Text on stderr is always treated as on a terminal. Lone surrogates have no encoding and are written out everywhere.
    """
    watched = err or sys.stdout.isatty()
    shown = visible(str(text), lines=True) if watched else _HALVES.sub(_written_out, str(text))
    # color=True, because typer otherwise removes some sequences from the output to a pipe.
    typer.echo(shown + end, nl=False, err=err, color=True)


class _Unbroken(io.FileIO):
    """A stream that may lose its reader, such as `head`: later output is dropped, and work goes on.

    Any other failure, such as a full disk, is raised once.
    """

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
            return len(data)


def unbroken(stream: TextIO) -> TextIO:
    """Return a standard stream that survives a closed pipe, and escapes characters that its encoding lacks."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    raw = io.BufferedWriter(_Unbroken(stream.fileno(), "w", closefd=False))
    watched = stream.line_buffering
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors="backslashreplace", line_buffering=watched)
