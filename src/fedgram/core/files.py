"""Files that are written whole or not at all, locks that a killed process does not leave behind, and plain words for a
system that refuses to write.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from fedgram.core.errors import FedgramError, InvalidData

PRIVATE = 0o600  # the mode of files that are for their owner alone


def private_folder(path: Path) -> None:
    """Make a folder, unless it exists, that only its owner may look into, for any umask."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def private(name: str, flags: int) -> int:
    """Open a file that is for its owner alone: an `opener` of Python's `open`."""
    return os.open(name, flags, PRIVATE)


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


def open_regular(path: str | os.PathLike[str], *, most: int | None = None) -> BinaryIO:
    """Return a regular file, open for reading: for every file that comes from elsewhere.

    Raises an `OSError` whose `strerror` is for users. A folder, pipe, socket or device is refused before it is opened:
    reading one may wait or go on without end. `most` is the number of bytes that the file may have.
    """
    check_regular(path, most=most)
    # Another process may exchange the file between the two calls: a pipe that takes its place is not waited for.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check(os.fstat(handle), path, most)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], *, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; refusals are those of `open_regular`."""
    with open_regular(path, most=most) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)  # not `most`: Python asks for that much memory at once
    if len(content) != size:
        raise _refused(errno.EIO, path, f"{size:,} bytes were expected, got {len(content):,}: it is being written to")
    return content


def check_regular(path: str | os.PathLike[str], *, most: int | None = None) -> None:
    """Raise the refusal of `open_regular` without opening the file: for files that a library opens by their names."""
    _check(os.stat(path), path, most)


def _check(found: os.stat_result, path: str | os.PathLike[str], most: int | None) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise _refused(errno.EISDIR, path, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise _refused(errno.EINVAL, path, "expected a regular file, got a pipe, socket or device")
    if most is not None and found.st_size > most:
        raise _refused(errno.EFBIG, path, f"expected at most {most:,} bytes, got {found.st_size:,}")


def _refused(number: int, path: str | os.PathLike[str], why: str) -> OSError:
    return OSError(number, why, os.fspath(path))


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
