"""Files whole or not at all, locks, and messages when the system refuses."""

import errno
import os
import socket
import threading
from contextlib import contextmanager, nullcontext
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import CacheError, InvalidData, InvalidParameter, tell
from fedgram.core.filesystem import (
    MOST_NAME,
    file_name,
    locked,
    new_file,
    open_regular,
    read_regular,
    replace_file,
    writing,
)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "text")
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="expected a regular file, got a pipe, socket or device"):
            replace_file(path, b"new")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


def test_secrets_are_for_their_owner(tmp_path):
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_new_file_takes_no_other_ones_place(tmp_path):
    path = tmp_path / "key"
    new_file(path, b"secret", mode=0o600)
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        new_file(path, b"other")
    assert path.read_bytes() == b"secret"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        new_file(tmp_path / "link", b"other")


def test_a_new_file_that_cannot_be_written_is_not_there(tmp_path):
    with pytest.raises(TypeError):
        new_file(tmp_path / "key", "text")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_folder_is_no_file(path, tmp_path):
    with pytest.raises(InvalidData, match="cannot write .*: Is a directory"), writing(tmp_path.__class__(path)):
        replace_file(tmp_path.__class__(path), b"")


def test_a_refusal_says_what_why_and_what_to_do(tmp_path):
    with pytest.raises(CacheError) as caught, writing(tmp_path, CacheError, remedy="make room", told="no room here"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == f"cannot write {tmp_path}: No space left on device; make room"
    assert tell(caught.value) == "no room here"


def test_who_comes_second_waits(tmp_path):
    order, may_go = [], threading.Event()

    @contextmanager
    def waiting():
        order.append("waits")
        may_go.set()
        yield
        order.append("has it")

    def second():
        with locked(tmp_path / "lock", waiting):
            order.append("works")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock", nullcontext):
        thread.start()
        assert may_go.wait(10)
        order.append("first leaves")
    thread.join()
    assert order == ["waits", "first leaves", "has it", "works"]


def test_errors_inside_a_lock_are_left_alone(tmp_path):
    with pytest.raises(OSError, match="mine"), locked(tmp_path / "lock", nullcontext, InvalidParameter):
        raise OSError("mine")
    (tmp_path / "file").touch()
    with (
        pytest.raises(InvalidParameter, match="cannot write"),
        locked(tmp_path / "file" / "lock", nullcontext, InvalidParameter),
    ):
        pass


def irregular(folder):
    """Yield files of a folder or a system that are not regular files."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
    yield from (folder / "pipe", folder / "link", folder / "socket", "/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_read(tmp_path):
    for path in irregular(tmp_path):
        for read in (open_regular, lambda path: read_regular(path, most=10)):
            with pytest.raises(OSError, match="expected a regular file, got a pipe, socket or device") as caught:
                read(path)
            assert caught.value.filename == os.fspath(path)
    with pytest.raises(OSError, match="Is a directory"):
        open_regular(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        open_regular(tmp_path / "none")


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", most=5) == b"12345"
    with open_regular(path, most=5) as file:
        assert file.read() == b"12345"
    with pytest.raises(OSError, match="expected at most 4 bytes, got 5"):
        read_regular(path, most=4)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs a file of another size than it says")
def test_a_file_that_is_longer_than_it_says_is_refused():
    with pytest.raises(OSError, match="0 bytes were expected, got 1"):
        read_regular("/proc/self/status", most=1 << 20)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_text_has_a_safe_file_name_that_gives_it_back(text):
    name = file_name(text)
    assert not set('/\\:*?"<>|\0') & set(name)
    assert name[0] != "."
    assert name[-1] not in ". "
    assert unquote(name) == text


def test_long_names_stay_apart(tmp_path):
    names = {file_name(text) for text in ("日" * 200, "日" * 199 + "本", "a" * 181)}
    assert len(names) == 3
    for name in names:
        assert len(name.encode()) <= MOST_NAME
        (tmp_path / f"{name}-removed.fgm").touch()
