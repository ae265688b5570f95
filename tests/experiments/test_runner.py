"""Running experiments: every run is written down once, with everything about it, also where runs fail."""

import io
import re
import warnings
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pytest
from rich.console import Console

import fedgram as fg
from fedgram.cli.options import watching
from fedgram.core import progress_bars
from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.data import digits
from fedgram.experiments import Experiment, Scenario, finished, runs_of
from fedgram.experiments.results import Matrix, load_results, recorded_matrices
from support.gradual import Fragile, Nobody
from support.runner import SMALL, compare, records, run

pytestmark = pytest.mark.usefixtures("made_up_methods")


def test_a_record_says_everything(tmp_path):
    run(path := tmp_path / "results.jsonl", methods=["afl", {"name": "gradual", "rounds": 3}])
    (setting,) = records(path, "setting")
    reference, afl, gradual = records(path)
    clients = [len(part) for part in fg.partition.iid(1797, clients=4)]
    assert [sum(row) for row in setting["class_counts"]] == [n - round(n / 5) for n in clients]
    assert setting["names"] == ["client-0", "client-1", "client-2", "client-3"]
    assert afl["settings"] == {"gamma": 1.0, "ri": True, "intercept": True}
    assert afl["tested"] == [round(n / 5) for n in clients]
    assert afl["accuracy"]["pooled"] == sum(afl["correct"]) / sum(afl["tested"])
    assert afl["up"][0] > 64 * 65 / 2 * 8
    assert afl["down"][0] > 64 * 10 * 8
    assert afl["cpu_seconds"].keys() == {"clients", "server"}
    assert afl["peak_memory"] is None or afl["peak_memory"] > 10**7
    assert afl["contributors"] == 4
    assert afl["versions"]["numpy"] == np.__version__
    assert afl["versions"].get("torch") == (None if find_spec("torch") is None else version("torch"))
    assert afl["fingerprint"] == setting["fingerprint"] == digits().fingerprint
    assert "rounds" not in afl
    assert len(gradual["rounds"]["client_mean"]) == 3
    assert gradual["rounds"]["pooled"][-1] == pytest.approx(gradual["accuracy"]["pooled"], abs=1e-6)
    assert reference["reference"]
    assert "up" not in reference


def test_matrices_among_the_notes_are_written_down_and_read_again(tmp_path):
    run(path := tmp_path / "results.jsonl", methods=["afl", "telling"])
    _, afl, telling = records(path)
    names = ["client-0", "client-1", "client-2", "client-3"]
    assert "matrices" not in afl
    assert telling["matrices"].keys() == {"weights", "centres"}
    assert telling["matrices"]["weights"] == {
        "clients": names,
        "values": [[0.9, 0.001235, 0, 0], [0, 0.9, 0, 0], [0, 0, 0.9, None], [0, 0, 0, 0.9]],
    }
    assert telling["matrices"]["centres"] == {"values": [[1, 2, 3], [4, 5, 6]]}
    _, nothing, read, _ = load_results([path]).runs
    assert nothing.matrices == {}
    weights = read.matrices["weights"]
    assert (weights.clients, weights.values) == (names, telling["matrices"]["weights"]["values"])
    assert (weights.range, weights.own) == ((0, 0.001235), [0.9] * 4)
    assert (read.matrices["centres"].clients, read.matrices["centres"].range) == ([], (1, 6))


@pytest.mark.parametrize(
    ("size", "contributors", "absent", "named"),
    [
        (3, "abc", {}, "abc"),
        (3, "a", {}, "abc"),  # the others were not chosen, but present
        (2, "ac", {"b": "no samples"}, "ac"),
        (3, "ac", {"b": "lost before it had replied"}, "abc"),
        (2, "abc", {}, ""),
        (200, "abc", {}, ""),
    ],
)
def test_rows_of_a_matrix_are_the_clients_that_took_part(size, contributors, absent, named):
    notes = {"weights": np.eye(size)}
    fit = fg.Fit(None, "telling", {}, 0, tuple(contributors), absent=absent, notes=notes)
    written = recorded_matrices(fit, list("abc"))["weights"]
    assert "".join(written.get("clients", ())) == named
    assert np.array_equal(Matrix.of(written).values, notes["weights"])


