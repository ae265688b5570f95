"""Files written whole or not at all, locks that end with their process, and readable errors for failed writes."""

import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from fedgram.core.errors import FedgramError, FolderInUse, InvalidData, InvalidParameter
from fedgram.core.hashing import hash_text

PRIVATE = 0o600  # the mode of files that are for their owner alone
# The holder of a lock stands in a file of its own, because some systems do not let others read a locked file.
LOCK, HOLDER = ".lock", ".holder"


# Characters that would lead out of a folder or that some systems refuse (on Windows CON.key is the console, and a point
# or a blank at the end is lost), and the percent sign itself, so that names can be read back.
_UNSAFE = re.compile(
    r'[%/\\:*?"<>|\x00-\x1f\x7f]|^\.|[. ]$|^(?=(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)).', re.ASCII | re.IGNORECASE
)
MOST_NAME = 180  # bytes; systems take 255, and endings follow


def file_name(text: str) -> str:
    """Return a file name that is safe on every system, with dangerous characters as percent signs and their codes.

    Different texts have different names, and `urllib.parse.unquote` gives the text back, unless it is very long.

    >>> file_name("north"), file_name("ward 3"), file_name("../étage 2"), file_name(".."), file_name("Con")
    ('north', 'ward 3', '%2E.%2Fétage 2', '%2E%2E', '%43on')
    """
    name = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)
    if len(encoded := name.encode()) <= MOST_NAME:
        return name
    return f"{encoded[: MOST_NAME - 17].decode(errors='ignore')}-{hash_text(text)[:16]}"


def slug(text: str) -> str:
    """Return the lower-case letters and digits of a text with hyphens for the rest, for names that are never read back.

    >>> slug("accuracy against MB (mean)")
    'accuracy-against-mb-mean-'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


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
    """Turn an `OSError` about writing `path` (disk full, no permission) into a one-line error of this kind.

    `told` is the text that another party may see.
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
    """Yield a file to write to, in parts; a reader of `path` sees the old content or all of the new, never a part.

    A pipe or a device is refused: the new file would take its place, for all programs of the machine.
    """
    if not path.name:  # "", "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with suppress(FileNotFoundError):
        check_regular(path)
    made = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(made, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def sweep_unfinished(path: Path) -> None:
    """Remove temporary files that killed processes left beside `path`; no process may be writing `path` now."""
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}")
    for found in path.parent.iterdir():
        if left.fullmatch(found.name):
            found.unlink(missing_ok=True)


def stamp(path: Path) -> tuple[int, int]:
    """Return a file's size and time of writing, which change with its content."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    with replacing(path, mode=mode) as file:
        file.write(content)


def new_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that must not exist yet; if writing fails, no file is left."""
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

    `kind`, `remedy` and `told` are for `writing`, if the lock file cannot be made.
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


@contextmanager
def only_writer(
    folder: Path,
    *,
    wait: Callable[[str], None] | None = None,
    who: str = "comparison",
    remedy: str = "wait for it with --wait, or write to another folder with --out",
) -> Iterator[None]:
    """Hold the folder's lock, so that one process at a time writes to it; reading needs no lock.

    If another process has the lock, raise `FolderInUse`, or call `wait` with a message and then wait for the lock.
    """

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
