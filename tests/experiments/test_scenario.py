"""One scenario for everything that runs on one machine: its keys, its partition, and the two commands that use it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.data.dataset import Dataset
from fedgram.engines import InProcess
from fedgram.experiments import Experiment, Run, Scenario
from fedgram.experiments.prepared import Prepared
from fedgram.experiments.results import load_results
from fedgram.protocol.method import engines
from fedgram.report.result_tables import accuracy_table
from support.runner import compare, records


def fedgram(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    if isinstance(done.exception, FedgramError):
        raise done.exception
    return done


@pytest.fixture
def table(tmp_path):
    """A table of three sites, whose features tell the label."""
    rng = np.random.default_rng(0)
    rows = [
        f"{i % 2 + rng.normal():.3f},{rng.normal():.3f},{'ill' if i % 2 else 'well'},{'abc'[i % 3]}" for i in range(90)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["age,pressure,kind,site", *rows, ""]))
    return path


@pytest.mark.parametrize(
    ("settings", "key", "afl"),
    [
        ({"data": "digits", "test": "held-out"}, "1ff805548c4737fc", "d1b5d2a3bcb9044a"),
        (
            {"data": "mnist", "backbone": "pixels", "test": "standard", "test_fraction": 0.3},
            "242b0143cf220b42",
            "2eff9396172ddf7b",
        ),
        (
            {"data": "mnist", "backbone": "pixels", "shift": "camera:1", "samples": 500},
            "47916434fa31ab1f",
            "378801c07fc8f072",
        ),
        (
            {"data": "t.csv", "label_column": "a", "client_column": "b", "clients": 10, "partition": "by_group"},
            "2063815a7fbb63d4",
            "7cc1d18c36ac90ba",
        ),
        ({"data": "synthetic", "clients": 3, "partition": "by_group"}, "f97796134a134395", "cfd59dc9f164698a"),
    ],
)
def test_keys_are_those_of_results_that_exist(settings, key, afl):
    # Results that are kept would be computed again if these changed.
    scenario = Scenario(**settings)
    assert (scenario.key, Run(scenario, "afl", fg.AFL()).key) == (key, afl)


def test_the_default_partition_is_the_datas_own_groups(tmp_path, table):
    grouped, plain = tmp_path / "grouped.npz", tmp_path / "plain.npz"
    np.savez(grouped, x=np.eye(4), y=[0, 1, 0, 1], groups=[0, 0, 1, 1])
    np.savez(plain, x=np.eye(4), y=[0, 1, 0, 1])
    named = tmp_path / "named.csv"
    named.write_text(table.read_text().replace("site", "client", 1))

    def partition(data, **columns):
        return Scenario(data=str(data), **columns).resolve().partition

    assert partition(table, label_column="kind", client_column="site") == "by_group"
    assert [partition(data) for data in (grouped, "synthetic", "spam-assassin", "typefaces")] == ["by_group"] * 4
    assert partition(named, label_column="kind") == "by_group"
    for data in (plain, "digits", "cifar10", tmp_path, tmp_path / "nothing.csv"):
        assert partition(data) == "dirichlet:0.1"


def test_what_the_catalog_says_of_groups_is_so():
    for data in ("digits", "synthetic"):
        assert (fg.data.load_dataset(data).groups is not None) == (Scenario(data=data).partition == "by_group")


def test_a_table_that_changes_is_read_again(table):
    scenario = Scenario(data=str(table), label_column="kind", client_column="site")
    assert len(scenario.prepare().clients) == 3
    table.write_text(table.read_text() + "1,2,ill,d\n1,2,well,d\n")
    assert len(scenario.prepare().clients) == 4


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"clients": 0}, InvalidParameter, "clients must be at least 1, got 0"),
        ({"test": "locl"}, UnknownName, "did you mean 'local'"),
        ({"test_fraction": 1}, InvalidParameter, "less than 1, got 1"),
        ({"on_bad": "mend"}, InvalidParameter, "refuse, skip; got 'mend'"),
        ({"shift": "camera:1", "test": "held-out"}, InvalidParameter, "shift needs test = 'local'"),
        ({"client_column": "site"}, InvalidParameter, "'digits' has no columns"),
        ({"partition": "dirichle:1"}, UnknownName, "did you mean 'dirichlet'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(settings, error, words):
    with pytest.raises(error, match=words):
        Scenario(data="digits", **settings)


def test_a_client_column_means_the_same_in_both_commands(tmp_path, table):
    options = ["--data", table, "--label", "kind", "--client-column", "site", "--out"]
    fedgram("run", *options, tmp_path / "run", "--method", "local")
    assert fedgram("compare", *options, tmp_path / "compare", "--methods", "local").exit_code == 0
    (one,), (_, other) = (records(tmp_path / name / "results.jsonl") for name in ("run", "compare"))
    assert (one["clients"], one["partition"]) == (3, "by_group")
    for name in ("key", "setting", "fingerprint", "correct", "tested", "up", "down", "label"):
        assert one[name] == other[name]
    assert one.keys() == other.keys()
    with pytest.raises(InvalidParameter, match="table.csv belong to clients already: leave clients out"):
        fedgram("compare", *options, tmp_path / "other", "--methods", "local", "--clients", "10,20")
    invented = fedgram("compare", *options, tmp_path / "o", "--methods", "afl", "--clients", "4", "--partition", "iid")
    assert invented.exit_code == 0
    assert [record["clients"] for record in records(tmp_path / "o" / "results.jsonl")] == [4, 4]


def test_clients_are_not_made_up_beside_those_that_the_data_have():
    def experiment(**keys):
        return Experiment.of({"methods": ["afl"], "clients": [4, 6], **keys}).resolve()

    with pytest.raises(InvalidParameter, match="the samples of spam-assassin belong to clients already"):
        experiment(data="spam-assassin")
    assert [one.clients for one in experiment(data="spam-assassin", partitions="iid").scenarios] == [4, 6]
    assert [one.clients for one in experiment(data="spam-assassin", partitions="by_group").scenarios] == [4]
    drawn = experiment(data="synthetic").scenarios
    assert [(one.clients, one.partition) for one in drawn] == [(4, "by_group"), (6, "by_group")]


def test_runs_that_are_kept_can_be_reported_and_compared_with(tmp_path):
    out = tmp_path / "out"
    options = ["--data", "digits", "--clients", "4", "--partition", "iid", "--out", out]
    done = fedgram("run", *options, "--method", "local", "--set", "ridge=2", "--json")
    fedgram("run", *options, "--method", "afl")
    printed, (kept, _) = json.loads(done.stdout), records(out / "results.jsonl")
    assert printed == kept
    assert kept["traffic"] == {"up": sum(kept["up"]), "down": sum(kept["down"])}
    assert len(records(out / "results.jsonl", "setting")) == 1
    assert "local (ridge=2)" in fedgram("report", out).stdout
    again = compare(*map(str, options), "--methods", "local,afl", "--set", "local.ridge=2", "--resume")
    assert "2 of 3 runs are finished already" in again.output
    assert [run.label for run in load_results([out / "results.jsonl"]).runs] == [
        "local (ridge=2)",
        "afl",
        "centralised",
        "own most frequent class",
    ]


@pytest.mark.usefixtures("made_up_methods")
def test_a_run_that_fails_is_kept_as_failed(tmp_path):
    with pytest.raises(FedgramError, match="no global model"):
        fedgram("run", "--method", "modelless", "--test", "held-out", "--out", tmp_path)
    (failed,) = records(tmp_path / "results.jsonl")
    assert failed["status"] == "failed"
    assert "no global model" in failed["error"]


def test_runs_of_other_data_are_not_added_to_results(tmp_path, table):
    options = ["--data", table, "--label", "kind", "--client-column", "site", "--out", tmp_path / "out"]
    fedgram("run", *options)
    table.write_text(table.read_text() + "1,2,ill,a\n")
    with pytest.raises(FedgramError, match="have changed since the results were begun"):
        fedgram("run", *options)


def test_both_commands_score_on_held_out_samples(tmp_path):
    options = ["--data", "digits", "--clients", "4", "--test", "held-out", "--test-fraction", "0.3"]
    one = json.loads(fedgram("run", *options, "--json").stdout)
    assert compare(*options, "--methods", "afl", "--out", str(tmp_path)).exit_code == 0
    assert one["tested"] == [round(0.3 * 1797)]
    assert one["correct"] == records(tmp_path / "results.jsonl")[1]["correct"]


def test_compare_skips_bad_rows_and_lets_clients_be_absent(tmp_path, table):
    table.write_text(table.read_text() + "1,2,,a\n")
    options = ["--data", table, "--label", "kind", "--client-column", "site", "--methods", "afl", "--out"]
    refused = fedgram("compare", *options, tmp_path / "refused")
    assert refused.exit_code == 1
    assert "leave them out with --on-bad skip" in refused.output
    with pytest.warns(UserWarning, match="skipped 1 bad row"):
        done = fedgram("compare", *options, tmp_path / "skipped", "--on-bad", "skip", "--require", "0.5")
    assert done.exit_code == 0, done.output
    record = records(tmp_path / "skipped" / "results.jsonl")[1]
    assert (record["on_bad"], record["require"]) == ("skip", 0.5)


def test_any_engine_runs_a_comparison_and_is_opened_once_a_scenario(tmp_path, monkeypatch):
    heard = []

    class Opened(InProcess):
        """An engine that is opened before it is used, as a simulation is."""

        def __enter__(self):
            heard.append(f"opened with {self.workers} workers")

        def __exit__(self, *_):
            heard.append("closed")

        def run(self, method, clients, **options):
            heard.append(method.name)
            return replace(super().run(method, clients, **options), engine="opened")

    monkeypatch.setitem(engines, "opened", Opened)
    options = ["--data", "digits", "--clients", "4", "--methods", "afl,local", "--seeds", "0,1"]
    assert compare(*options, "--engine", "opened", "--workers", "2", "--out", str(tmp_path / "a")).exit_code == 0
    assert heard == ["opened with 2 workers", "afl", "local", "closed"] * 2
    found = records(tmp_path / "a" / "results.jsonl")
    assert [record.get("engine") for record in found] == [None, "opened", "opened"] * 2
    assert compare(*options, "--out", str(tmp_path / "b")).exit_code == 0
    assert [one["key"] for one in found] == [other["key"] for other in records(tmp_path / "b" / "results.jsonl")]
    with pytest.raises(UnknownName, match="unknown engine 'closed'"):
        fedgram("compare", *options, "--engine", "closed")


def test_images_that_are_added_to_a_folder_are_seen(tmp_path):
    from PIL import Image

    def draw(count):
        for label in ("cat", "dog"):
            (tmp_path / label).mkdir(exist_ok=True)
            for i in range(count):
                Image.fromarray(np.full((8, 8), i, dtype=np.uint8)).save(tmp_path / label / f"{i}.png")

    scenario = Scenario(data=str(tmp_path), backbone="pixels", clients=2, partition="iid")
    draw(10)
    assert len(scenario.prepare().data) == 20
    draw(15)
    assert len(scenario.prepare().data) == 30


def test_a_client_without_test_images_is_not_judged():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(40, 4, 4), dtype=np.uint8), np.arange(40) % 2
    clients = [fg.Client("a", x[:20], y[:20], x[20:], y[20:]), fg.Client("b", x[:9], y[:9], x[:0], y[:0])]
    prepared = Prepared(
        Dataset("grey", x=x, y=y, classes=(0, 1), fingerprint=""), clients, seed=0, tested_by_clients=True
    )
    assert prepared.centralised(1.0, intercept=True).tested == {"a": 20, "b": 0}


@pytest.mark.parametrize("test", ["local", "held-out"])
def test_classes_may_be_any_whole_numbers(tmp_path, test):
    """Often they are 1 and 2, or -1 and 1: the same fit as with names."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    found = []
    for classes in ((-1, 1), (1, 2), ("a", "b")):
        path = tmp_path / f"{classes[0]}.csv"
        labels = [classes[int(row[0] > 0)] for row in x]
        lines = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(x, labels, strict=True)]
        path.write_text("\n".join(["a,b,c,label", *lines]) + "\n")
        prepared = Scenario(data=str(path), clients=3, partition="iid", test=test).prepare()
        fit = prepared.fit(fg.AFL())
        assert fit.model.classes == tuple(map(str, classes))
        assert set(fit.model.predict(prepared.data.x).tolist()) == set(map(str, classes))
        found.append((prepared.score(fit).pooled, prepared.centralised(0.0, intercept=True).pooled))
    assert found[0] == found[1] == found[2]
    assert found[0][0] > 0.9


