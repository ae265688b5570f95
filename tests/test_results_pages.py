"""README and the pages of docs match the records, by `tools/results.py`."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import fedgram as fg
from fedgram.experiments.results import load_results
from support.command import run as fedgram

ROOT = Path(__file__).parent.parent


def _tool():
    spec = importlib.util.spec_from_file_location("results_tool", ROOT / "tools" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = _tool()

TABLE = {
    "name": "one",
    "metric": "pooled",
    "columns": [{"name": "α = 0.1", "partition": "dirichlet:0.1"}, {"name": "IID", "partition": "iid"}],
}


def record_of(label="FedAvg", seed=0, partition="dirichlet:0.1", pooled=0.5, **more):
    record = {"method": "fedavg", "label": label, "key": f"{label}{seed}{partition}{more}", "data": "digits"}
    record |= {"partition": partition, "seed": seed, "accuracy": {"pooled": pooled, "client_mean": pooled}}
    return record | more


@pytest.fixture
def runs(tmp_path):
    def loaded(*records):
        path = tmp_path / "some.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return load_results([path]).runs

    return loaded


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"][2:]


def built(runs, *rows, **changes):
    return tool.build(TABLE | {"rows": list(rows)} | changes, runs)


def test_pages_are_what_the_records_make_of_them():
    assert [path.name for path in tool.out_of_date()] == []


def test_every_record_has_the_line_of_the_most_frequent_class():
    assert tool.without_baseline() == [], "run `python tools/results.py baselines`"


def test_every_table_of_results_in_readme_and_docs_is_made_of_records():
    """Figures in %, seconds or bytes that stand in no generated table have no records behind them."""
    for path in (ROOT / "README.md", *(ROOT / "docs" / "results").glob("*.md")):
        if path.name in ("speed.md", "inference.md"):
            continue  # `make bench` and examples/compare_inference.py print the figures of these pages
        text = tool.MARKER.sub("", path.read_text(encoding="utf-8"))
        rows = [line for line in text.splitlines() if line.startswith("|") and re.search(r"\d\d\.\d\d", line)]
        assert rows == [], path.name


def test_a_cell_has_ours_the_papers_and_the_difference(runs):
    found = runs(record_of(pooled=0.5), record_of(partition="iid", pooled=0.61234))
    text = built(found, {"name": "FedAvg", "label": "FedAvg", "paper": [52, ""]})
    assert rows_of(text) == [["FedAvg", "50.00 (52.00, -2.00)", "61.23"]]
    assert "digits, all samples; seed 0;" in text


def test_seeds_are_averaged(runs):
    found = runs(record_of(pooled=0.5), record_of(seed=1, pooled=0.6))
    assert rows_of(built(found, {"name": "FedAvg", "label": "FedAvg"}))[0][1] == "55.00 ± 7.07"


def test_what_was_not_run_shows_the_papers_figure_alone():
    text = built([], {"name": "FedAvg", "label": "FedAvg", "paper": [52, ""]}, command="fedgram compare x.toml")
    assert rows_of(text) == [["FedAvg", "– (52.00)", "–"]]
    assert "not run yet: `fedgram compare x.toml`" in text


def test_a_run_that_failed_is_not_passed_over(runs):
    found = runs(record_of(status="failed", error="diverged", accuracy=None))
    assert rows_of(built(found, {"name": "FedAvg", "label": "FedAvg", "paper": [52, ""]}))[0][1] == "failed (52.00)"


def test_a_seed_that_failed_among_others_is_told(runs):
    bad = record_of(seed=2, status="failed", error="diverged", accuracy=None)
    found = runs(record_of(pooled=0.5), record_of(seed=1, pooled=0.6), bad)
    row = {"name": "FedAvg", "label": "FedAvg", "paper": [54, ""]}
    assert rows_of(built(found, row))[0][1] == "55.00 ± 7.07, 1 more failed (54.00, +1.00)"


def test_the_best_round_is_compared_where_the_paper_reports_it(runs):
    found = runs(record_of(pooled=0.5, rounds={"pooled": [0.4, 0.62, 0.5]}))
    row = {"name": "FedAvg", "label": "FedAvg", "paper": [60, ""]}
    assert rows_of(built(found, row, round="both"))[0][1] == "50.00 / 62.00 (60.00, +2.00)"
    assert rows_of(built(found, row, round="best"))[0][1] == "62.00 (60.00, +2.00)"


def test_records_of_an_earlier_revision_are_told(runs):
    row = {"name": "FedHiP", "label": "FedHiP"}
    for revision, told in ((fg.FedHiP.revision, False), (fg.FedHiP.revision - 1, True)):
        text = built(runs(record_of("FedHiP", method="fedhip", revision=revision)), row)
        assert ("- Computed by an earlier revision of `fedhip`." in text) is told


def test_a_large_difference_needs_a_sentence(runs):
    found, row = runs(record_of(pooled=0.5)), {"name": "FedAvg", "label": "FedAvg", "paper": [53.1, ""]}
    for compare in (True, False):
        with pytest.raises(SystemExit, match=r"FedAvg, α = 0.1 is -3.10 points from the paper: say why"):
            built(found, row, compare=compare)
    assert built(found, row | {"why": "other features."}).endswith("\n- FedAvg: other features.\n")


def test_a_reason_explains_its_rows_and_columns_alone(runs):
    found = runs(record_of(pooled=0.5), record_of(partition="iid", pooled=0.6))
    row = {"name": "FedAvg", "label": "FedAvg", "paper": [54, 64]}
    first, second = TABLE["columns"]
    with pytest.raises(SystemExit, match="FedAvg, IID is -4.00 points"):
        built(found, row, columns=[first | {"why": "few images."}, second])
    with pytest.raises(SystemExit, match=r"FedAvg, α = 0.1 is -4.00 points"):
        built(found, row, reasons=[{"rows": ["FedAvg"], "columns": ["IID"], "why": "few images."}])
    text = built(found, row, reasons=[{"columns": ["α = 0.1", "IID"], "why": "few images."}])
    assert text.endswith("\n- few images.\n")
    for wrong, said in (
        ({"why": "few images."}, "a reason belongs to a row, a column"),
        ({"reasons": [{"why": "few images."}]}, "names rows, columns or both"),
        ({"reasons": [{"rows": ["FedProx"], "why": "few images."}]}, "'FedProx', which is not a row or column"),
    ):
        with pytest.raises(SystemExit, match=said):
            built(found, row, **wrong)


@pytest.mark.parametrize(("figures", "far"), [([0.5, 0.502, 0.504], True), ([0.49, 0.502, 0.514], False)])
def test_seeds_that_agree_on_a_smaller_difference_need_a_reason_too(runs, figures, far):
    found = runs(*(record_of(seed=seed, pooled=value) for seed, value in enumerate(figures)))
    row = {"name": "FedAvg", "label": "FedAvg", "paper": [52, ""]}
    if far:
        with pytest.raises(SystemExit, match="is -1.80 points from the paper"):
            built(found, row)
    else:
        assert built(found, row)
    assert built(found[:2], row)


def test_costs_that_differ_by_more_than_a_fifth_need_a_reason(runs):
    found = runs(record_of(cpu_seconds={"clients": 10}))
    row = {"name": "FedAvg", "label": "FedAvg", "metric": "cpu"}
    assert "10 (12)" in built(found, row | {"paper": [12, ""]}, compare=False)
    with pytest.raises(SystemExit, match="is -3 from the paper"):
        built(found, row | {"paper": [13, ""]}, compare=False)


PAIR = [{"name": "a", "label": "a", "paper": [52, ""]}, {"name": "b", "label": "b", "paper": [50, ""]}]


def test_another_order_than_the_papers_needs_a_reason(runs):
    found = runs(record_of("a", pooled=0.5), record_of("b", pooled=0.51))
    for compare in (True, False):
        with pytest.raises(SystemExit, match=r"a and b are not in the paper's order in α = 0.1: say why"):
            built(found, *PAIR, compare=compare)
    first, second = TABLE["columns"]
    with pytest.raises(SystemExit, match="order"):
        built(found, *PAIR, columns=[first | {"why": "this is about figures."}, second])
    assert "- Order (α = 0.1): luck." in built(found, *PAIR, columns=[first | {"order": "luck."}, second])
    assert "- Order (a): luck." in built(found, PAIR[0] | {"order": "luck."}, PAIR[1])


@pytest.mark.parametrize("other", [[0.503], [0.53, 0.49]])
def test_methods_that_are_as_good_as_equal_have_no_order(runs, other):
    """Within 0.3 points, or a standard deviation over seeds."""
    found = runs(record_of("a", pooled=0.5), *(record_of("b", seed=s, pooled=v) for s, v in enumerate(other)))
    assert built(found, *PAIR)


def test_the_place_of_the_papers_best_is_told(runs):
    found = runs(*(record_of(name, pooled=value) for name, value in (("a", 0.5), ("b", 0.52), ("c", 0.51))))
    rows = [{"name": name, "label": name, "paper": [figure, ""]} for name, figure in (("a", 53), ("b", 52), ("c", 50))]
    text = built(found, *rows, reasons=[{"rows": ["a"], "order": "other data."}])
    assert "- The paper's best of 3 rows is a; here it is 3rd.\n- Order (a): other data.\n" in text


def test_ratios_to_another_row(runs):
    costs = {"a": 10.0, "b": 2.0}
    found = runs(
        *(record_of(name, cpu_seconds={"clients": s}, rounds={"pooled": [0.5] * 4}) for name, s in costs.items())
    )
    rows = [{"name": name, "label": name} for name in costs] + [{"name": "a, 2 rounds", "label": "a", "rounds": 2}]
    columns = [{"name": "times", "times": "b"}, {"name": "saved", "saved_by": "b"}]
    text = built(found, *rows, columns=columns, metric="cpu")
    assert rows_of(text) == [["a", "5", "80.0"], ["b", "–", "–"], ["a, 2 rounds", "2.5", "60.0"]]
    with pytest.raises(SystemExit, match="there is no row 'c'"):
        built(found, *rows, columns=[{"name": "times", "times": "c"}], metric="cpu")


def test_references_follow_the_rows_and_trivial_figures_are_marked(runs):
    line = {"method": "own most frequent class", "reference": True}
    found = runs(
        record_of("own most frequent class", pooled=0.6, **line),
        record_of("centralised", pooled=0.9, method="centralised", reference=True),
        record_of("local", pooled=0.7, method="local"),
        record_of("a", pooled=0.604),
        record_of("b", pooled=0.61),
    )
    text = built(found, {"name": "a", "label": "a"}, {"name": "b", "label": "b"})
    assert rows_of(text) == [
        ["a", "60.40 †", "–"],
        ["b", "61.00", "–"],
        ["*centralised*", "90.00", "–"],
        ["*local*", "70.00", "–"],
        ["*own most frequent class*", "60.00", "–"],
    ]
    assert text.endswith("- † at most 0.5 points above always predicting the client's own most frequent class.\n")
    assert "*local*" not in built(found, {"name": "alone", "label": "local"})
    ridge = record_of("local, ridge 1", pooled=0.65, method="local", settings={"ridge": 1})
    others = runs(ridge, record_of("a", pooled=0.7))
    assert rows_of(built(others, {"name": "a", "label": "a"}))[1:] == [["*local, ridge 1*", "65.00", "–"]]
    both = runs(ridge, record_of("local", pooled=0.7, method="local"), record_of("a", pooled=0.7))
    assert rows_of(built(both, {"name": "a", "label": "a"}))[1:] == [["*local*", "70.00", "–"]]
    assert rows_of(built(found, {"name": "a", "label": "a", "partition": "dirichlet:0.1"}))[1:] == []


def test_references_of_several_settings_in_one_column_are_told_apart(runs):
    line = {"method": "own most frequent class", "reference": True}
    lines = [record_of("own most frequent class", pooled=0.1 * n, samples=100 * n, **line) for n in (1, 2)]
    found = runs(*lines, *(record_of(f"a{n}", pooled=0.5, samples=100 * n) for n in (1, 2)))
    text = built(found, *({"name": f"a{n}", "label": f"a{n}"} for n in (1, 2)), columns=[{"name": "end"}])
    assert rows_of(text)[2:] == [
        ["*own most frequent class, 100 samples*", "10.00"],
        ["*own most frequent class, 200 samples*", "20.00"],
    ]


def test_missing_lines_of_the_most_frequent_class_are_computed_from_labels(tmp_path):
    out = tmp_path / "small"
    fedgram("compare", "--data", "digits", "--clients", "4", "--methods", "afl", "--out", out)
    (whole,) = (run for run in load_results([out / "results.jsonl"]).runs if run.is_trivial)
    kept = tool.keep(out, tmp_path)
    assert whole.key in {run.key for run in load_results([kept]).runs}
    assert tool.add_baselines(tmp_path) == 0
    kept.write_text("".join(line for line in kept.read_text().splitlines(True) if "most frequent" not in line))
    assert tool.add_baselines(tmp_path) == 1
    (found,) = load_results([tmp_path / "most-frequent-class.jsonl"]).runs
    assert (found.key, found.column, found.seed) == (whole.key, whole.column, whole.seed)
    assert found.accuracy == pytest.approx(whole.accuracy, abs=1e-6)
    assert tool.add_baselines(tmp_path) == 0


def test_rows_choose_by_hyper_parameters_too(runs):
    found = runs(record_of("a", settings={"lr": 0.1}, pooled=0.5), record_of("b", settings={"lr": 1.0}, pooled=0.6))
    text = built(found, {"name": "0.1", "lr": 0.1}, {"name": "1", "lr": 1})
    assert [row[1] for row in rows_of(text)] == ["50.00", "60.00"]
    with pytest.raises(SystemExit, match=r"several runs of one seed \(a, b\): say more"):
        built(found, {"name": "any", "method": "fedavg"})


def test_a_row_needs_a_figure_for_each_column():
    with pytest.raises(SystemExit, match="1 figures for 2 columns"):
        built([], {"name": "FedAvg", "paper": [1]})


@pytest.mark.parametrize("what", ["rows", "columns"])
def test_rows_and_columns_have_names_of_their_own(what):
    table = {"name": "t", "columns": [{"name": "x"}], "rows": [{"name": "a"}]}
    table[what] = table[what] * 2
    with pytest.raises(SystemExit, match=f"two {what} are called"):
        tool.build(table, [])


def test_costs_to_reach_an_accuracy(runs):
    record = record_of(pooled=0.8, up=[3_000_000, 1_000_000], down=[0, 0], cpu_seconds={"clients": 10, "server": 2})
    found = runs(record | {"rounds": {"client_mean": [0.3, 0.5, 0.6, 0.8]}})
    row = {"name": "FedAvg", "label": "FedAvg", "reach": 50}
    for metric, value in {"rounds_to": "2", "traffic_to": "1", "cpu_to": "6", "kib_a_round": "488"}.items():
        assert rows_of(built(found, row, metric=metric))[0][1] == value
    assert rows_of(built(found, row | {"reach": 90}, metric="cpu_to"))[0][1] == "–"


def test_the_caption_names_the_metrics_of_the_cells_alone(runs):
    columns = [{"name": "%", "metric": "worst_decile"}, {"name": "s", "metric": "cpu"}]
    text = built(runs(record_of()), {"name": "FedAvg", "label": "FedAvg"}, columns=columns)
    assert text.startswith("*Mean accuracy of the worst tenth of the clients in %; CPU seconds of all clients and the ")


def test_accuracies_after_a_round(runs):
    """A run that ended before has none."""
    found = runs(record_of(rounds={"pooled": [0.25, 0.75]}, pooled=0.75))
    columns = [{"name": f"round {number}", "round": number} for number in (1, 2, 3)]
    text = built(found, {"name": "FedAvg", "label": "FedAvg"}, columns=columns)
    assert rows_of(text) == [["FedAvg", "25.00", "75.00", "–"]]


def test_costs_of_a_round_and_of_a_client(runs):
    """Bytes are of a client that takes part; without a count of these, of all."""
    timing = {"computing": 3.0, "idle": 1.0, "communication": 0.5, "asked": 3.0}
    costs = {"up": [3072], "down": [3072], "cpu_seconds": {"clients": 20.0}, "rounds": {"pooled": [0.1] * 4}}
    found = runs(record_of(timing=timing, **costs), record_of("earlier", **costs))
    metrics = ["kib_a_round", "cpu_a_round", "client_seconds_a_round", "computing", "idle", "communication"]
    columns = [{"name": metric, "metric": metric} for metric in metrics]
    rows = [{"name": name, "label": name} for name in ("FedAvg", "earlier")]
    assert rows_of(built(found, *rows, columns=columns)) == [
        ["FedAvg", "2", "5", "1.5", "3", "1", "0.5"],
        ["earlier", "1.5", "5", "–", "–", "–", "–"],
    ]


def test_a_page_and_its_tables_must_agree(tmp_path):
    def out_of_date():
        return tool.out_of_date(tmp_path / "data", [page])

    (tmp_path / "data").mkdir()
    page = tmp_path / "page.md"
    page.write_text("# One\n\n<!-- table: one -->\nold\n<!-- /table -->\n\nafter\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="asks for the table 'one'"):
        out_of_date()
    described = '[[tables]]\nname = "one"\ncolumns = [{ name = "c" }]\nrows = [{ name = "r", paper = [5] }]\n'
    (tmp_path / "data" / "one.toml").write_text(described, encoding="utf-8")
    text = out_of_date()[page]
    assert "| r | – (5.00) |\n\n<!-- /table -->\n\nafter\n" in text
    page.write_text(text, encoding="utf-8")
    assert out_of_date() == {}
    page.write_text("# Nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no page shows the table 'one'"):
        out_of_date()


def test_kept_records_are_added_to_and_the_newest_result_of_a_run_counts(tmp_path):
    target = tmp_path / "some.jsonl"

    def kept():
        return [(record["key"], record["seconds"]) for record in map(json.loads, target.read_text().splitlines())]

    first = [record_of(key=key, seconds=1, finished="2026-01-01T00:00:00+00:00") for key in "ab"]
    tool.add(first, target)
    tool.add(
        [record_of(key="c", seconds=2), record_of(key="a", seconds=2, finished="2026-01-02T00:00:00+00:00")], target
    )
    assert kept() == [("a", 2), ("b", 1), ("c", 2)], "each keeps its place"
    tool.add(first, target)
    assert kept() == [("a", 2), ("b", 1), ("c", 2)], "an older record replaces none"
    failed = {"status": "failed", "error": "diverged", "finished": "2026-01-03T00:00:00+00:00"}
    tool.add([record_of(key=key, seconds=3, **failed) for key in "bd"], target)
    assert kept() == [("a", 2), ("b", 1), ("c", 2), ("d", 3)], "a failure replaces no result"
    tool.add([record_of(key="d", seconds=4)], target)
    assert kept()[-1] == ("d", 4)
    with target.open("a") as stream:
        stream.write('{"kind":"ru')
    with pytest.raises(SystemExit, match="some.jsonl, line 5: half-written"):
        tool.add(first, target)


def test_a_comparison_is_kept_slim_and_can_still_be_reported(tmp_path):
    out = tmp_path / "small"
    options = ["--data", "digits", "--samples", "300", "--clients", "4", "--methods", "afl,fedavg"]
    fedgram("compare", *options, "--set", "fedavg.rounds=3", "--out", out)
    kept = tool.keep(out, tmp_path)
    assert kept == tmp_path / "small.jsonl"
    assert kept.stat().st_size < (out / "results.jsonl").stat().st_size / 2
    whole, slim = load_results([out / "results.jsonl"]).runs, load_results([kept]).runs
    for before, after in zip(whole, slim, strict=True):
        assert (after.key, after.label, after.column) == (before.key, before.label, before.column)
        assert after.settings == before.settings
        assert after.accuracy == pytest.approx(before.accuracy, abs=1e-6)
        assert after.bytes_per_client == pytest.approx(before.bytes_per_client, abs=1) or after.reference
        assert after.rounds == {
            name: pytest.approx(curve, abs=1e-4) for name, curve in before.rounds.items() if name != "worst_decile"
        }
