"""Files that are written whole or not at all, locks that a killed process does not leave behind, and plain words for a
system that refuses to write.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from fedgram.core.errors import FedgramError, InvalidData


@contextmanager
def writing(
    path: Path, kind: type[FedgramError] = InvalidData, *, remedy: str = "", told: str | None = None
) -> Iterator[None]:
    """Turn the system's refusal to write `path` (disk full, no permission) into one line, an error of this kind.

    `told` is what another party may know of it.
    """
    try:
        yield
    except OSError as error:
        refused = kind(f"cannot write {path}: {error.strerror or error}{remedy and f'; {remedy}'}")
        raise (refused if told is None else refused.telling(told)) from error


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file to write to, in parts; a reader of `path` sees the old content or all of the new, never a part."""
    if not path.name:  # "", "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    made = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(made, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def sweep_unfinished(path: Path) -> None:
    """Remove what killed processes have left of `path`, written in part or whole; nobody may be writing it now."""
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}")
    for found in path.parent.iterdir():
        if left.fullmatch(found.name):
            found.unlink(missing_ok=True)


def stamp(path: Path) -> tuple[int, int]:
    """Return what changes when somebody writes a file: its size, and when it was written."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    with replacing(path, mode=mode) as file:
        file.write(content)


def new_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that must not exist yet, not even since a moment ago; if it cannot be written, there is none."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # what is written once and kept should survive a power cut
        except BaseException:  # Ctrl-C included
            path.unlink(missing_ok=True)
            raise


@contextmanager
def locked(
    path: Path,
    waiting: Callable[[], AbstractContextManager[object]],
    kind: type[FedgramError] = InvalidData,
    *,
    remedy: str = "",
    told: str | None = None,
) -> Iterator[None]:
    """Hold the lock file `path`; while another process holds it, wait inside `waiting()`, which may also raise.

    `kind`, `remedy` and `told` are for `writing`, if there can be no such file.
    The lock is the operating system's, so a killed process leaves none. The file stays: removing it would let a third
    process lock a file that a second one still waits for.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    with writing(path, kind, remedy=remedy, told=told):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            with waiting():
                lock.acquire(poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()