def test_what_cannot_be_looked_at_as_a_matrix_is_left_out():
    notes = {
        "large": np.eye(201),
        "long": np.ones((1, 201)),
        "empty": np.ones((0, 3)),
        "vector": np.ones(3),
        "words": np.array([["a"]]),
        "complex": np.array([[1j]]),
        "text": "a",
    }
    assert recorded_matrices(fg.Fit(None, "telling", {}, 0, ("a",), notes=notes), ["a"]) == {}


@pytest.mark.parametrize("intercept", [True, False])
def test_the_reference_is_the_pooled_solution(tmp_path, intercept):
    run(path := tmp_path / "results.jsonl", centralised_ridge=0.5, centralised_intercept=intercept, test="held-out")
    data = Scenario(data="digits", test="held-out").prepare().data
    x, y, ones = data.x, np.eye(10)[data.y], np.full((len(data.x), 1), float(intercept))
    x, ridge = np.hstack([x, ones]), np.diag([0.5] * 64 + [0.0 if intercept else 1.0])
    weights = np.linalg.solve(x.T @ x + ridge, x.T @ y)
    right = int(((data.x_test @ weights[:-1] + weights[-1]).argmax(axis=1) == data.y_test).sum())
    reference = records(path)[0]
    assert (reference["correct"], reference["tested"]) == ([right], [len(data.y_test)])
    assert len(data.x_test) == round(0.2 * 1797)


def test_held_out_samples_are_the_same_for_every_setting():
    one = Scenario(data="digits", test="held-out", clients=5).prepare()
    other = Scenario(data="digits", test="held-out", clients=50, seed=3, partition="shards:2").prepare()
    assert np.array_equal(one.data.x_test, other.data.x_test)
    rows = sorted(map(tuple, np.concatenate([client.x for client in other.clients]).tolist()))
    assert rows == sorted(map(tuple, one.data.x.tolist()))


def test_rounds_are_judged_on_the_whole_of_a_common_test_set(tmp_path):
    methods = [{"name": "gradual", "rounds": 3}, {"name": "gradual", "rounds": 2}]
    run(path := tmp_path / "results.jsonl", methods=methods, clients=7, test="held-out")
    _, three, two = records(path)
    # 359 samples over 7 clients: their shares differ in size, and yet each round counts as the final model does.
    assert three["tested"] == [359]
    assert three["rounds"]["pooled"][-1] == pytest.approx(three["accuracy"]["pooled"], abs=1e-6)
    assert three["rounds"]["pooled"][1] == pytest.approx(two["accuracy"]["pooled"], abs=1e-6)
    assert three["rounds"]["client_mean"] == three["rounds"]["pooled"] == three["rounds"]["worst_decile"]


def test_personal_models_have_no_curve_on_a_common_test_set(tmp_path):
    quick = {"name": "ditto", "rounds": 2, "epochs": 1}
    run(path := tmp_path / "results.jsonl", methods=[quick], test="held-out")
    run(local := tmp_path / "local.jsonl", methods=[quick])
    assert "rounds" not in records(path)[-1]
    assert len(records(local)[-1]["rounds"]["pooled"]) == 2


def test_afl_does_not_depend_on_clients_or_partition(tmp_path):
    spread = ["dirichlet:0.005", "shards:2", "iid"]
    run(path := tmp_path / "results.jsonl", clients=[20, 200], partitions=spread, test="held-out", seeds=[0, 1])
    found = records(path)
    assert len(found) == 2 * 3 * 2 * 2
    assert len({record["accuracy"]["pooled"] for record in found}) == 1


