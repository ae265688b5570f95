"""A file that changes between passes is refused; other files are read alike on every pass."""

import io
import os
from dataclasses import replace

import numpy as np
import pytest

from fedgram.core.errors import InvalidData
from fedgram.data.own import blocks
from fedgram.data.own.blocks import open_table
from fedgram.data.own.tables import Wanted, scan
from fedgram.studies.encoding import read_client
from studies.test_basis import STUDY
from studies.test_streams import both_ways, files_of, streaming
from support.data import write


@pytest.fixture
def files(tmp_path):
    return files_of(tmp_path, (50, 40), 3)


def test_a_file_that_changes_during_a_run_is_refused(files):
    _, [client, _] = both_ways(STUDY, files)
    path = files["party-0"][0]
    path.write_text("\n".join(path.read_text().splitlines()[:-5]))
    with streaming(), pytest.raises(InvalidData, match="has changed since this run first read it"):
        np.asarray(client.x)
    same = replace(client.x, table=replace(client.x.table, table=blocks.open_table(path)))
    with streaming(), pytest.raises(InvalidData, match="has changed"):
        np.asarray(same)  # also if the clock did not reveal it
    path.unlink()
    with streaming(), pytest.raises(InvalidData, match="has changed"):
        np.asarray(client.x)


def test_a_file_that_is_overwritten_during_a_pass_is_refused(files):
    _, [client, _] = both_ways(STUDY, files)
    path, blocks_read = files["party-0"][0], iter(client.x)
    with streaming():
        first = next(blocks_read)
        assert len(first) < len(client.x)
        path.write_text(path.read_text().replace(",yes", ", no"))  # as many bytes, as many rows
        os.utime(path, ns=(1, 1))
        with pytest.raises(InvalidData, match="has changed since this run first read it"):
            list(blocks_read)


def test_bad_rows_of_a_file_that_has_changed_are_not_looked_for(files, monkeypatch):
    path, settled = files["party-0"][0], blocks.find_rows
    path.write_text(path.read_text() + "old" + path.read_text().splitlines()[-1] + "\n")

    def cut(source, places):
        source.write_text("\n".join(source.read_text().splitlines()[:20]))
        return settled(source, places)

    monkeypatch.setattr(blocks, "find_rows", cut)
    with pytest.raises(InvalidData, match="has changed since this run first read it"):
        read_client(STUDY, "north", path)


def test_a_disk_that_gives_fewer_bytes_than_asked_changes_no_block(files, monkeypatch):
    """Network disks do that now and then."""
    [held, _], [streamed, _] = both_ways(STUDY, files)
    asked = iter(range(10**6))

    class Slow(io.FileIO):
        def readinto(self, space):
            return super().readinto(memoryview(space)[: 50 + 7 * (next(asked) % 11)])

    monkeypatch.setattr("fedgram.data.own.csvfiles.open_regular", Slow)
    with streaming():
        np.testing.assert_array_equal(np.asarray(streamed.x), held.x)
    assert next(asked) > 10


@pytest.mark.parametrize("rows", [5, 7, None])
@pytest.mark.parametrize("clock", [True, False])
def test_a_table_that_changes_between_the_two_passes_of_predict_is_refused(tmp_path, rows, clock):
    lines = ["a,b", *(f"{k},{k % 3}" for k in range(7))]
    path = write(tmp_path / "new.csv", "\n".join(lines[:7]) + "\n")
    found = scan(path, Wanted(labelled=False), "refuse")
    [(good, x)] = found.blocks()
    assert good.all()
    assert x.shape == (6, 2)
    if rows is None:
        path.unlink()
    else:
        path.write_text("\n".join(lines[: rows + 1]) + "\n")
        if not clock:  # written so soon after reading that its time is the same
            found = replace(found, source=open_table(path))
    with pytest.raises(InvalidData, match="has changed since this run first read it"):
        list(found.blocks())
