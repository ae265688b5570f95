"""One comparison at a time writes to a folder: two would do every run twice. Reading needs no lock."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fedgram.core.cache import replace_file
from fedgram.core.errors import FedgramError, InvalidParameter

# The lock is the operating system's, so a killed process leaves none. Who has it stands in a file of its own, because
# on some systems nobody else can read a file that is locked.
LOCK, HOLDER = ".lock", ".holder"


class FolderInUse(FedgramError):
    """Another comparison is writing to the folder."""


@contextmanager
def only_writer(folder: Path, *, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the folder's lock; if another process has it, say so by an error, or by calling `wait` and then waiting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            busy = f"another comparison is writing to {folder} ({_holder(folder)})"
            if wait is None:
                raise FolderInUse(f"{busy}: wait for it with --wait, or write to another folder with --out") from None
            wait(busy)
            lock.acquire(poll_interval=0.1)
    except OSError as error:
        raise InvalidParameter(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        with suppress(OSError):
            begun = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            replace_file(folder / HOLDER, f"process {os.getpid()} on {socket.gethostname()} since {begun}".encode())
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        return (folder / HOLDER).read_bytes()[:200].decode(errors="replace") or "it is not known which"
    except OSError:
        return "it is not known which"
