"""`results.jsonl`: one JSON object a line, appended whole or not at all, so that a crash costs one run at most."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedgram.core import container
from fedgram.core.errors import JournalError
from fedgram.core.filesystem import open_regular, writing

OK, FAILED = "ok", "failed"
_HALF = re.compile("[\ud800-\udfff]")


class Damage(NamedTuple):
    """A line that could not be read, and why."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


class Line(NamedTuple):
    """A line that could be read."""

    number: int
    record: dict[str, Any]

    @property
    def is_run(self) -> bool:
        """Whether the record is of a run, not of a setting."""
        return bool(self.record.get("kind", "run") != "setting")


def read(path: Path) -> Iterator[Line | Damage]:
    """Yield the lines of a results file; a damaged line becomes a `Damage`, and the rest is still read."""
    try:
        with open_regular(path) as stream:
            for number, raw in enumerate(stream, start=1):
                if raw.strip():
                    yield _parse(path, number, raw)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(path: Path, number: int, raw: bytes) -> Line | Damage:
    try:
        record = container.parse(raw)
    except ValueError as error:
        half = "" if raw.endswith(b"\n") else "half-written: "
        why = "" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else f": {error}"
        return Damage(path, number, f"{half}not JSON ({len(raw)} bytes){why}")
    if not isinstance(record, dict):
        return Damage(path, number, "not a JSON object")
    # JSON can hold half of a surrogate pair, which cannot be printed or saved again; a look at the bytes is cheap.
    if b"\\ud" in raw.lower() and _HALF.search(json.dumps(record, ensure_ascii=False)):
        return Damage(path, number, "a text in it is not Unicode")
    return Line(number, record)


def went_well(record: Mapping[str, Any]) -> bool:
    """Return whether the run of a record did not fail."""
    status = record.get("status", OK)
    if status not in (OK, FAILED):
        raise ValueError(f"status must be {OK!r} or {FAILED!r}")
    return bool(status == OK)


class Journal:
    """A results file open for appending."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        # An earlier file is overwritten only with the first record.
        self._overwrite = overwrite
        # O_APPEND and one write a line: lines of two processes do not mix, and a line is there or not.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        with writing(path, JournalError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, flags, 0o644)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record and wait until it is on the disk."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"
        with writing(self.path, JournalError, remedy="make room and go on with --resume, what is finished is kept"):
            if self._overwrite:
                os.ftruncate(self._file, 0)
                self._overwrite = False
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes fitted")
            os.fsync(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def heal(path: Path) -> str | None:
    """Return a note on mending a half-written last line after a crash, None if the file was whole."""
    with writing(path, JournalError), path.open("r+b") as stream:
        content = stream.read()
        if not content or content.endswith(b"\n"):
            return None
        start = content.rfind(b"\n") + 1
        number = content.count(b"\n") + 1
        if isinstance(_parse(path, number, content[start:]), Line):
            stream.write(b"\n")
            return f"{path}, line {number}: its end of line was missing and has been added"
        if content[start : start + 1] != b"{":
            raise JournalError(
                f"{path}, line {number}: expected a record of a run, got other text; give another folder for the "
                "results"
            )
        stream.truncate(start)
    return f"{path}, line {number}: half-written ({len(content) - start} bytes) and taken away; its run is repeated"
