"""One process at a time writes to a folder: two comparisons would do every run twice. Reading needs no lock."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

from fedgram.core.errors import FolderInUse, InvalidParameter
from fedgram.core.files import locked, read_regular, replace_file

# Who has the lock stands in a file of its own, because on some systems nobody else can read a file that is locked.
LOCK, HOLDER = ".lock", ".holder"


@contextmanager
def only_writer(
    folder: Path,
    *,
    wait: Callable[[str], None] | None = None,
    who: str = "comparison",
    remedy: str = "wait for it with --wait, or write to another folder with --out",
) -> Iterator[None]:
    """Hold the folder's lock; if another process has it, say so by an error, or by calling `wait` and then waiting."""

    def waiting() -> AbstractContextManager[None]:
        busy = f"another {who} is writing to {folder} ({_holder(folder)})"
        if wait is None:
            raise FolderInUse(f"{busy}: {remedy}")
        wait(busy)
        return nullcontext()

    with locked(folder / LOCK, waiting, InvalidParameter):
        try:
            with suppress(OSError):
                begun = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
                about = f"process {os.getpid()} on {socket.gethostname()} since {begun}"
                replace_file(folder / HOLDER, about.encode())
            yield
        finally:
            with suppress(OSError):
                (folder / HOLDER).unlink(missing_ok=True)


def _holder(folder: Path) -> str:
    try:
        return read_regular(folder / HOLDER, most=1 << 12)[:200].decode(errors="replace") or "it is not known which"
    except OSError:
        return "it is not known which"
