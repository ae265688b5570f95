"""Helpers of data tests: a private cache, real images, and a server on the loopback that serves real files."""

import gzip
import hashlib
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedgram.data.published import catalog
from fedgram.data.published.catalog import Published
from fedgram.data.published.downloads import File, Home
from fedgram.data.published.layouts import idx_layout
from support.waiting import PATIENCE

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
LAYOUT = idx_layout(("mnist",), tuple(range(10)))
LOAD_MNIST = "from fedgram.data.published import catalog; print(catalog.load('mnist').fingerprint)"

Bytes = npt.NDArray[np.uint8]


def private_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the test have a cache of its own, which is empty."""
    monkeypatch.setenv("FEDGRAM_CACHE", str(folder / "cache"))
    return folder / "cache"


def offline_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private, empty cache, without network."""
    monkeypatch.setenv("FEDGRAM_OFFLINE", "1")
    monkeypatch.delenv("FEDGRAM_DATA", raising=False)
    return private_cache(folder, monkeypatch)


def some_photos() -> Bytes:
    return np.array(catalog.load("cifar10").x[:40])


def archive_of(name: str) -> Path:
    """The archive of a data set in the shared cache (fetched now if it is missing)."""
    published = catalog.CATALOG[name].published
    assert published is not None
    paths = published.sources[0].placed_in(published.downloads)
    if paths is None:
        catalog.fetch(name)
        paths = published.sources[0].placed_in(published.downloads)
    assert paths is not None
    return paths[0]


@dataclass
class Server:
    """Serves bytes by path, with ranges; records requests."""

    files: dict[str, bytes]
    address: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    cut_after: int | None = None  # send only that many bytes of a body, then hang or close
    hang: threading.Event | None = None
    ranges: bool = True

    def asked(self, path: str) -> list[str | None]:
        return [wanted for asked, wanted in self.requests if asked == path]


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    server = Server(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = self.path.lstrip("/"), self.headers.get("Range")
            server.requests.append((path, wanted))
            body = server.files.get(path)
            if body is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            rest = body[start:]
            if server.cut_after is not None and len(rest) > server.cut_after:
                self.wfile.write(rest[: server.cut_after])
                self.wfile.flush()
                if server.hang is not None:
                    server.hang.wait(PATIENCE)
                self.close_connection = True
            else:
                self.wfile.write(rest)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{http.server_port}/"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if server.hang is not None:
            server.hang.set()
        http.shutdown()
        http.server_close()
        thread.join()


def first_of_mnist() -> dict[str, bytes]:
    """The first thousand real images of MNIST as its home would serve them."""
    data = catalog.load("mnist")

    def idx(array: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> bytes:
        header = struct.pack(f">i{array.ndim}i", 8 << 8 | array.ndim, *array.shape)
        return gzip.compress(header + array.tobytes(), 1, mtime=0)

    return {
        IMAGES: idx(data.x[:1000]),
        LABELS: idx(data.y[:1000].astype(np.uint8)),
        TEST_IMAGES: idx(data.x_test[:200]),
        TEST_LABELS: idx(data.y_test[:200].astype(np.uint8)),
    }


def home_of(server: Server) -> Home:
    files = (File(name, f"md5:{hashlib.md5(body).hexdigest()}", len(body)) for name, body in server.files.items())
    return Home(server.address, tuple(files))


def published(home: Home) -> Published:
    return Published("some-mnist", (LAYOUT,), (home,))


def program(home: Home) -> str:
    return (
        "from fedgram.data.published.downloads import Home\n"
        "from fedgram.data.published.downloads import File\n"
        "from fedgram.data.published.catalog import Published\n"
        "from fedgram.data.published.layouts import idx_layout\n"
        f"home = {home!r}\n"
        "layout = idx_layout(('mnist',), tuple(range(10)))\n"
        "print(Published('some-mnist', (layout,), (home,)).load().fingerprint)\n"
    )


Start = Callable[[str], "subprocess.Popen[str]"]


@contextmanager
def processes() -> Iterator[Start]:
    """Yield a function that starts real Python processes; they end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write(path: Path, text: str) -> Path:
    """Return the path, where the text now is."""
    path.write_text(text, encoding="utf-8")
    return path
