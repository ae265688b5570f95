"""Tables from results on disk, to the letter and in every format."""

import csv
import io
import re
from statistics import stdev

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import InvalidParameter
from fedgram.experiments.results import load_results
from fedgram.report import formats
from fedgram.report.result_tables import UNTESTED_NOTE, accuracy_table, cost_table, round_table, time_table
from support.made_up import write
from support.report import record, report


def test_markdown_to_the_letter(small):
    spread = f"{stdev([90, 91]):.2f}"
    assert formats.markdown(accuracy_table(load_results([small]), "client_mean")) == (
        "Accuracy in % (mean of the clients' accuracies) of digits; mean ± standard deviation over 1 to 2 seeds, "
        "without ± one seed. "
        f"{UNTESTED_NOTE}\n\n"
        "|  | 10 clients, α = 0.1 | 10 clients, IID | 50 clients, α = 0.1 |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| centralised (reference) | 95.00 ± 0.00 | – | – |\n"
        f"| afl | <ins>90.50 ± {spread}</ins> | 50.00 | <ins>60.00</ins> |\n"
        "| lo\\_cal & 50% | <ins>82.50 ± 3.54</ins> | – | <ins>60.00</ins> |\n"
        "| third | 70.00 (1 failed) | failed | <ins>55.00</ins> |\n"
    )


@pytest.mark.parametrize(
    ("test", "partition", "words"),
    [
        ("local", "iid", "mean of the clients' accuracies"),
        ("standard", "iid", "on a common test set"),
        ("held-out", "by_group", "on a common test set"),
        ("standard", "by_group", "mean of the clients' accuracies"),  # each client on its own faces, for example
    ],
)
def test_the_caption_says_whose_test_samples_there_are(tmp_path, test, partition, words):
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9, partition=partition, test=test)])
    table = accuracy_table(load_results([path]), "client_mean")
    assert table.caption == f"Accuracy in % ({words}) of digits; one seed."


