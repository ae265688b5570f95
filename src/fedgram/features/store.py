"""A matrix on disk that grows block by block, survives a kill at any moment, and knows when it is damaged.

Three files share a name: `.part`, which becomes `.npy` (an ordinary NumPy file) when complete; `.journal`,
a line that says what the matrix is, then a checksum per finished block; and a lock. A block counts once its
checksum is in the journal and agrees with the data, so nothing has to be forced to disk while the matrix
grows.
"""

import json
import os
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedgram.core.cache import writing_cache
from fedgram.core.files import replace_file
from fedgram.features.backbones.base import Features

LAYOUT = 1  # raise when the files change their meaning: older ones are then ignored
BLOCK = 512  # rows; at most these are computed again after a kill


class Store:
    """The matrix (rows, dim) float32 called `name` in `folder`; `about` says what it is a matrix of."""

    def __init__(self, folder: Path, name: str, rows: int, about: dict[str, str]) -> None:
        self._rows = rows
        self._about = {"layout": LAYOUT, "rows": rows, "block": BLOCK, **about}
        self._part, self._whole, self._journal, self.lock = (
            folder / f"{name}{suffix}" for suffix in (".part", ".npy", ".journal", ".lock")
        )

    def open(self) -> Features | None:
        """Return the whole matrix, mapped into memory, read-only; None if it is not there or damaged."""
        dim, sums = self._read_journal()
        if dim is None or not self._whole.is_file() or self._whole.stat().st_size != self._bytes(dim):
            return None
        if self._intact(self._whole, dim, sums) != self._rows:
            return None
        features: Features = np.load(self._whole, mmap_mode="r", allow_pickle=False)
        return features

    def fill(self, dim: int) -> "Filling":
        """Go on where an earlier process stopped."""
        known, sums = self._read_journal()
        if self._whole.exists():
            # Complete but not opened: damaged, or of another layout. Keep what is still right.
            with writing_cache(self._part):
                os.replace(self._whole, self._part)
        done = self._intact(self._part, dim, sums) if known == dim and self._part.is_file() else 0
        header = _header(self._rows, dim)
        lines = [json.dumps({**self._about, "dim": dim}), *(f"{s:08x}" for s in sums[: -(-done // BLOCK)])]
        with writing_cache(self._part):
            with self._part.open("r+b" if done else "wb") as part:
                part.write(header)
                part.truncate(len(header) + done * dim * 4)
            replace_file(self._journal, "".join(f"{line}\n" for line in lines).encode("ascii"))
        return Filling(self._part, self._journal, done)

    def finish(self) -> None:
        """Give the complete matrix its final name."""
        with writing_cache(self._whole):
            for path in (self._part, self._journal):
                with path.open("r+b") as file:
                    os.fsync(file.fileno())
            os.replace(self._part, self._whole)

    def _bytes(self, dim: int) -> int:
        return len(_header(self._rows, dim)) + self._rows * dim * 4

    def _read_journal(self) -> tuple[int | None, list[int]]:
        """Return the matrix's width and its blocks' checksums; None and nothing if it is another matrix's."""
        try:
            first, *lines = self._journal.read_text(encoding="ascii").splitlines()
            about = json.loads(first)
            dim = int(about.pop("dim"))
            if about != self._about:
                return None, []
            return dim, [int(line, 16) for line in lines if len(line) == 8]  # a kill may cut the last line short
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return None, []

    def _intact(self, path: Path, dim: int, sums: list[int]) -> int:
        """Return how many rows, from the first on, are as the journal says."""
        done = 0
        with path.open("rb") as file:
            if file.read(len(_header(self._rows, dim))) != _header(self._rows, dim):
                return 0
            for rows, expected in zip(self._blocks(), sums, strict=False):
                block = file.read(rows * dim * 4)
                if len(block) != rows * dim * 4 or zlib.crc32(block) != expected:
                    break
                done += rows
        return done

    def _blocks(self) -> Iterator[int]:
        for start in range(0, self._rows, BLOCK):
            yield min(BLOCK, self._rows - start)


class Filling:
    """Open files to which blocks are added; `done` rows are there already."""

    def __init__(self, part: Path, journal: Path, done: int) -> None:
        self.done = done
        self._part, self._journal = part, journal
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> "Filling":
        with writing_cache(self._part):
            self._files = [path.open("ab", buffering=0) for path in (self._part, self._journal)]
        return self

    def __exit__(self, *error: Any) -> None:
        for file in self._files:
            file.close()

    def add(self, block: Features) -> None:
        """Write the next block, then its checksum."""
        data = np.ascontiguousarray(block, dtype="<f4").tobytes()
        for file, content in zip(self._files, (data, f"{zlib.crc32(data):08x}\n".encode()), strict=True):
            with writing_cache(self._part):
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
        self.done += len(block)


def _header(rows: int, dim: int) -> bytes:
    """Return the header of a NumPy file of the matrix."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
    return buffer.getvalue()
