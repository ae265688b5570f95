"""Reports from results on disk: tables to the letter, plots, and files that are old or damaged."""

import csv
import io
import json
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from statistics import stdev

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.errors import MissingExtra
from fedgram.experiments import formats, plots
from fedgram.experiments.journal import JournalError
from fedgram.experiments.palette import looks
from fedgram.experiments.results import load_results
from fedgram.experiments.series import sweeps
from fedgram.experiments.tables import accuracy_table, cost_table
from made_up import comparison, weights, write


def record(label, accuracy, *, clients=10, partition="dirichlet:0.1", seed=0, **more):
    """Return a run's record with only what a test needs."""
    return {
        "kind": "run",
        "key": f"{label}/{clients}/{partition}/{seed}/{sorted(more.get('settings', {}).items())}",
        "label": label,
        "method": label,
        "data": "digits",
        "clients": clients,
        "partition": partition,
        "seed": seed,
        "status": "ok",
        "accuracy": {"client_mean": accuracy, "pooled": accuracy - 0.01, "worst_decile": accuracy - 0.1},
    } | more


SMALL = [
    record("afl", 0.9),
    record("centralised", 0.95, reference=True),
    record("lo_cal & 50%", 0.8),
    record("afl", 0.91, seed=1),
    record("centralised", 0.95, reference=True, seed=1),
    record("lo_cal & 50%", 0.85, seed=1),
    record("third", 0.7),
    record("third", 0.7, seed=1, status="failed", error="boom"),
    record("afl", 0.6, clients=50),
    record("lo_cal & 50%", 0.6, clients=50),
    record("third", 0.55, clients=50),
    record("afl", 0.5, partition="iid"),
    record("third", 0.0, partition="iid", status="failed", error="boom"),
]


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "results.jsonl", SMALL)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "results.jsonl"
    return write(path, comparison(methods=13, clients=(20,), alphas=(0.1,), seeds=2, rounds=12))


