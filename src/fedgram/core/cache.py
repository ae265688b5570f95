"""The cache: one folder on disk for data that are fetched or computed once.

```
downloads/NAME/   archives as they came; a user places files by hand here, too
data/v1/NAME/     the same data as arrays that can be memory-mapped (see `data.published.cached_arrays`)
models/           backbones exported to ONNX (see `features.backbones.torchmodel`)
features/         features of data sets (see `features.extraction`)
queue/            runs of `make results-queue`, and the states of those that were interrupted
locks/, tmp/      locks of what is being made, and unfinished work
```
Work happens in `tmp` under a lock and is moved into place by one rename, so a file or folder with its
final name is whole. Locks belong to the operating system: a killed process does not leave one behind.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from platformdirs import user_cache_dir

from fedgram.core.errors import CacheError
from fedgram.core.filesystem import locked, replace_file, writing
from fedgram.core.progress_bars import spinner

_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_REMEDY = "make room, or set FEDGRAM_CACHE to another folder (what is finished stays and will be used)"
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


def cache_dir() -> Path:
    """Return the cache folder: `$FEDGRAM_CACHE` if set, else the platform's usual place."""
    chosen = os.environ.get("FEDGRAM_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path(user_cache_dir("fedgram", appauthor=False))


def offline(*others: str) -> str | None:
    """Return the name of the environment variable that says that there is no network, None if none is set.

    It is `FEDGRAM_OFFLINE`, or one of `others`.
    """
    return next((name for name in ("FEDGRAM_OFFLINE", *others) if os.environ.get(name, "") not in ("", "0")), None)


def cache_folder(root: Path | str | None, part: str) -> Path:
    """Return (and make) a part of the cache folder, or of another one given as `root`."""
    folder = (cache_dir() if root is None else Path(root)) / part
    with writing_cache(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def writing_cache(path: Path) -> AbstractContextManager[None]:
    """Turn an `OSError` about writing `path` (disk full, no permission) into one line with a remedy."""
    return writing(path, CacheError, remedy=_REMEDY)


def cache_lock(path: Path, what: str, show: bool | None = None) -> AbstractContextManager[None]:
    """Hold the lock file `path`; wait while another process holds it, and say so."""
    waiting = f"waiting for another process that works on {what}"
    return locked(path, lambda: spinner(waiting, show), CacheError, remedy=_REMEDY)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a small file of the cache, whole or not at all."""
    with _explained():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


@contextmanager
def workshop(name: str, show: bool | None = None) -> Iterator[Path]:
    """Lock `name` among all processes and yield an empty folder to work in, which is removed at the end.

    Files that a killed predecessor left there are removed first.
    """
    with _explained(), cache_lock(cache_dir() / "locks" / f"{name}.lock", name, show):
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
def _explained() -> Iterator[None]:
    """Turn an `OSError` about the cache folder (full, not writable) into an error with a remedy."""
    folder = cache_dir()
    try:
        yield
    except OSError as error:
        inside = error.filename is not None and str(error.filename).startswith(str(folder))
        if error.errno in _NO_ROOM or (error.errno in _NOT_ALLOWED and inside):
            where = error.filename if inside else folder
            raise CacheError(f"cannot write {where}: {error.strerror or error}; {_REMEDY}") from error
        raise
