"""Commands never overwrite their input."""

import os

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import InvalidParameter
from fedgram.exchange.rounds.party_side import Party, summarize
from fedgram.studies import Study
from support.exchange import PARTIES, TEXT, key_of, tables


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with tables, a key, a store and its publications, and change into it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TEXT)
    for number, (name, path) in enumerate(tables(tmp_path).items()):
        (tmp_path / f"{name}.fgm").write_bytes(summarize(Study.parse(TEXT), path, Party(name, key_of(number))))
    key_of(0).save(tmp_path / "north.key")
    for options in (["join", "store", *(f"{name}.fgm" for name in PARTIES)], ["publish", "store", "--no-sites"]):
        assert CliRunner().invoke(app, options).exit_code == 0
    os.link(tmp_path / "north.csv", tmp_path / "same.csv")
    return tmp_path


PERSONALIZE = ("personalize", "global.fgm", "north.csv", "--key", "north.key", "--party", "north", "--out")


@pytest.mark.parametrize(
    "command",
    [
        *((*PERSONALIZE, target) for target in ("global.fgm", "north.csv", "same.csv", "north.key")),
        ("inspect", "north.fgm", "--html", "north.fgm"),
        ("publish", "store", "--out", "store/index.sqlite"),
        ("combine", "store", "--out", "store/coordinator.key"),
        ("remove", "store", "south", "--out", "store/total.bin"),
        ("status", "store", "--html", "store/index.sqlite"),
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_what_is_read_is_not_overwritten(folder, command):
    target = folder / command[-1]
    before = target.stat()
    found = CliRunner().invoke(app, list(command)).exception
    assert isinstance(found, InvalidParameter)
    assert "would be overwritten: give another name" in str(found)
    assert os.path.samestat(target.stat(), before)  # not its bytes: SQLite may tidy up its own file at any time
