"""Files whole or not at all, locks, and what is said when the system refuses."""

import errno
import threading
from contextlib import contextmanager, nullcontext

import pytest

from fedgram.core.errors import CacheError, InvalidData, InvalidParameter, tell
from fedgram.core.files import locked, new_file, replace_file, writing


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "text")
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"


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
