"""The example of a consortium runs from keys to a certificate, and ends with the pooled model."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems
from support.waiting import PATIENCE

PROGRAM = Path(__file__).parents[2] / "examples" / "consortium.sh"


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
@pytest.mark.parametrize("what", ["tables", pytest.param("images", marks=pytest.mark.slow)])
def test_the_story_of_a_consortium(tmp_path, what):
    done = subprocess.run(
        ["sh", str(PROGRAM), what, str(tmp_path)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "published and pooled scores differ by" in done.stdout
    learned, tested = (set((tmp_path / f"{name}.csv").read_text().splitlines()[1:]) for name in ("west", "west-test"))
    assert tested
    assert not tested & learned
    judged = f"{len(tested)} samples, 95 % confidence intervals"
    assert done.stdout.count(judged) == 2, "a model is judged by rows that it has not seen"
    assert "largest difference" in done.stdout
    store = Store(tmp_path / "store")
    assert [each.party for each in store.contributions()] == ["east", "west", "centre", "north"]
    assert problems(store) == []
    check_total(store)
