"""Bars appear for longer work, and have no other effect."""

from dataclasses import dataclass

import pytest

from fedgram.core import progress_bars as progress


@dataclass(frozen=True)
class Part:
    share: float


@pytest.mark.parametrize(("patience", "seen"), [(60.0, False), (-1.0, True)])
def test_a_bar_over_parts(capsys, monkeypatch, patience, seen):
    monkeypatch.setattr(progress, "PATIENCE", patience)
    parts = [Part(0.25), Part(0.5), Part(1.0)]
    assert list(progress.with_bar(iter(parts), "reading north.csv", show=True)) == parts
    shown = capsys.readouterr()
    assert ("reading north.csv" in shown.err) == seen
    assert shown.out == ""


def test_a_reader_that_stops_early_ends_the_bar(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    closed = []

    def parts():
        try:
            yield from (Part(share) for share in (0.1, 0.2, 1.0))
        finally:
            closed.append(True)

    first = progress.with_bar(parts(), "reading", show=False)
    assert next(first) == Part(0.1)
    first.close()
    del first
    assert closed == [True]
