"""Pictures from results on disk: what is drawn, what is told of it, and the files."""

import re
import struct
import xml.etree.ElementTree as ET
import zlib

import pytest

from fedgram.core.errors import MissingExtra
from fedgram.experiments.results import load_results
from fedgram.report import plots
from fedgram.report.palette import COLOURS, REFERENCE, looks
from fedgram.report.series import sweeps
from support.made_up import comparison, weights, write
from support.report import record, report


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "results.jsonl"
    return write(path, comparison(methods=13, clients=(20,), alphas=(0.1,), seeds=2, rounds=12))


def test_no_two_methods_look_the_same():
    labels = [f"method {i}" for i in range(40)]
    chosen = looks([*labels, "centralised"], ["centralised"])
    assert len(set(chosen.values())) == len(labels) + 1


def test_marks_stand_out_from_the_page():
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for light, dark in (*COLOURS, REFERENCE):  # WCAG 2.1 asks 3 of what is no text
        assert 1.05 / (luminance(light) + 0.05) >= 3
        assert (luminance(dark) + 0.05) / (luminance("#161920") + 0.05) >= 3


def test_values_that_are_tables_are_text_in_sweeps(tmp_path):
    runs = [record(f"afl {i}", 0.9, settings={"layers": {"a": i}}) | {"method": "afl"} for i in (1, 2)]
    (sweep,) = sweeps(load_results([write(tmp_path / "results.jsonl", runs)]))
    assert list(sweep.values) == ["{'a': 1}", "{'a': 2}"]


def test_sweeps_change_one_hyper_parameter_only(tmp_path):
    def swept(gamma, ri, accuracy):
        return record(f"afl {gamma} {ri}", accuracy, settings={"gamma": gamma, "ri": ri}) | {"method": "afl"}

    path = write(tmp_path / "results.jsonl", [swept(1, False, 0.9), swept(10, False, 0.8), swept(5, True, 0.7)])
    (sweep,) = sweeps(load_results([path]))
    assert (sweep.parameter, list(sweep.values)) == ("gamma", [1, 10])
    ((_, rest),) = sweep.curves
    assert rest == "ri=false"


def test_everything_is_written_to_a_folder(large, tmp_path):
    result = report(large, "--out", tmp_path / "report")
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"report.html", "table.md", "table.csv", "table.tex"} <= names
    for picture in ("accuracy-bytes", "accuracy-cpu", "accuracy-rounds", "clients", "classes"):
        assert {f"{picture}.png", f"{picture}.svg"} <= names
    assert {line.rsplit("/", 1)[-1] for line in result.output.split()} == names
    for name in names:
        path = tmp_path / "report" / name
        if name.endswith(".svg"):
            _check_svg(path)
        elif name.endswith(".png"):
            _check_png(path.read_bytes())


def _check_svg(path):
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert root.get("role") == "img"
    assert re.search(r"\d", title.text), "the text alternative says no figure"
    assert len(list(root.iter())) > 60


def _check_png(content):
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert min(width, height) > 300
    assert b"Description" in content
    data, at = b"", 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        data += content[at + 8 : at + 8 + size] if content[at + 4 : at + 8] == b"IDAT" else b""
        at += size + 12
    assert len(set(zlib.decompress(data))) > 100, "an empty picture"


def test_sensitivity_is_drawn(tmp_path):
    runs = [
        record(f"afl ({g})", 0.9 - g / 1000, settings={"gamma": g}) | {"method": "afl"} for g in (0.1, 1.0, 10.0, 100.0)
    ]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    ((name, figure, told),) = [picture for picture in plots.draw(results, "client_mean") if "sensitivity" in picture[0]]
    assert name == "sensitivity-afl-gamma"
    steps = "0.1 gives 89.99 %, 1 gives 89.90 %, 10 gives 89.00 %, 100 gives 80.00 %"
    assert told == f"afl: gamma. 10 clients, α = 0.1: {steps}."
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"


def test_matrices_are_drawn_without_the_diagonal_in_their_range(tmp_path):
    names = [f"site {k}" for k in range(5)]
    runs = [
        record("mixing", 0.9, matrices=weights(names, own=0.8)),
        record("mixing", 0.9, matrices=weights(names, own=0.7), seed=1),
        record("mixing", 0.9, matrices=weights(names, own=0.6), partition="iid"),
        record("alone", 0.9, matrices=weights(["site 0"])),
        record("plain", 0.9),
    ]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    drawn = {name: (figure, told) for name, figure, told in plots.draw(results, "client_mean")}
    figure, told = drawn["matrix-aggregation-weights"]
    assert "mixing, 10 clients, α = 0.1: 5 clients; of others 0.001 to 0.002, of themselves 0.8 to 0.8" in told
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["mixing\n10 clients, α = 0.1", "mixing\n10 clients, IID"]
    for axes in panels:
        (image,) = axes.get_images()
        assert (image.get_clim(), image.colorbar.extend) == ((0.001, 0.002), "max")
        assert [text.get_text() for text in axes.get_yticklabels()] == names
    plain = load_results([write(tmp_path / "plain.jsonl", runs[-2:])])
    assert "matrix-aggregation-weights" not in {name for name, _, _ in plots.draw(plain, "client_mean")}


def test_pictures_tell_data_sets_apart(tmp_path):
    runs = [
        record("afl", 0.9, data=data, key=f"{data}{g}", settings={"gamma": g}, rounds={"client_mean": [0.8, 0.9]})
        | {"label": f"afl {g}", "correct": [3, 4], "tested": [5, 5]}
        for data in ("digits", "mnist")
        for g in (1, 2)
    ]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    drawn = {name: (figure, told) for name, figure, told in plots.draw(results, "client_mean")}
    places = ["digits, 10 clients, α = 0.1", "mnist, 10 clients, α = 0.1"]
    for name in ("accuracy-rounds", "clients", "sensitivity-afl-gamma"):
        assert all(place in drawn[name][1] for place in places)
    assert [axes.get_title() for axes in drawn["clients"][0].axes] == places


def test_one_round_methods_are_stars(large):
    results = load_results([large])
    (figure,) = [figure for name, figure, _ in plots.draw(results, "client_mean") if name == "accuracy-rounds"]
    lines = figure.axes[0].get_lines()
    assert sum(line.get_marker() == "*" for line in lines) == 2
    assert sum(len(line.get_xdata()) == 12 for line in lines) == 10


def test_without_matplotlib_the_rest_is_written(small, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[plot\]'"):
        list(plots.write_plots(load_results([small]), tmp_path, "pooled"))
    result = report(small, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "drawing plots needs the 'plot' extra" in result.output
    assert (tmp_path / "out" / "table.tex").exists()
