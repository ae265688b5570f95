"""Computations on blocks that are read anew on each pass, and a temporary file that cannot be written."""

import errno
import io
import os

import numpy as np
import pytest

from fedgram.core.arrays import Stream, each, lazily
from fedgram.core.errors import InvalidData, tell


class Count(Stream):
    """Three blocks, and a count of passes through them."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(np.arange(12.0).reshape(3, 2, 2))


def test_what_is_made_of_a_stream_is_made_once_or_on_each_pass():
    source = Count()
    anew, once = lazily(np.negative, source), each(np.negative, source)
    assert source.passes == 1
    for blocks_made in (anew, once, anew, once):
        np.testing.assert_array_equal(np.concatenate(list(blocks_made)), -np.arange(12.0).reshape(6, 2))
    assert source.passes == 3
    one, other = iter(once), iter(once)  # two passes at the same time
    np.testing.assert_array_equal(next(one), next(other))
    np.testing.assert_array_equal(next(one), next(other))


@pytest.mark.parametrize("room", [0, 40])
def test_a_temporary_folder_without_room_is_named(monkeypatch, room):
    """Also where the disk is full only when buffers are flushed."""

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", lambda: io.BufferedWriter(Full(), buffer_size=room or 1 << 16))
    with pytest.raises(InvalidData, match=r"No space left on device; set TMPDIR"):
        each(np.negative, Count())


def test_a_temporary_folder_that_is_gone_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(InvalidData, match=r"gone: No such file or directory; set TMPDIR") as caught:
        each(np.negative, Count())
    assert tell(caught.value) == "the temporary folder is full or cannot be written"
