"""Pictures from results on disk: content, descriptions and files."""

import re
import struct
import xml.etree.ElementTree as ET
import zlib

import pytest

from fedgram.core.errors import MissingExtra
from fedgram.experiments.results import load_results
from fedgram.report import plots
from fedgram.report.charts import COLOURS, REFERENCE, looks, sweeps
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

    for light, dark in (*COLOURS, REFERENCE):  # WCAG 2.1 requires 3 for graphics
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
        assert {f"{picture}.{ending}" for ending in ("pdf", "png", "svg")} <= names
    assert {line.rsplit("/", 1)[-1] for line in result.output.split()} == names
    for name in names:
        path = tmp_path / "report" / name
        if name.endswith(".svg"):
            _check_svg(path)
        elif name.endswith(".png"):
            _check_png(path.read_bytes())
        elif name.endswith(".pdf"):
            _check_pdf(path.read_bytes())


def _check_svg(path):
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert root.get("role") == "img"
    assert re.search(r"\d", title.text), "the text alternative says no figure"
    assert len(list(root.iter())) > 60


def _check_pdf(content):
    assert content.startswith(b"%PDF-")
    assert b"/Subject" in content
    assert b"/FontFile2" in content, "no TrueType font"
    assert b"/Type3" not in content
    assert b"CreationDate" not in content


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
    assert "mixing, 10 clients, α = 0.1, seed 0: 5 clients; of others 0.001 to 0.002, of themselves 0.8 to 0.8" in told
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["mixing\n10 clients, α = 0.1, seed 0", "mixing\n10 clients, IID"]
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


@pytest.fixture
def several(tmp_path):
    """Return the path of results of registered methods over two seeds, with rounds and counts of samples."""
    runs = [
        record(
            method,
            0.8 + seed / 10,
            seed=seed,
            correct=[8 + seed, 6 + seed, 2],
            tested=[10, 10, 10],
            up=[10] * 3,
            down=[10] * 3,
            **({"rounds": {"client_mean": [0.5, 0.8 + seed / 10]}} if method == "fedavg+ft" else {}),
        )
        for method in ("fedgram", "fedavg+ft", "own")
        for seed in (0, 1)
    ]
    about = {"kind": "setting", "data": "digits", "clients": 3, "partition": "iid", "classes": ["a", "b"]}
    spread = [{**about, "seed": seed, "class_counts": [[5 + seed, 1]] * 3} for seed in (0, 1)]
    return write(tmp_path / "results.jsonl", [*spread, *(run | {"clients": 3, "partition": "iid"} for run in runs)])


def drawn(path, width=None):
    return {name: (figure, told) for name, figure, told in plots.draw(load_results([path]), "client_mean", width)}


def test_curves_have_a_band_over_seeds(several, tmp_path):
    figure, told = drawn(several)["accuracy-rounds"]
    [band] = figure.axes[0].collections
    corners = {(x, round(y, 2)) for x, y in band.get_paths()[0].vertices}
    assert {(1, 50.0), (2, 85 - 7.07), (2, 85 + 7.07)} <= corners
    assert "fedavg+ft ends at 85.00 ± 7.07 %" in told
    assert told.endswith("A band around a line is ± the standard deviation over seeds.")
    one = write(tmp_path / "one.jsonl", [record("gd", 0.9, rounds={"client_mean": [0.5, 0.9]})])
    assert not drawn(one)["accuracy-rounds"][0].axes[0].collections


def test_pictures_of_clients_show_all_seeds_or_name_the_one(several):
    found = drawn(several)
    figure, told = found["clients"]
    assert figure.axes[0].get_title() == "3 clients, IID, 2 seeds"
    assert "IID, 2 seeds: fedgram: lowest 20.0, median 65.0" in told  # 80, 60, 20 and 90, 70, 20
    figure, told = found["classes"]
    assert figure.axes[0].get_title() == "3 clients, IID, seed 0"
    assert "IID, seed 0:" in told


def test_large_and_small_marks_are_explained(tmp_path):
    runs = [record("afl", 0.9, up=[10], down=[10], partition=partition) for partition in ("iid", "dirichlet:1")]
    figure, _ = drawn(write(tmp_path / "a.jsonl", runs))["accuracy-bytes"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["afl", "mean of settings", "one setting"]
    figure, _ = drawn(write(tmp_path / "a.jsonl", runs[:1]))["accuracy-bytes"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["afl"]


def test_files_have_names_as_people_write_them_and_are_the_same_again(several, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        list(plots.write_plots(load_results([several]), tmp_path / folder, "client_mean"))
    text = (tmp_path / "one" / "clients.svg").read_text()
    assert all(f">{name}<" in text for name in ("FedGram", "FedAvg+FT", "own"))
    assert "fedgram" not in text
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.parametrize(("width", "inches"), [("column", 3.4), ("text", 7.0)])
def test_pictures_are_as_wide_as_a_column_or_the_text(several, tmp_path, width, inches):
    result = report(several, "--out", tmp_path / "out", "--width", width)
    assert result.exit_code == 0, result.output
    for path in (tmp_path / "out").glob("*.png"):
        assert struct.unpack(">I", path.read_bytes()[16:20]) == (round(200 * inches),)
    environment = {"column": "table", "text": "table*"}[width]
    text = (tmp_path / "out" / "table.tex").read_text()
    assert rf"\begin{{{environment}}}" in text
    assert r"\begin{adjustbox}{max width=\linewidth}" in text
    for figure, _ in drawn(several, width).values():  # nothing reaches over the edge
        box = figure.get_tightbbox()
        assert -0.02 <= box.x0 <= box.x1 <= inches + 0.02