def report(*options):
    result = CliRunner().invoke(app, ["report", *map(str, options)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_markdown_to_the_letter(small):
    spread = f"{stdev([90, 91]):.2f}"
    assert formats.markdown(accuracy_table(load_results([small]), "client_mean")) == (
        "Accuracy in % (mean of the clients' accuracies) of digits; mean ± standard deviation over 2 seeds.\n\n"
        "|  | 10 clients, α = 0.1 | 10 clients, IID | 50 clients, α = 0.1 |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| centralised (reference) | 95.00 ± 0.00 | – | – |\n"
        f"| afl | **90.50 ± {spread}** | 50.00 | **60.00** |\n"
        "| lo\\_cal & 50% | <ins>82.50 ± 3.54</ins> | – | **60.00** |\n"
        "| third | 70.00 (1 failed) | failed | <ins>55.00</ins> |\n"
    )


def test_latex_to_the_letter(small):
    lines = formats.latex(accuracy_table(load_results([small]), "pooled")).splitlines()
    assert lines[2:-2] == [
        r"  \caption{Accuracy in \% (accuracy over all test samples) of digits; "
        r"mean $\pm$ standard deviation over 2 seeds.}",
        r"  \begin{tabular}{lrrr}",
        r"    \toprule",
        r"     & \multicolumn{2}{c}{10 clients} & \multicolumn{1}{c}{50 clients} \\",
        r"    \cmidrule(lr){2-3} \cmidrule(lr){4-4}",
        r"     & $\alpha$ = 0.1 & IID & $\alpha$ = 0.1 \\",
        r"    \midrule",
        r"    centralised (reference) & 94.00 $\pm$ 0.00 & -- & -- \\",
        r"    afl & \textbf{89.50 $\pm$ 0.71} & 49.00 & \textbf{59.00} \\",
        r"    lo\_cal \& 50\% & \underline{81.50 $\pm$ 3.54} & -- & \textbf{59.00} \\",
        r"    third & 69.00 (1 failed) & failed & \underline{54.00} \\",
        r"    \bottomrule",
    ]


def test_latex_takes_any_name(tmp_path):
    names = {
        "[bold] a|b": r"{}[bold] a\textbar{}b",
        "*star*": r"{}*star*",
        'λ ≤ 3 × "Ω" <b>': r"$\lambda$ $\leq$ 3 $\times$ ''$\Omega$'' \textless{}b\textgreater{}",
    }
    path = write(tmp_path / "results.jsonl", [record(name, 0.9) for name in names])
    lines = formats.latex(accuracy_table(load_results([path]), "client_mean")).splitlines()
    assert [line.strip().partition(" & ")[0] for line in lines[-6:-3]] == list(names.values())


def test_csv_is_exact(small):
    rows = list(csv.DictReader(io.StringIO(formats.comma_separated(load_results([small]), "worst_decile"))))
    assert len(rows) == 9
    afl = next(row for row in rows if row["method"] == "afl" and row["clients"] == "10" and row["partition"] != "iid")
    assert afl == {
        "method": "afl", "reference": "false", "data": "digits", "backbone": "", "clients": "10",
        "partition": "dirichlet:0.1", "test": "local", "test_fraction": "", "samples": "", "label_column": "",
        "client_column": "", "shift": "", "metric": "worst_decile", "mean": "80.5000", "sd": "0.7071", "seeds": "2",
        "failed": "0", "rank": "1", "bytes_up": "", "bytes_down": "", "cpu_clients": "",
        "cpu_server": "", "peak_memory": "",
    }  # fmt: skip
    failed = next(row for row in rows if row["method"] == "third" and row["partition"] == "iid")
    assert (failed["mean"], failed["failed"]) == ("", "1")


def test_costs_are_means_of_what_was_written(tmp_path):
    costs = {
        "up": [1000, 3000],
        "down": [512, 512],
        "cpu_seconds": {"clients": 1.5, "server": 0.02},
        "peak_memory": 5e7,
    }
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9, **costs), record("afl", 0.9, seed=1, **costs)])
    table = cost_table(load_results([path]))
    assert [entry.text for entry in table.rows[0]] == ["afl", "2.00 kB", "512 B", "1.5", "0.02", "50 MB"]


def test_terminal_marks_best_and_second(small):
    output = report(small).output
    assert "90.50 ± 0.71" in output
    assert "Accuracy in % (mean of the clients' accuracies)" in output
    drawn = formats.terminal(accuracy_table(load_results([small]), "client_mean"))
    first = list(drawn.columns[1].cells)
    assert [cell.style for cell in first] == ["", "bold", "underline", ""]


def test_a_wide_table_comes_in_parts(small):
    parts = accuracy_table(load_results([small]), "client_mean").split()
    assert [(part.spans, len(part.rows), len(part.rows[0])) for part in parts] == [
        ([("10 clients", 2)], 4, 3),
        ([("50 clients", 1)], 4, 2),
    ]


@pytest.mark.parametrize("format_", ["markdown", "latex", "csv", "html"])
def test_formats_are_printed(small, format_):
    assert "90.50" in report(small, "--format", format_, "--metric", "client_mean").output


def test_markup_in_names_stays_text(tmp_path):
    path = write(tmp_path / "results.jsonl", [record("[bold]a|b</script>", 0.9)])
    assert "[bold]a|b</script>" in report(path).output
    assert r"\[bold\]a\|b\</script\>" in report(path, "--format", "markdown").output


def test_damaged_lines_are_named_and_the_rest_is_kept(tmp_path):
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9)])
    good = path.read_text()
    wrong = json.dumps({"kind": "run", "method": "afl", "settings": 3})
    path.write_text(f"{good}{good[:50]}\n[]\n{wrong}\n{json.dumps({'kind': 'run'})}\n{good[:80]}")
    results = load_results([path])
    assert len(results.runs) == 1
    assert [damage.line for damage in results.damaged] == [2, 3, 4, 5, 6]
    output = report(path).output
    assert "line 6: half-written: not JSON (80 bytes); left out" in output
    assert "90.00" in output
    assert "results.jsonl, line 3: not a JSON object" in report(path, "--format", "html").output