def test_data_are_prepared_once_for_all_methods(tmp_path, monkeypatch):
    seen, prepare = [], Scenario.prepare
    monkeypatch.setattr(Scenario, "prepare", lambda self, loader: seen.append(self) or prepare(self, loader))
    run(tmp_path / "results.jsonl", methods=["afl", "local", "gradual"], seeds=[0, 1])
    assert len(seen) == 2


def test_warnings_for_developers_are_not_recorded(tmp_path, monkeypatch):
    def serve(self, clients):
        warnings.warn("left open", ResourceWarning, stacklevel=1)
        warnings.warn("think twice", UserWarning, stacklevel=1)
        return fg.AFL.serve(self, clients)

    monkeypatch.setattr(Fragile, "serve", serve)
    run(path := tmp_path / "results.jsonl", methods=[{"name": "fragile", "gamma": 1.0}])
    told = records(path)[1]["warnings"]
    assert "think twice" in told
    assert "left open" not in told


def test_a_failing_run_is_recorded_and_the_rest_goes_on(tmp_path):
    out = tmp_path / "out"
    result = compare(*SMALL[:-1], "fragile,local", "--out", str(out))
    assert result.exit_code == 1
    assert "fragile: digits, 4 clients, iid, seed 0: ZeroDivisionError: no such thing" in result.output
    assert "1 of 3 runs failed" in result.output
    assert [record["status"] for record in records(out / "results.jsonl")] == ["ok", "failed", "ok"]
    assert (out / "report.html").exists()


def test_a_setting_that_cannot_be_made_fails_its_runs_only(tmp_path):
    outcome = run(path := tmp_path / "results.jsonl", partitions=["shards:1000", "iid"])
    assert [record["status"] for record in records(path)] == ["failed", "failed", "ok", "ok"]
    assert "need 4000 shards" in next(iter(outcome.failed.values()))


def test_a_record_says_whether_its_method_is_personal(tmp_path):
    run(path := tmp_path / "results.jsonl", methods=["afl", "local", "gradual"])
    said = {record["method"]: record["personal"] for record in records(path)}
    assert said == {"centralised": False, "afl": False, "local": True, "gradual": False}
    assert {run.method: run.personal for run in load_results([path]).runs if not run.is_trivial} == said


def test_methods_without_a_global_model_cannot_be_scored_on_a_common_test_set(tmp_path):
    """A method that declares it by its annotation is refused before the run, the other after it."""
    path = tmp_path / "results.jsonl"
    with pytest.raises(InvalidParameter, match="'local' has no global model .* use test = 'local'"):
        run(path, methods=["afl", "local"], test="held-out")
    assert not path.exists()
    outcome = run(path, methods=["modelless"], test="held-out")
    assert "no global model" in next(iter(outcome.failed.values()))


