"""A study comes from others: it may name a method, never a file or a module with code."""

import sys

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import InvalidData, UnknownName
from fedgram.exchange.format import fgm
from support.exchange import TEXT, tables
from support.own_method import write_method

CODE = ("evil.py", "./evil.py", "evil.py:Average", "evil:Average", "this:x", "a/b", "a\\\\b", "")


@pytest.fixture
def folder(tmp_path, monkeypatch, registered):
    """Return a folder with tables, and code that writes a file when it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables(tmp_path)
    write_method(tmp_path / "evil.py")
    with (tmp_path / "evil.py").open("a") as file:
        file.write("\nfrom pathlib import Path\nPath('ran').touch()\n")
    return tmp_path


def study_with(method):
    return TEXT.replace("minimum_samples", f'method = "{method}"\nminimum_samples')


@pytest.mark.parametrize("method", CODE)
def test_a_study_names_registered_methods_only(folder, method):
    (folder / "study.toml").write_text(study_with(method))
    before = {name for name in sys.modules if name in ("this", "evil")}
    for command in (
        ("run", "--study", "study.toml", "--data", "north.csv", "--data", "south.csv"),
        ("flower", "new", "app", "--study", "study.toml"),
        ("study", "show", "study.toml"),
        ("summarize", "study.toml", "north.csv", "--party", "north"),
    ):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, InvalidData), done.output
        assert "a study does not choose code" in str(done.exception)
        assert "--method" in str(done.exception)
    assert not (folder / "ran").exists()
    assert {name for name in sys.modules if name in ("this", "evil")} == before


def test_a_name_that_is_not_registered_is_refused_by_name(folder):
    (folder / "study.toml").write_text(study_with("fedgrm"))
    done = CliRunner().invoke(app, ["flower", "new", "app", "--study", "study.toml"])
    assert isinstance(done.exception, UnknownName)
    assert "did you mean 'fedgram'" in str(done.exception)


def test_the_command_line_still_chooses_code(folder):
    (folder / "study.toml").write_text(TEXT)
    done = CliRunner().invoke(app, ["flower", "new", "app", "--study", "study.toml", "--method", "evil.py"])
    assert done.exit_code == 0, done.output
    assert (folder / "ran").exists()


def test_nothing_is_looked_up_because_a_file_names_a_backbone(folder, monkeypatch):
    """A message states digest and features, so that reading it needs no weights; see test_study_identity.py."""
    monkeypatch.setattr("fedgram.studies.media._opened", lambda spec: pytest.fail(f"{spec} was opened"))
    stated = f'backbone = "lite0:96"\ndigest = "{"ab" * 32}"\nfeatures = 2'
    (folder / "study.toml").write_text(f'{TEXT}\n[columns.scan]\nkind = "image"\n{stated}\n')
    from fedgram.studies import Study

    study = Study.read("study.toml")
    fgm.write("receipt.fgm", fgm.encode("receipt", {"study": "x"}, study=study, party="coordinator"))
    assert fgm.read("receipt.fgm").study == study
