"""What the README and CONTRIBUTING show really runs."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks

ROOT = Path(__file__).parent.parent


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def some_names():
    """Return what the README's examples take as given."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), np.arange(40) % 2
    words = np.where(y, "well", "ill")
    clients = [fg.Client(f"ward-{k}", x[k::5], words[k::5]) for k in range(5)]
    moments = fg.Moments.of(x, words, classes=["ill", "well"], features="lite0:96")
    fit = fg.AFL().fit(clients)
    late, newcomer = (fg.Client(name, x[:9], words[:9]) for name in ("late", "newcomer"))
    given = {"late": late, "newcomer": newcomer}
    given |= {"x1": x[:20], "y1": y[:20], "x2": x[20:], "y2": y[20:], "x_new": x[:3]}
    return {"fg": fg, "x": x, "y": words, "clients": clients, "everyone": [moments, moments], "fit": fit, **given}


@pytest.mark.parametrize("block", [*blocks("README.md")[1:], *blocks("docs/fedgram.md")])
def test_readme_and_docs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = some_names()
    exec(block, names)
    assert "fg" in names


def test_readme_example_for_researchers():
    block = blocks("README.md")[0].replace('"cifar10", backbone="lite0:96"', '"synthetic", clients=5')
    names = {}
    exec(block, names)
    assert 0 < names["fit"].evaluation.client_mean <= 1


def test_contributing_shows_a_whole_method():
    method, gradient, check = blocks("CONTRIBUTING.md")
    names = {}
    try:
        exec(method, names)
        exec(gradient, names)
        exec(check, names)
        assert names["Held"](mu=0.5, rounds=1).fit(checks.some_clients(), classes=10).model is not None
        assert checks.CHECKS
        assert "average" in fg.registry
    finally:
        fg.registry._methods.pop("average", None)
