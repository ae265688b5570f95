"""Two comparisons on one folder: one works, the other gets a message or waits; a kill leaves no lock."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FolderInUse, InvalidParameter
from fedgram.core.filesystem import only_writer
from support import command
from support.report import report
from support.runner import SMALL, compare, records
from support.waiting import PATIENCE

HOLD = """
import sys
from pathlib import Path
from fedgram.core.filesystem import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def another(folder):
    """Let another process write to the folder until it is told to stop, or killed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_of_two_comparisons_at_once_one_is_told(tmp_path):
    both = [command.start("compare", *SMALL, "--seeds", "0,1,2", "--out", tmp_path / "out") for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE)[1] for process in both]
    errors = {process.returncode: text for process, text in zip(both, told, strict=True)}
    assert sorted(errors) == [0, 2], told
    (line,) = errors[2].splitlines()
    # The second may also come when the first has ended.
    assert line.startswith("error: another comparison is writing to") or "has results already" in line
    keys = [record["key"] for record in records(tmp_path / "out" / "results.jsonl")]
    assert len(keys) == len(set(keys)) == 9


def test_the_holder_is_named_and_nothing_is_touched(tmp_path):
    with another(tmp_path) as holder:
        refused = compare(*SMALL, "--out", str(tmp_path), "--overwrite")
        assert isinstance(refused.exception, FolderInUse)
        assert f"(process {holder.pid} on " in str(refused.exception)
        assert "--wait" in str(refused.exception)
        assert not (tmp_path / "results.jsonl").exists()


def test_waiting_for_the_other_one(tmp_path):
    with another(tmp_path) as holder:
        waiting = command.start("compare", *SMALL, "--out", tmp_path, "--wait")
        told = waiting.stderr.readline()
        assert told.startswith(f"waiting: another comparison is writing to {tmp_path} (process {holder.pid} on ")
        assert waiting.poll() is None
        assert not (tmp_path / "results.jsonl").exists()
        holder.communicate("enough\n")
        _, errors = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 0, errors
    assert len(records(tmp_path / "results.jsonl")) == 3


def test_whoever_is_killed_leaves_no_lock(tmp_path):
    with another(tmp_path) as holder:
        holder.kill()
        holder.wait()
        with only_writer(tmp_path):
            assert f"process {os.getpid()} on" in (tmp_path / ".holder").read_text()
    assert not (tmp_path / ".holder").exists()


def test_a_report_needs_no_lock(tmp_path):
    assert compare(*SMALL, "--out", str(tmp_path)).exit_code == 0
    with another(tmp_path), (tmp_path / "results.jsonl").open("a") as stream:
        stream.write('{"kind":"run","method":"af')  # the line that is being written
        stream.flush()
        done = report(tmp_path)
    assert done.exit_code == 0
    assert "line 5: half-written" in done.output
    assert "local" in done.output


def test_threads_exclude_each_other_too(tmp_path):
    with only_writer(tmp_path), pytest.raises(FolderInUse), only_writer(tmp_path):
        pass


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameter, match="cannot write .*file"), only_writer(tmp_path / "file"):
        pass


def test_help_says_what_happens():
    told = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert "--wait" in told
    assert "One comparison at a time writes to a folder" in told
