"""The pages of docs/results are what `tools/results.py` makes of the records beside them."""

import importlib.util
import json
from pathlib import Path

import pytest

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


def test_a_cell_has_ours_the_papers_and_the_difference(runs):
    found = runs(record_of(pooled=0.5), record_of(partition="iid", pooled=0.61234))
    text = built(found, {"name": "FedAvg", "label": "FedAvg", "paper": [52, ""]})
    assert rows_of(text) == [["FedAvg", "50.00 (52.00, -2.00)", "61.23"]]
    assert "digits, all samples; seed 0;" in text


def test_seeds_are_averaged(runs):
    found = runs(record_of(pooled=0.5), record_of(seed=1, pooled=0.6))
    assert rows_of(built(found, {"name": "FedAvg", "label": "FedAvg"}))[0][1] == "55.00 ± 7.07"


def test_what_was_not_run_shows_the_papers_figure_alone():
    text = built([], {"name": "FedAvg", "label": "FedAvg", "paper": [52, ""]})
    assert rows_of(text) == [["FedAvg", "– (52.00)", "–"]]
    assert "not run yet" in text


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


def test_a_large_difference_needs_a_sentence(runs):
    found, row = runs(record_of(pooled=0.5)), {"name": "FedAvg", "label": "FedAvg", "paper": [53.1, ""]}
    with pytest.raises(SystemExit, match="-3.10 points from the paper: say why"):
        built(found, row)
    assert built(found, row | {"why": "other features."}).endswith("\n- FedAvg: other features.\n")
    assert built(found, row, compare=False)


def test_rows_choose_by_hyper_parameters_too(runs):
    found = runs(record_of("a", settings={"lr": 0.1}, pooled=0.5), record_of("b", settings={"lr": 1.0}, pooled=0.6))
    text = built(found, {"name": "0.1", "lr": 0.1}, {"name": "1", "lr": 1})
    assert [row[1] for row in rows_of(text)] == ["50.00", "60.00"]
    with pytest.raises(SystemExit, match=r"several runs of one seed \(a, b\): say more"):
        built(found, {"name": "any", "method": "fedavg"})


def test_a_row_needs_a_figure_for_each_column():
    with pytest.raises(SystemExit, match="1 figures for 2 columns"):
        built([], {"name": "FedAvg", "paper": [1]})


def test_costs_to_reach_an_accuracy(runs):
    record = record_of(pooled=0.8, up=[3_000_000, 1_000_000], down=[0, 0], cpu_seconds={"clients": 10, "server": 2})
    found = runs(record | {"rounds": {"client_mean": [0.3, 0.5, 0.6, 0.8]}})
    row = {"name": "FedAvg", "label": "FedAvg", "reach": 50}
    for metric, value in {"rounds_to": "2", "traffic_to": "1", "cpu_to": "6", "kib_a_round": "488"}.items():
        assert rows_of(built(found, row, metric=metric))[0][1] == value
    assert rows_of(built(found, row | {"reach": 90}, metric="cpu_to"))[0][1] == "–"


def test_the_caption_names_the_metrics_of_the_cells_alone(runs):
    columns = [{"name": "%", "metric": "worst_decile"}, {"name": "s", "metric": "seconds"}]
    text = built(runs(record_of()), {"name": "FedAvg", "label": "FedAvg"}, columns=columns)
    assert text.startswith("*Mean accuracy of the worst tenth of the clients in %; seconds, without evaluations; dig")


def test_accuracies_after_a_round(runs):
    """A run that ended before has none."""
    found = runs(record_of(rounds={"pooled": [0.25, 0.75]}, pooled=0.75))
    columns = [{"name": f"round {number}", "round": number} for number in (1, 2, 3)]
    text = built(found, {"name": "FedAvg", "label": "FedAvg"}, columns=columns)
    assert rows_of(text) == [["FedAvg", "25.00", "75.00", "–"]]


def test_costs_of_a_round_and_of_a_client(runs):
    """Bytes are of a client that takes part; without a count of these, of all."""
    timing = {"computing": 3.0, "idle": 1.0, "communication": 0.5, "asked": 3.0}
    costs = {"up": [3072], "down": [3072], "seconds": 20.0, "rounds": {"pooled": [0.1] * 4}}
    found = runs(record_of(timing=timing, **costs), record_of("earlier", **costs))
    metrics = ["kib_a_round", "seconds_a_round", "client_seconds_a_round", "computing", "idle", "communication"]
    columns = [{"name": metric, "metric": metric} for metric in metrics]
    rows = [{"name": name, "label": name} for name in ("FedAvg", "earlier")]
    assert rows_of(built(found, *rows, columns=columns)) == [
        ["FedAvg", "2", "5", "1.5", "3", "1", "0.5"],
        ["earlier", "1.5", "5", "–", "–", "–", "–"],
    ]


def test_a_page_and_its_tables_must_agree(tmp_path):
    (tmp_path / "data").mkdir()
    page = tmp_path / "page.md"
    page.write_text("# One\n\n<!-- table: one -->\nold\n<!-- /table -->\n\nafter\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="asks for the table 'one'"):
        tool.out_of_date(tmp_path)
    described = '[[tables]]\nname = "one"\ncolumns = [{ name = "c" }]\nrows = [{ name = "r", paper = [5] }]\n'
    (tmp_path / "data" / "one.toml").write_text(described, encoding="utf-8")
    text = tool.out_of_date(tmp_path)[page]
    assert "| r | – (5.00) |\n\n<!-- /table -->\n\nafter\n" in text
    page.write_text(text, encoding="utf-8")
    assert tool.out_of_date(tmp_path) == {}
    page.write_text("# Nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no page shows the table 'one'"):
        tool.out_of_date(tmp_path)


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
