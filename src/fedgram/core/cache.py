"""The one folder on disk for what is fetched or computed once.

```
downloads/NAME/   archives as they came; files a user places by hand go here too
data/v1/NAME/     the same data as arrays that can be memory-mapped (see `data.store`)
models/           backbones exported to ONNX (see `features.backbones.export`)
features/         features of data sets (see `features.store`)
locks/, tmp/      who is working on what, and work that is not finished
```
Work happens in `tmp` under a lock and is moved into place by one rename, so whatever has its final name is
whole. Locks belong to the operating system: a killed process leaves none behind.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from fedgram.core.errors import FedgramError
from fedgram.core.progress import spinner

_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


class CacheError(FedgramError):
    """The cache folder cannot be used: full, or not writable."""


class WrongChecksum(FedgramError):
    """A file is not the one that was published."""


def cache_dir() -> Path:
    """Return the cache folder: `$FEDGRAM_CACHE` if set, else the platform's usual place."""
    chosen = os.environ.get("FEDGRAM_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path(user_cache_dir("fedgram", appauthor=False))


def offline(*others: str) -> str | None:
    """Return the variable by which the user said that there is no network, None if nobody did.

    That is `FEDGRAM_OFFLINE=1`, or one of `others`.
    """
    return next((name for name in ("FEDGRAM_OFFLINE", *others) if os.environ.get(name, "") not in ("", "0")), None)


def cache_folder(root: Path | str | None, part: str) -> Path:
    """Return (and make) a part of the cache folder, or of another one given as `root`."""
    folder = (cache_dir() if root is None else Path(root)) / part
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write `path` (disk full, no permission) into one line with a remedy."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cannot write {path}: {error.strerror or error}; make room, or set FEDGRAM_CACHE to another folder "
            "(what is finished stays and will be used)"
        ) from error


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file as `algorithm:hex`."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def verify(path: Path, expected: str) -> None:
    """Raise `WrongChecksum` unless the file has the expected checksum, given as `algorithm:hex`."""
    found = checksum(path, expected.partition(":")[0])
    if found != expected:
        raise WrongChecksum(f"{path.name} has checksum {found}, expected {expected}")


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    if not path.name:  # "", "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    made = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(made, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a small file of the cache, whole or not at all."""
    with _explained():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


@contextmanager
def workshop(name: str, show: bool | None = None) -> Iterator[Path]:
    """Lock `name` among all processes and give an empty folder to work in, removed at the end.

    What a killed predecessor left there is removed first.
    """
    with _explained(), locked(cache_dir() / "locks" / f"{name}.lock", name, show):
        benches = cache_dir() / "tmp" / name
        shutil.rmtree(benches, ignore_errors=True)
        benches.mkdir(parents=True, exist_ok=True)
        # A new name each time: a child of a killed predecessor may still be writing under the old one.
        bench = Path(tempfile.mkdtemp(dir=benches))
        try:
            yield bench
        finally:
            shutil.rmtree(benches, ignore_errors=True)


def move_into_place(made: Path, final: Path) -> None:
    """Give a finished file or folder its final name, replacing what was there. Hold the lock of its name."""
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.is_dir():
        shutil.rmtree(final)
    os.replace(made, final)


@contextmanager
def locked(path: Path, what: str, show: bool | None = None) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it, and say so.

    The file stays: removing it would let a third process lock a file that a second one still waits for.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    with writing(path):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            with spinner(f"waiting for another process that works on {what}", show):
                lock.acquire(poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do about a cache folder that is full or not writable."""
    folder = cache_dir()
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise CacheError(
                f"no room left in the cache folder {folder} ({error.strerror}): free some, or set FEDGRAM_CACHE "
                "to a folder on a larger disk"
            ) from error
        inside = error.filename is not None and str(error.filename).startswith(str(folder))
        if error.errno in _NOT_ALLOWED and inside:
            raise CacheError(
                f"cannot write to {error.filename} ({error.strerror}): set FEDGRAM_CACHE to a folder of yours"
            ) from error
        raise