def test_nothing_to_report_is_an_error(tmp_path):
    (tmp_path / "results.jsonl").write_text("[]\n")
    with pytest.raises(JournalError, match="line 1: not a JSON object"):
        load_results([tmp_path / "results.jsonl"])


@pytest.mark.parametrize("field", sorted(next(iter(r for r in comparison(seeds=1) if r["kind"] == "run"))))
def test_results_of_a_version_without_a_field_still_load(tmp_path, field):
    records = list(comparison(methods=3, clients=(5,), alphas=(1.0,), seeds=2, rounds=4))
    path = write(tmp_path / "results.jsonl", [{k: v for k, v in r.items() if k != field} for r in records])
    if field == "method":
        with pytest.raises(JournalError):
            load_results([path])
        return
    results = load_results([path])
    assert len(results.runs) == (3 if field == "seed" else 6)
    for format_ in ("terminal", "markdown", "latex", "csv", "html"):
        assert report(path, "--format", format_).exit_code == 0
    assert list(plots.draw(results, "client_mean"))


def test_a_repeated_run_counts_once_and_the_good_one_wins(tmp_path):
    failed = record("afl", 0.1, status="failed", error="boom")
    path = write(tmp_path / "results.jsonl", [failed, record("afl", 0.9), failed])
    (run,) = load_results([path]).runs
    assert run.accuracy["client_mean"] == 0.9


def test_several_files_are_one_report(tmp_path):
    one = write(tmp_path / "a" / "results.jsonl", [record("afl", 0.9)])
    two = write(
        tmp_path / "b" / "results.jsonl", [record("local", 0.8), record("afl", 0.7, data="mnist", key="another")]
    )
    table = accuracy_table(load_results([one, two]), "client_mean")
    assert table.spans == [("digits, 10 clients", 1), ("mnist, 10 clients", 1)]
    assert [row[0].text for row in table.rows] == ["afl", "local"]
    assert report(tmp_path / "a", tmp_path / "b").output == report(one, two).output  # the folders will do, too


@pytest.mark.parametrize(
    ("field", "values", "heads"),
    [
        ("samples", (None, 300), ["all samples, 10 clients", "300 samples, 10 clients"]),
        ("label_column", (None, "kind"), ["usual label, 10 clients", "label kind, 10 clients"]),
        ("client_column", (None, "site"), ["10 clients", "clients by site, 10 clients"]),
        ("shift", (None, "camera:1"), ["no shift, 10 clients", "shift camera:1, 10 clients"]),
        ("test_fraction", (0.2, 0.5), ["20 % held back, 10 clients", "50 % held back, 10 clients"]),
    ],
)
def test_different_experiments_have_columns_of_their_own(tmp_path, field, values, heads):
    runs = [record("afl", 0.9 - i / 10, key=str(i), **{field: value}) for i, value in enumerate(values)]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    table = accuracy_table(results, "client_mean")
    assert [text for text, _ in table.spans] == heads
    assert [entry.text for entry in table.rows[0]] == ["afl", "90.00", "80.00"]
    rows = list(csv.DictReader(io.StringIO(formats.comma_separated(results, "client_mean"))))
    assert [row[field] for row in rows] == ["" if value is None else str(value) for value in values]


