"""The cache folder, and a lock on a part of it that dies with its process."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import platformdirs
from rich.console import Console

from fedgram.errors import FedgramError

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class CacheFailed(FedgramError):
    """The cache cannot be written: says where, why, and what to do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write `path` (disk full, no permission) into one line with a remedy."""
    try:
        yield
    except OSError as error:
        raise CacheFailed(
            f"cannot write {path}: {error.strerror or error}; make room, or set FEDGRAM_CACHE to another "
            "folder (what is finished stays and will be used)"
        ) from error


def cache_folder(root: Path | str | None, part: str) -> Path:
    """Return (and make) a part of the cache, under `root`, $FEDGRAM_CACHE or the user's cache folder."""
    base = root or os.environ.get("FEDGRAM_CACHE") or platformdirs.user_cache_dir("fedgram", appauthor=False)
    folder = Path(base) / part
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def status(message: str) -> Iterator[None]:
    """Show a message on the terminal's error stream for as long as the work takes."""
    with Console(stderr=True).status(message):
        yield


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it, and say so after two seconds.

    The system releases the lock when its holder ends, however it ends. The empty file stays: removing it
    would let a third process lock a file that a second one still waits for.
    """
    with writing(path):
        file = path.open("ab")
    with file:
        started, told = time.monotonic(), False
        while True:
            try:
                _try_lock(file)
                break
            except OSError:
                if not told and time.monotonic() - started > 2:
                    Console(stderr=True).print(
                        f"another process is at work on {what}; waiting for it", highlight=False
                    )
                    told = True
                time.sleep(0.05)
        yield
