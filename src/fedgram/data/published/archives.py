"""Unpack the archives that packages and data sets come in: tar, zip, Debian's ar, single gzip files.

Only regular files are written, and only inside the target folder, whatever names an archive holds.
"""

import errno
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from fedgram.core.errors import BadArchive
from fedgram.data.own.bad import check_expansion

_UNUSABLE_NAME = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ}


def unpack(archive: Path, target: Path) -> None:
    """Write an archive's files under `target`; a file that is no archive is copied as it is."""
    written = 0
    try:
        for name, file in _members(archive):
            inside = PurePosixPath(name.replace("\\", "/"))
            if inside.is_absolute() or ".." in inside.parts or ":" in name:
                raise BadArchive(f"{archive.name} holds {name!r}, which points out of its folder: refused")
            if not inside.parts or not name.isprintable():
                raise BadArchive(f"{archive.name} holds {name[:80]!r}, which no file can be named: refused")
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
    if archive.suffix in (".zip", ".whl"):
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
