import pytest

from support.command import fedgram
from support.exchange import PARTIES, TEXT, tables


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the study, tables, and keys that have been entered into the study."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TEXT)
    tables(tmp_path)
    for name in PARTIES:
        fedgram("keys", "new", name)
    fedgram("study", "keys", "study.toml", *(f"{name}.pub" for name in PARTIES))
    return tmp_path
