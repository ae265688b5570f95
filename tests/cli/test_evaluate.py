"""`fedgram evaluate`: intervals, the event and the plot, as a user of the command sees them."""

import json

import numpy as np
import pytest

from fedgram.core.errors import InvalidParameter
from fedgram.inference.binary_predictions import calibration_groups
from fedgram.report.plots import write_calibration
from support.command import fedgram, run, told
from support.exchange import PARTIES, table


@pytest.fixture
def published(folder):
    """Return the folder with a published model and a table of other rows."""
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key")
    fedgram("join", "store", *(f"{name}.fgm" for name in PARTIES))
    fedgram("publish", "store", "--out", "global.fgm")
    (folder / "new.csv").write_text(table(20, 100))
    return folder


def test_the_event_and_the_level_are_said(published):
    said = fedgram("evaluate", "global.fgm", "new.csv")
    found = told("evaluate", "global.fgm", "new.csv")["event"]
    assert "95 % confidence intervals" in said
    assert "event: well (predicted from probability 0.5 on" in said
    assert (
        f"{found['auroc']['value']:.4f} ({found['auroc']['low']:.4f} to {found['auroc']['high']:.4f}, DeLong)" in said
    )
    assert f"{found['hits']} of {found['hits'] + found['missed']}" in said
    for word in ("sensitivity", "specificity", "PPV", "NPV", "calibration slope", "Wilson"):
        assert word in said
    other = fedgram("evaluate", "global.fgm", "new.csv", "--event", "ill", "--threshold", "0.2", "--level", "0.9")
    assert "event: ill (predicted from probability 0.2 on" in other
    assert "90 % confidence intervals" in other


def test_both_classes_have_the_same_area(published):
    one, other = (told("evaluate", "global.fgm", "new.csv", "--event", name)["event"] for name in ("ill", "well"))
    assert one["auroc"]["value"] == pytest.approx(other["auroc"]["value"], rel=1e-9)
    assert one["sensitivity"]["value"] == other["specificity"]["value"]


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("a.PNG", b"\x89PNG")])
def test_the_plot_is_written_in_the_format_of_its_name(published, name, begins):
    pytest.importorskip("matplotlib")
    assert f"wrote {name}" in fedgram("evaluate", "global.fgm", "new.csv", "--plot", name)
    drawn = (published / name).read_bytes()
    assert drawn.startswith(begins)
    with pytest.raises(InvalidParameter, match="--force"):
        fedgram("evaluate", "global.fgm", "new.csv", "--plot", name)
    fedgram("evaluate", "global.fgm", "new.csv", "--plot", name, "--force")
    assert (published / name).read_bytes() == drawn  # no date in it


def test_a_drawn_name_is_text_and_not_a_formula(tmp_path):
    pytest.importorskip("matplotlib")
    chances = np.linspace(0.01, 0.99, 50)
    write_calibration(tmp_path / "a.svg", calibration_groups(chances, chances > 0.4, 0.95), "$x^ <b>\x1b[2J", 0.95)
    drawn = (tmp_path / "a.svg").read_text()
    write_calibration(tmp_path / "a.pdf", calibration_groups(chances, chances > 0.4, 1e-12), "narrow", 1e-12)
    assert "\x1b" not in drawn
    assert "<b>" not in drawn
    assert 'role="img"' in drawn


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--event", "sick"), "unknown class 'sick'"),
        (("--threshold", "1"), "threshold: expected a number between 0 and 1"),
        (("--level", "95"), "level: expected a number between 0 and 1"),
        (("--plot", "plot.jpg"), "expected a name that ends in .pdf, .png, .svg"),
        (("--plot", "none/plot.svg"), "is not a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(published, options, words):
    for form in ((), ("--json",)):
        done = run("evaluate", "global.fgm", "new.csv", *options, *form, cwd=published)
        assert (done.returncode, done.stdout) == (2, "")
        [line] = done.stderr.splitlines()
        assert words in (json.loads(line)["error"] if form else line)


def test_a_plot_needs_an_event(tmp_path, monkeypatch):
    """One of several classes must be named, and a number has none."""
    monkeypatch.chdir(tmp_path)
    head = "[study]\nname = 's'\noutcome = 'y'\nminimum_samples = 5\nminimum_cell = 1\n"
    age = "[columns.age]\nkind = 'number'\nrange = [0, 100]\n"
    (tmp_path / "classes.toml").write_text(f"{head}classes = ['a', 'b', 'c']\n{age}")
    (tmp_path / "number.toml").write_text(f"{head}unit = 'EUR'\n{age}")
    lines = [f"{k},{'abc'[k % 3]}" for k in range(30)]
    (tmp_path / "classes.csv").write_text("\n".join(["age,y", *lines]) + "\n")
    (tmp_path / "number.csv").write_text("\n".join(["age,y", *(f"{k},{k + k % 3}" for k in range(30))]) + "\n")
    refusals = {"classes": "expected --event, because there are 3", "number": "expected a model of classes"}
    for name, words in refusals.items():
        spread = ("--clients", 2, "--partition", "iid", "--method", "afl")
        fedgram("run", "--data", f"{name}.csv", "--study", f"{name}.toml", *spread, "--save", f"{name}.fit")
        done = run("evaluate", f"{name}.fit", f"{name}.csv", "--plot", "plot.svg", cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert words in done.stderr
    said = fedgram("evaluate", "classes.fit", "classes.csv")
    assert "AUROC against the rest" in said
    assert "mean AUROC of the classes" in said
    said = fedgram("evaluate", "number.fit", "number.csv")
    assert [line.split()[0] for line in said.splitlines() if " EUR " in line] == ["y", "y"]
    assert "percentiles of 2,000 bootstrap resamples" in said