def test_a_label_of_several_methods_is_extended_by_what_differs(tmp_path):
    def named(label, method, accuracy, seed=0, **about):
        key = f"{method} {seed} {about}"
        return record(label, accuracy, seed=seed, **about) | {"method": method, "key": key}

    runs = [
        named("centralised", "centralised", 0.9, reference=True, settings={"ridge": 0}),
        named("centralised", "centralised", 0.8, reference=True, settings={"ridge": 1000.0}),
        named("mine", "local", 0.7, settings={"ridge": 0.001, "deep": True}),
        named("mine", "local", 0.6, settings={"ridge": 1000, "deep": True}),
        named("mine", "local", 0.5, settings={"ridge": 1000.0, "deep": True}, seed=1),
        named("two", "afl", 0.4, settings={"gamma": 1}),
        named("two", "local", 0.3, settings={"ridge": 1}),
        named("few", "afl", 0.2, require="all"),
        named("few", "afl", 0.1, require=0.5),
    ]
    table = accuracy_table(load_results([write(tmp_path / "results.jsonl", runs)]), "client_mean")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["centralised (ridge=0) (reference)", "90.00"],
        ["centralised (ridge=1000) (reference)", "80.00"],
        ["mine (ridge=0.001)", "70.00"],
        ["mine (ridge=1000)", "55.00 ± 7.07"],
        ["two (afl)", "40.00"],
        ["two (local)", "30.00"],
        ["few (require=all)", "20.00"],
        ["few (require=0.5)", "10.00"],
    ]


def test_values_that_are_tables_are_text_in_sweeps(tmp_path):
    runs = [record(f"afl {i}", 0.9, settings={"layers": {"a": i}}) | {"method": "afl"} for i in (1, 2)]
    (sweep,) = sweeps(load_results([write(tmp_path / "results.jsonl", runs)]))
    assert list(sweep.values) == ["{'a': 1}", "{'a': 2}"]


def test_numbers_that_are_not_json_damage_their_line_only(tmp_path):
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9), record("local", float("nan"))])
    results = load_results([path])
    assert [run.label for run in results.runs] == ["afl"]
    assert [(damage.line, damage.reason[:8]) for damage in results.damaged] == [(2, "not JSON")]
    assert report(path, "--format", "html").exit_code == 0


def test_sweeps_change_one_hyper_parameter_only(tmp_path):
    def swept(gamma, ri, accuracy):
        return record(f"afl {gamma} {ri}", accuracy, settings={"gamma": gamma, "ri": ri}) | {"method": "afl"}

    path = write(tmp_path / "results.jsonl", [swept(1, False, 0.9), swept(10, False, 0.8), swept(5, True, 0.7)])
    (sweep,) = sweeps(load_results([path]))
    assert (sweep.parameter, list(sweep.values)) == ("gamma", [1, 10])
    ((_, rest),) = sweep.curves
    assert rest == "ri=false"


def test_no_two_methods_look_the_same():
    labels = [f"method {i}" for i in range(40)]
    chosen = looks([*labels, "centralised"], ["centralised"])
    assert len(set(chosen.values())) == len(labels) + 1


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
    assert "gamma = 0.1, 1, 10, 100. 10 clients, α = 0.1: 90.0, 89.9, 89.0, 80.0" in told
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
    assert "mixing, 10 clients, α = 0.1: 5 clients, off the diagonal 0.001 to 0.002, on it 0.8 to 0.8" in told
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["mixing\n10 clients, α = 0.1", "mixing\n10 clients, IID"]
    for axes in panels:
        (image,) = axes.get_images()
        assert (image.get_clim(), image.colorbar.extend) == ((0.001, 0.002), "max")
        assert [text.get_text() for text in axes.get_yticklabels()] == names
    plain = load_results([write(tmp_path / "plain.jsonl", runs[-2:])])
    assert "matrix-aggregation-weights" not in {name for name, _, _ in plots.draw(plain, "client_mean")}


@pytest.mark.parametrize("values", [[], [[]], [[1, 2], [3]], [[1, 2, 3]] * 3, [["a"]], 3])
def test_what_is_no_matrix_damages_its_line_only(tmp_path, values):
    wrong = record("mixing", 0.9, matrices={"weights": {"clients": ["a", "b"], "values": values}})
    results = load_results([write(tmp_path / "results.jsonl", [record("afl", 0.9), wrong])])
    assert [run.label for run in results.runs] == ["afl"]
    assert [damage.line for damage in results.damaged] == [2]


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
    assert "plots need the 'plot' extra" in result.output
    assert (tmp_path / "out" / "table.tex").exists()