def test_latex_to_the_letter(small):
    lines = report(small, "--metric", "pooled", "--format", "latex", "--table", "figures").output.splitlines()
    assert lines[2:-2] == [
        r"  \caption{Accuracy in \% (accuracy over all test samples) of digits; "
        rf"mean $\pm$ standard deviation over 1 to 2 seeds, without $\pm$ one seed. {UNTESTED_NOTE}}}",
        r"  \label{tab:figures}",
        r"  \begin{tabular}{lrrr}",
        r"    \toprule",
        r"     & \multicolumn{2}{c}{10 clients} & \multicolumn{1}{c}{50 clients} \\",
        r"    \cmidrule(lr){2-3} \cmidrule(lr){4-4}",
        r"     & $\alpha$ = 0.1 & IID & $\alpha$ = 0.1 \\",
        r"    \midrule",
        r"    centralised (reference) & 94.00 $\pm$ 0.00 & -- & -- \\",
        r"    AFL & \underline{89.50 $\pm$ 0.71} & 49.00 & \underline{59.00} \\",
        r"    lo\_cal \& 50\% & \underline{81.50 $\pm$ 3.54} & -- & \underline{59.00} \\",
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
        "client_column": "", "shift": "", "on_bad": "", "study": "", "columns": "", "drop": "", "test_data": "",
        "decimal": "", "thousands": "", "min_size": "",
        "metric": "worst_decile", "mean": "80.5000", "sd": "0.7071",
        "seeds": "2", "failed": "0", "rank": "1",
        "pairs": "", "difference": "", "p_wilcoxon": "", "p_t": "", "bytes_up": "", "bytes_down": "", "cpu_clients": "",
        "cpu_server": "", "peak_memory": "", "computing_seconds": "", "idle_seconds": "", "communication_seconds": "",
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


def test_the_best_round_is_shown_beside_the_last(tmp_path):
    """Its curve never falls; a method without rounds has its one accuracy."""
    rounds = {"pooled": [0.5, 0.8, 0.7], "client_mean": [0.9, 0.4, 0.6]}
    last = {"pooled": 0.7, "client_mean": 0.6}
    records = [record("gd", 0.6, rounds=rounds) | {"accuracy": last}, record("afl", 0.75)]
    records += [record("tuned", 0.6, rounds={"pooled": [0.1, 0.2]}) | {"accuracy": {"pooled": 0.9}}]
    found = load_results([write(tmp_path / "results.jsonl", records)])
    best, usual = (accuracy_table(found, metric) for metric in ("best_round", "pooled"))
    assert [row[1].text for row in best.rows] == ["80.00", "74.00", "90.00"]
    assert [row[1].text for row in usual.rows] == ["70.00", "74.00", "90.00"]
    assert found.runs[0].rounds["best_round"] == [0.5, 0.8, 0.8]
    output = report(tmp_path / "results.jsonl", "--metric", "best_round", "--format", "markdown").output
    assert "80.00" in output
    assert "in the best round, which is chosen by these samples" in output


def test_costs_of_a_round_count_those_who_take_part(tmp_path):
    """Two clients in four rounds, one asked in all and one in two: 12 kB in six replies."""
    timing = {"computing": 1.5, "idle": 0.5, "communication": 0.25, "asked": 3.0}
    costs = {"up": [6000, 3000], "down": [2000, 1000], "seconds": 10.0, "rounds": {"pooled": [0.1] * 4}}
    records = [record("fedavg", 0.9, timing=timing, **costs), record("afl", 0.9, up=[1], down=[1])]
    path = write(tmp_path / "results.jsonl", records)
    found = load_results([path])
    assert [[entry.text for entry in row] for row in round_table(found).rows] == [["fedavg", "2.00 kB", "2.5"]]
    assert [[entry.text for entry in row] for row in time_table(found).rows] == [
        ["fedavg", "1.5", "0.5", "0.25", "2.25"]
    ]
    together = {name: value for name, value in timing.items() if name != "idle"}
    waits = load_results([write(tmp_path / "together.jsonl", [record("fedavg", 0.9, timing=together, **costs)])])
    assert [[entry.text for entry in row] for row in time_table(waits).rows] == [["fedavg", "1.5", "–", "0.25", "–"]]
    output = report(path).output
    assert "Cost of a round" in output
    assert "Seconds of a client in a run" in output
    [line, _] = csv.DictReader(report(path, "--format", "csv").output.splitlines())
    assert (line["computing_seconds"], line["idle_seconds"], line["communication_seconds"]) == ("1.5", "0.5", "0.25")


def test_terminal_marks_best_and_second(small):
    output = report(small).output
    assert "90.50 ± 0.71" in output
    assert "Accuracy in % (mean of the clients' accuracies)" in output
    drawn = formats.terminal(accuracy_table(load_results([small]), "client_mean"))
    first = list(drawn.columns[1].cells)
    assert [cell.style for cell in first] == ["", "underline", "underline", ""]


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


def test_figures_that_the_most_frequent_class_nearly_has_are_marked(tmp_path):
    line = {"reference": True, "method": "own most frequent class"}
    runs = [
        record("own most frequent class", 0.6, **line),
        record("half a point above", 0.605),
        record("above", 0.606),
        record("below", 0.3),
        record("below", 0.3, partition="iid"),  # where there is no such line
    ]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    table = accuracy_table(results, "client_mean")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["own most frequent class (reference)", "60.00", "–"],
        ["half a point above", "60.50 †", "–"],
        ["above", "60.60", "–"],
        ["below", "30.00 †", "30.00"],
    ]
    assert "† is at most 0.5 points above always predicting" in table.caption
    assert r"30.00 $\dagger$" in formats.latex(table)
    assert "†" not in accuracy_table(load_results([write(tmp_path / "other.jsonl", runs[1:])]), "client_mean").caption