def test_an_unknown_data_set_ends_everything_at_once(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        run(tmp_path / "results.jsonl", data="digit")


def test_groups_are_counted_and_run_once(tmp_path):
    table = tmp_path / "table.csv"
    rows = "".join(f"{i % 5},{i % 3},{i % 2},site {i % 7}\n" for i in range(210))
    table.write_text(f"a,b,kind,site\n{rows}")
    grouped = {"data": str(table), "label_column": "kind", "client_column": "site", "partitions": "by_group"}
    run(path := tmp_path / "results.jsonl", clients=[20, 10], **grouped)
    assert [record["clients"] for record in records(path)] == [7, 7]
    assert [record["clients"] for record in records(path, "setting")] == [7]
    run(path, clients=10, done=finished(path)[0], **grouped)
    results = load_results([path])
    assert [column.crowd for column in results.columns] == ["7 clients"]
    assert [run.label for run in results.runs] == ["centralised", "afl", "own most frequent class"]


def test_groups_of_drawn_data_are_as_many_as_asked_for(tmp_path):
    run(path := tmp_path / "results.jsonl", data="synthetic", clients=[4, 6], partitions="by_group")
    assert [record["clients"] for record in records(path)] == [4, 4, 6, 6]


def test_rounds_are_told_to_the_watcher(tmp_path):
    told = []

    class Watcher(Nobody):
        def steps(self, run, step, round, done, total):
            told.append((run.label, step, round, done, total))

    run(tmp_path / "results.jsonl", Watcher(), methods=[{"name": "gradual", "rounds": 3}])
    assert [entry[2] for entry in told if entry[1] == "gradient" and entry[3] == 4] == [0, 1, 2]
    assert ("gradual (rounds=3)", "gradient", 1, 1, 4) in told


def test_progress_tells_runs_method_round_and_time_left(tmp_path):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=160)
    experiment = Experiment.of({"data": "digits", "clients": 4, "methods": [{"name": "gradual", "rounds": 3}, "afl"]})
    runs = list(runs_of(experiment))
    with watching(runs, frozenset([runs[0].key]), screen) as watcher:
        watcher.prepares(runs[0].scenario)
        watcher.starts(runs[1])
        watcher.steps(runs[1], "gradient", 1, 3, 4)
        watcher._bar.refresh()
        watcher.ends(runs[1], {"total_seconds": 90.0, "status": "ok"})
        watcher._bar.refresh()
    shown = screen.file.getvalue()
    assert "1 of 3 runs are finished already" in shown
    assert "1/3" in shown
    assert "round 2 of 3 · gradual (rounds=3) · gradient 3/4 · digits, 4 clients, dirichlet:0.1, seed 0" in shown
    assert "2/3" in shown
    assert "about 2 min left" in shown


def test_eighty_columns_show_the_count_the_round_and_the_time_left():
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    methods = [{"name": "gradual", "rounds": 50}, "afl", "local"]
    runs = list(runs_of(Experiment.of({"data": "digits", "clients": 4, "methods": methods})))
    with watching(runs, frozenset(), screen) as watcher:
        watcher.starts(runs[0])
        watcher.ends(runs[0], {"total_seconds": 4000.0, "status": "ok"})
        watcher.starts(runs[1])
        watcher.steps(runs[1], "gradient", 17, 3, 4)
        watcher._bar.refresh()
        *_, last = (line for line in re.split(r"[\r\n]+", screen.file.getvalue()) if "round 18" in line)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last)
    assert len(last) <= 80
    for part in ("━━━", "1/4", "about 3 h 20 min left", "round 18 of 50"):
        assert part in last


def test_a_log_of_a_long_run_has_a_line_a_minute(monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress_bars.time, "monotonic", lambda: now)
    log = Console(file=io.StringIO(), width=40)
    runs = list(runs_of(Experiment.of({"data": "digits", "clients": 4, "methods": ["local"]})))
    with watching(runs, frozenset(), log) as watcher:
        watcher.starts(runs[1])
        for number in range(300):
            now = float(number)
            watcher.steps(runs[1], "train", number, 4, 4)
    where = "digits, 4 clients, dirichlet:0.1, seed 0"
    assert log.file.getvalue().splitlines() == [
        f"round {number + 1} · local · train 4/4 · {where}" for number in (60, 120, 180, 240)
    ]


def test_a_log_has_a_line_for_each_run(tmp_path):
    """A bar is not drawn where standard error is a file, as under nohup or Slurm."""
    log = Console(file=io.StringIO(), width=160)
    runs = list(runs_of(Experiment.of({"data": "digits", "clients": 4, "methods": ["afl", "local"]})))
    with watching(runs, frozenset([runs[0].key]), log) as watcher:
        watcher.starts(runs[1])
        watcher.ends(runs[1], {"total_seconds": 90.0, "status": "ok"})
        watcher.ends(runs[2], {"total_seconds": 2.0, "status": "failed"})
    where = "digits, 4 clients, dirichlet:0.1, seed 0"
    assert log.file.getvalue().splitlines() == [
        "1 of 3 runs are finished already",
        f"2 of 3: afl · {where}: ok after 2 min, about 2 min left",
        f"3 of 3: local · {where}: failed after 2 s",
    ]
