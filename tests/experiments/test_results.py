"""Results on disk that are old, damaged, repeated, or in several files."""

import json

import pytest

from fedgram.core.errors import JournalError
from fedgram.experiments.results import load_results
from fedgram.report import plots
from fedgram.report.result_tables import accuracy_table
from support.made_up import comparison, write
from support.report import record, report


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


def test_numbers_that_are_not_json_damage_their_line_only(tmp_path):
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9), record("local", float("nan"))])
    results = load_results([path])
    assert [run.label for run in results.runs] == ["afl"]
    assert [(damage.line, damage.reason[:8]) for damage in results.damaged] == [(2, "not JSON")]
    assert report(path, "--format", "html").exit_code == 0


@pytest.mark.parametrize("values", [[], [[]], [[1, 2], [3]], [[1, 2, 3]] * 3, [["a"]], 3])
def test_what_is_no_matrix_damages_its_line_only(tmp_path, values):
    wrong = record("mixing", 0.9, matrices={"weights": {"clients": ["a", "b"], "values": values}})
    results = load_results([write(tmp_path / "results.jsonl", [record("afl", 0.9), wrong])])
    assert [run.label for run in results.runs] == ["afl"]
    assert [damage.line for damage in results.damaged] == [2]
