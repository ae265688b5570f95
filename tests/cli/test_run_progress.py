"""The progress bar of `fedgram run`: shown from the start, and only on terminals."""

import io

import pytest
from rich.console import Console

from fedgram.cli.options import progress_bar
from fedgram.core import terminal


@pytest.fixture
def shown(monkeypatch):
    def watched(*, by_a_person):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=by_a_person, width=120)
        monkeypatch.setattr(terminal, "console", lambda **_: console)
        return screen

    return watched


def test_it_is_there_before_anybody_replies_and_while_the_server_computes(shown):
    screen = shown(by_a_person=True)
    with progress_bar("apfl") as report:
        assert "apfl · starting" in screen.getvalue()
        report("summarize", 0, 1, 3)
        report("summarize", 0, 3, 3)
        assert "apfl · summarize done, the server computes" in screen.getvalue()


def test_what_is_said_meanwhile_has_a_line_of_its_own():
    for by_a_person, wanted in ((True, "\r\x1b[2Ksaid\n"), (False, "said\n")):
        said = Console(file=io.StringIO(), force_terminal=by_a_person, width=120)
        terminal.fresh_line(said)
        said.print("said")
        assert said.file.getvalue() == wanted


def test_a_file_gets_none(shown):
    screen = shown(by_a_person=False)
    with progress_bar("apfl") as report:
        report("summarize", 0, 3, 3)
    assert screen.getvalue() == ""