def test_descriptions_open_no_file(table, monkeypatch):
    def opened(*_, **__):
        raise AssertionError("a description opened a file")

    for name in ("open", "read_bytes", "read_text", "stat", "exists", "is_file", "is_dir"):
        monkeypatch.setattr(f"pathlib.Path.{name}", opened)
    keys = {"data": [str(table), "other.npz"], "label_column": "kind", "methods": ["afl", "fedlogit"]}
    experiment = Experiment.of(keys | {"clients": [2, 3], "seeds": [0, 1]})
    assert [scenario.partition for scenario in experiment.scenarios] == [""] * 8
    Run(experiment.scenarios[0], "fedlogit", fg.FedLogit())
    with pytest.raises(AssertionError, match="opened a file"):
        experiment.resolve()


def test_every_client_has_the_least_number_of_samples(tmp_path):
    """From Python, from the command line and from a file; a partition with sizes of its own refuses it."""
    sizes = [len(c.x) + len(c.x_test) for c in Scenario(data="digits", min_size=50).prepare().clients]
    assert min(sizes) == 50
    assert min(len(c.x) + len(c.x_test) for c in Scenario(data="digits").prepare().clients) < 50
    arguments = ("run", "--data", "digits", "--samples", "600", "--partition", "dirichlet:0.05")
    said = " ".join(fedgram(*arguments).stdout.split())
    assert "clients have fewer than 10 test samples and count as much as the others in the mean" in said
    large = fedgram(*arguments, "--clients", "10", "--min-size", "50", "--json").stdout
    assert min(json.loads(large)["tested"]) >= 10
    about = {"data": "digits", "methods": ["afl"]}
    [one] = Experiment.of({**about, "min_size": 30, "partitions": "dirichlet:1"}).scenarios
    assert (one.min_size, one.describe()) == (30, "digits, 20 clients, dirichlet:1, at least 30 samples each, seed 0")
    with pytest.raises(InvalidParameter, match="min_size: expected a Dirichlet partition, got 'iid'"):
        Experiment.of({**about, "min_size": 30, "partitions": ["dirichlet:1", "iid"]})
    with pytest.raises(InvalidParameter, match="min_size: expected a Dirichlet partition, got 'by_group'"):
        fedgram("run", "--data", "synthetic", "--min-size", "5")
    with pytest.raises(InvalidParameter, match="min_size: expected 0 to 89, since 20 clients share 1797 samples"):
        Scenario(data="digits", min_size=90).prepare()


def test_seeds_with_other_numbers_of_clients_are_one_column(tmp_path):
    """Drawn data leave some clients without samples, more or fewer by seed."""
    setting = ("--data", "synthetic", "--samples", "300", "--clients", "100", "--seeds", "0,1")
    fedgram("compare", *setting, "--methods", "afl", "--out", tmp_path)
    results = load_results([tmp_path / "results.jsonl"])
    least, most = sorted(len(spread.names) for spread in results.spreads)
    assert least < most < 100
    [column] = results.columns
    assert column.clients == 100
    table = accuracy_table(results, "client_mean")
    assert "mean ± standard deviation over 2 seeds" in table.caption
    assert f"Clients with samples: 100 clients, by group: {least} to {most}, by seed." in table.caption
    assert all("±" in row[1].text for row in table.rows)
