"""What the data tests share: a private cache, and a server on the loopback that serves real files."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedgram.data import catalog


def archive_of(name: str) -> Path:
    """The archive of a data set as it was fetched into the shared cache (fetched now if it is not there)."""
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
    """Serves bytes by path, with ranges; remembers what was asked for."""

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
                    server.hang.wait(30)
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


Start = Callable[[str], "subprocess.Popen[str]"]


@contextmanager
def processes() -> Iterator[Start]:
    """Give a function that starts real Python processes; none outlives the test."""
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


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("waited in vain")
