"""Pipes and devices in place of input files: one line, at once."""

import os

import pytest

from support.command import run
from support.stores import store_of

READERS = {
    "inspect": ("inspect", "{0}"),
    "join": ("join", "store", "{0}"),
    "join --study": ("join", "new", "north.fgm", "--study", "{0}"),
    "join --key": ("join", "new", "north.fgm", "--key", "{0}"),
    "verify": ("verify", "store", "{0}"),
    "study show": ("study", "show", "{0}"),
    "study keys": ("study", "keys", "study.toml", "{0}"),
    "predict": ("predict", "{0}", "table.csv"),
    "compare": ("compare", "{0}"),
    "report": ("report", "{0}"),
}
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.mark.parametrize("command", READERS)
def test_pipes_and_devices_are_refused_at_once(tmp_path, command):
    store_of(tmp_path / "store", "north").index.close()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        done = run(*(option.format(path) for option in READERS[command]), cwd=tmp_path)
        assert done.returncode == 2, done
        assert "expected a regular file, got a pipe, socket or device" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("name", "code"),
    [("index.sqlite", 2), ("index.sqlite-wal", 2), ("coordinator.key", 2), ("total.bin", 2), ("checked.json", 0)],
)
def test_a_pipe_in_a_store_is_not_waited_for(tmp_path, name, code):
    store_of(tmp_path, "north").index.close()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    done = run("publish", ".", cwd=tmp_path)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert code == 0 or "expected a regular file" in done.stderr