def test_clients_with_few_test_samples_are_counted(tmp_path):
    """Over all seeds of a setting, for figures in which each client counts as much as any other."""
    runs = [
        record("afl", 0.9, correct=[1, 9, 8], tested=[1, 9, 10]),
        record("afl", 0.9, seed=1, correct=[1, 9, 0], tested=[3, 10, 0]),
        record("afl", 0.9, partition="iid", correct=[10, 10], tested=[10, 10]),
        record("afl", 0.9, clients=50, correct=[1, 1], tested=[1, 1]),
    ]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    said = "3 of 5 clients have fewer than 10 test samples and count as much as the others (10 clients, α = 0.1); "
    assert f" {said}2 of 2 (50 clients, α = 0.1)." in accuracy_table(results, "client_mean").caption
    assert "fewer than 10" in accuracy_table(results, "worst_decile").caption
    assert "fewer than 10" not in accuracy_table(results, "pooled").caption
    assert said in report(tmp_path / "results.jsonl", "--format", "markdown").output.replace("\\", "")
    common = [record("afl", 0.9, test="held-out", correct=[5], tested=[5])]
    results = load_results([write(tmp_path / "results.jsonl", common)])
    assert "fewer than 10" not in accuracy_table(results, "client_mean").caption


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ({10: (0, 1), 50: (0, 1)}, "mean ± standard deviation over 2 seeds."),
        ({10: (0,), 50: (0,)}, "; one seed."),
        ({10: (0,), 50: (1,)}, "; one seed each."),
        ({10: (0, 1, 2), 50: (0, 1)}, "mean ± standard deviation over 2 to 3 seeds."),
        ({10: (0, 1), 50: (0,)}, "mean ± standard deviation over 1 to 2 seeds, without ± one seed."),
    ],
)
def test_a_caption_counts_the_seeds_of_each_setting(tmp_path, seeds, said):
    runs = [record("afl", 0.9, clients=clients, seed=seed) for clients, found in seeds.items() for seed in found]
    table = accuracy_table(load_results([write(tmp_path / "results.jsonl", runs)]), "client_mean")
    assert said in table.caption


def test_one_table_at_a_time(small, tmp_path):
    for name, words in (("figures", "Accuracy in %"), ("costs", "Cost of a run")):
        output = report(small, "--table", name, "--format", "markdown").output
        assert words in output
        assert output.count("| --- |") == 1
        assert report(small, "--table", name).output.startswith(words)
        latex = report(small, "--table", name, "--format", "latex").output
        assert latex.count(r"\begin{table}") == latex.count(r"\caption{") == 1
        assert rf"\label{{tab:{name}}}" in latex


def test_every_table_of_a_paper_has_a_label_of_its_own(tmp_path):
    rounds = {"client_mean": [0.5, 0.9], "pooled": [0.5, 0.9]}
    runs = [
        record("fedavg", 0.9, rounds=rounds, up=[1], down=[1], partition=partition, correct=[9] * 9, tested=[10] * 9)
        for partition in ("iid", "dirichlet:1")
    ]
    runs += [record("afl", 0.8, correct=[8] * 9, tested=[10] * 9, partition="iid")]
    path = write(tmp_path / "results.jsonl", runs)
    labels = re.findall(r"\\label\{(.*)\}", report(path, "--format", "latex").output)
    assert labels == [f"tab:{name}" for name in ("figures", "tests", "costs", "reach-1", "reach-2")]
    both = report(path, "--format", "latex", "--table", "reach").output
    assert re.findall(r"\\label\{(.*)\}", both) == ["tab:reach-1", "tab:reach-2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--table", "parties"], "--table: expected one of figures, costs, got parties"),
        (["--table", "costs", "--format", "csv"], "--table: expected --format terminal, markdown or latex"),
        (["--table", "costs", "--out", "x"], "got --out, which writes all tables"),
    ],
)
def test_a_table_that_cannot_be_printed_is_refused(small, options, message):
    with pytest.raises(InvalidParameter, match=message):
        raise CliRunner().invoke(app, ["report", str(small), *options]).exception


def test_latex_has_names_as_people_write_them(tmp_path):
    """Labels of users stay, and so do names that would meet."""
    runs = [
        record("fedgram", 0.9),
        record("afl (gamma=1)", 0.8) | {"method": "afl"},
        record("afl mine", 0.7) | {"method": "local"},
        record("pfedme", 0.6),
        record("PFedHN", 0.6) | {"method": "pfedhn"},
        record("local", 0.5),
        record("Local", 0.5) | {"method": "mine"},
    ]
    path = write(tmp_path / "results.jsonl", runs)
    latex = report(path, "--format", "latex", "--table", "figures").output
    names = [line.split(" & ")[0].strip() for line in latex.splitlines() if line.endswith(r"\\")][2:]
    assert names == ["FedGram", "AFL (gamma=1)", "afl mine", "pFedMe", "PFedHN", "local", "Local"]
    assert "| fedgram |" in report(path, "--format", "markdown").output
