"""Fetch a data set from its usual home on the web, going on where an earlier attempt was cut."""

import os
from dataclasses import dataclass
from pathlib import Path

from fedgram.core.errors import CannotFetch, WrongChecksum
from fedgram.core.progress import byte_bar
from fedgram.data.published.sources import File, Source, refuse_if_offline

_TIMEOUT = 20.0


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
            if error.code == 416:  # what we have is longer than the file: it cannot be a part of it
                part.unlink()
            raise CannotFetch(f"{self.address}{file.name} answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise CannotFetch(f"{self.address} cannot be reached ({error})") from error
        if total is not None and so_far < total:
            raise CannotFetch(f"{file.name} was cut after {so_far:,} of {total:,} bytes; run again to go on")
