"""The baseline for every method: each client predicts the class of most of its training samples."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram.data import Dataset
from fedgram.data.client import Client
from fedgram.experiments import Scenario
from fedgram.experiments.prepared import Prepared
from fedgram.experiments.results import load_results
from fedgram.report import formats
from fedgram.report.result_tables import accuracy_table
from support.runner import compare, records, run

LINE = "own most frequent class"


def client(name, train, test):
    return Client(name, np.zeros((len(train), 2)), train, np.zeros((len(test), 2)), test)


def test_a_hand_made_split():
    """In a tie the first class counts; a client without training samples predicts the most frequent class of all."""
    clients = [
        client("a", [0, 0, 2], [0, 2, 2, 0]),
        client("b", [2, 1], [2, 1, 1]),
        client("c", np.zeros(0, int), [0, 1]),
        client("d", [1, 0, 0], np.zeros(0, int)),
    ]
    data = Dataset("made up", np.zeros((3, 2)), np.arange(3), ("x", "y", "z"), "")
    found = Prepared(data, clients, 0, tested_by_clients=True).most_frequent()
    assert found.correct == {"a": 2, "b": 2, "c": 1, "d": 0}
    assert found.tested == {"a": 4, "b": 3, "c": 2, "d": 0}
    assert found.client_mean == pytest.approx((1 / 2 + 2 / 3 + 1 / 2) / 3)


def test_every_comparison_has_the_line(tmp_path):
    run(path := tmp_path / "results.jsonl", partitions="dirichlet:0.1", seeds=[0, 1])
    results = load_results([path])
    lines = [run for run in results.runs if run.is_trivial]
    assert [(line.label, line.reference, line.seed) for line in lines] == [(LINE, True, 0), (LINE, True, 1)]
    for line in lines:
        split = Scenario(data="digits", clients=4, partition="dirichlet:0.1", seed=line.seed).prepare()
        right = [int(np.sum(client.y_test == np.bincount(client.y, minlength=10).argmax())) for client in split.clients]
        assert list(line.correct) == right
        assert 0 < line.accuracy["pooled"] == sum(right) / sum(line.tested) < 1
    assert f"| {LINE} (reference) |" in formats.markdown(accuracy_table(results, "client_mean"))


def test_the_commands_table_has_the_line(tmp_path):
    done = compare("--data", "digits", "--clients", "4", "--methods", "afl", "--out", str(tmp_path / "out"))
    assert LINE in done.output
    assert "of other experiments" not in done.output


def test_one_model_on_one_test_set_has_no_such_line(tmp_path):
    run(path := tmp_path / "results.jsonl", test="held-out")
    assert "most_frequent" not in records(path, "setting")[0]
    assert all(not run.is_trivial for run in load_results([path]).runs)


@pytest.mark.parametrize("changes", [{}, {"samples": 500}, {"seed": 3}])
def test_labels_alone_say_the_same(changes):
    scenario = replace(Scenario(data="digits", clients=5, partition="dirichlet:0.3"), **changes)
    whole, alone = scenario.prepare(), scenario.prepare(labels_only=True)
    assert alone.most_frequent() == whole.most_frequent()
    assert alone.class_counts == whole.class_counts
    assert {client.x.shape[1] for client in alone.clients} == {1}
