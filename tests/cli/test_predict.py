"""`fedgram predict`: one line of output per row, columns and backbones by name, and files without any choice."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core import wire
from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter, Mismatch, Skipped, UnknownName
from fedgram.features import backbone
from fedgram.features.extraction import featurize
from fedgram.nets import TrainedNet, factories, net_for
from fedgram.nets import network as network_module
from support.data import private_cache, write


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    return private_cache(tmp_path, monkeypatch)


def predict(*arguments: object):
    done = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def keep(model, path: Path) -> Path:
    path.write_bytes(wire.encode(model))
    return path


@pytest.fixture
def model(tmp_path) -> Path:
    weights = np.array([[1.0, -1.0], [0.0, 0.0]])
    return keep(fg.LinearModel(weights, ("high", "low"), columns=("a", "b")), tmp_path / "model.safetensors")


UNLABELLED = "b,a\n0,1\n0,-1\n,2\n0,3\n5\n0,x\n0,-2\n"


def test_bad_rows_without_labels_follow_the_rule(tmp_path, model):
    path = write(tmp_path / "new.csv", UNLABELLED)
    with pytest.raises(InvalidData, match="3 bad rows .*line 4: column 'b' is empty; line 6: 1 values for 2 columns"):
        predict(model, path)
    with pytest.warns(Skipped, match="3 bad rows"):
        done = predict(model, path, "--on-bad", "skip")
    assert done.stdout.split("\n") == ["high", "low", "", "high", "", "", "low", ""]
    assert "3 of 7 samples are bad: their lines are empty" in done.stderr


def test_bad_rows_with_labels_do_not_shift_the_others(tmp_path, model):
    text = "b,a,label\n0,1,high\n0,,low\n0,-1,low\n0,-2,NA\n0,-3,high\n"
    with pytest.warns(Skipped, match="1 bad row"):
        done = predict(model, write(tmp_path / "new.csv", text), "--on-bad", "skip")
    # A row without a label can be scored like any other; it is not among those that are right or wrong.
    assert done.stdout.split("\n") == ["high", "", "low", "low", "low", ""]
    assert "66.67% of 3 samples are right" in done.stderr
    with pytest.warns(Skipped):
        told = json.loads(predict(model, tmp_path / "new.csv", "--on-bad", "skip", "--json").stdout)
    assert told["labels"] == ["high", None, "low", "low", "low"]
    assert (told["samples"], told["bad"], told["accuracy"], told["classes"]) == (5, 1, 2 / 3, ["high", "low"])
    assert told["problems"] == ["", "bad", "", "", ""]
    assert told["probabilities"][1] is None
    assert sum(told["probabilities"][0]) == pytest.approx(1)
    assert "ids" not in told
    with pytest.warns(Skipped):
        predict(model, tmp_path / "new.csv", "--on-bad", "skip", "--out", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "high\n\nlow\nlow\nlow\n"


def test_bad_samples_of_arrays_and_parquet_do_not_shift_the_others(tmp_path, model):
    x = np.array([[1.0, 0], [np.nan, 0], [-1, 0]])
    np.savez(tmp_path / "new.npz", x=x)
    np.savez(tmp_path / "both.npz", x=x, y=["high"] * 3, x_test=x[:2], y_test=["high"] * 2)
    pq.write_table(pa.table({"b": x[:, 1], "a": x[:, 0]}), tmp_path / "new.parquet")
    for name, more in {"new.npz": [], "both.npz": ["high", ""], "new.parquet": []}.items():
        with pytest.warns(Skipped):
            done = predict(model, tmp_path / name, "--on-bad", "skip")
        assert done.stdout.split("\n") == ["high", "", "low", *more, ""], name


def test_a_sample_of_an_array_needs_no_label(tmp_path, model):
    np.savez(tmp_path / "new.npz", x=np.array([[1.0, 0], [-1, 0], [1, 0]]), y=np.array(["high", "NA", "low"]))
    done = predict(model, tmp_path / "new.npz")
    assert done.stdout.split() == ["high", "low", "high"]
    assert "50.00% of 2 samples are right" in done.stderr


def test_labels_that_the_model_does_not_know_are_named(tmp_path, model):
    path = write(tmp_path / "new.csv", "a,b,label\n1,0,1\n-1,0,0\n")
    with pytest.warns(Doubtful, match="labels that the model does not know: 0, 1; it knows 'high', 'low'"):
        done = predict(model, path)
    assert "0.00% of 2 samples are right" in done.stderr


def test_labelled_data_of_one_class(tmp_path, model):
    done = predict(model, write(tmp_path / "new.csv", "a,b,label\n1,0,high\n-1,0,high\n"))
    assert done.stdout.split() == ["high", "low"]
    assert "50.00% of 2 samples are right" in done.stderr
    np.savez(tmp_path / "new.npz", x=np.eye(2), y=np.array(["high", "high"]))
    assert predict(model, tmp_path / "new.npz").stdout.split() == ["high", "high"]


def test_a_text_label_without_its_name_gets_a_remedy(tmp_path, model):
    path = write(tmp_path / "new.csv", "diagnosis,b,a\nhigh,0,1\nlow,0,-1\n")
    done = predict(model, path)
    assert done.stdout.split() == ["high", "low"]
    assert "not used: column 'diagnosis'; if one of them is the label, name it: --outcome" in done.stderr
    assert "100.00% of 2 samples" in predict(model, path, "--label", "diagnosis").stderr
    nameless = keep(fg.LinearModel(np.eye(2), ("high", "low")), tmp_path / "nameless.safetensors")
    with pytest.raises(
        InvalidData, match=r"column 'diagnosis' holds 'high', not a number \(if it is the label.*--outcome"
    ):
        predict(nameless, path)
    pq.write_table(pa.table({"diagnosis": ["high"], "a": [1.0], "b": [0.0]}), tmp_path / "new.parquet")
    with pytest.raises(InvalidData, match=r"column 'diagnosis' .* holds string, not numbers.*\(--outcome\)"):
        predict(nameless, tmp_path / "new.parquet")


def test_a_usual_name_may_be_a_feature_of_the_model(tmp_path):
    model = keep(fg.LinearModel(np.eye(2), ("one", "two"), columns=("x", "y")), tmp_path / "model.safetensors")
    done = predict(model, write(tmp_path / "new.csv", "y,x\n0,1\n1,0\n"))
    assert done.stdout.split() == ["one", "two"]
    with pytest.raises(UnknownName, match="did you mean 'x'"):
        predict(model, tmp_path / "new.csv", "--label", "xx")


@pytest.fixture
def onnx_file(tmp_path) -> Path:
    onnx = pytest.importorskip("onnx")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        "means",
        [value("x", kind, ["n", 3, 8, 8])],
        [value("y", kind, ["n", 3, 1, 1])],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "models" / "means.onnx"
    path.parent.mkdir()
    path.write_bytes(made.SerializeToString())
    return path


def test_a_file_does_not_choose_what_is_loaded(tmp_path, onnx_file, monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "new.npz", x=images, y=np.arange(4) % 2)
    data = fg.data.load_dataset(str(tmp_path / "new.npz"))
    features = featurize(data, str(onnx_file)).features
    assert features == f"means.onnx@{backbone(str(onnx_file)).fingerprint}", "no path leaves this machine"
    model = keep(fg.LinearModel(np.eye(3, 2), (0, 1), features=features), tmp_path / "model.safetensors")
    monkeypatch.chdir(onnx_file.parent)  # where a file of that name lies
    with pytest.raises(InvalidParameter, match="made with the backbone 'means.onnx', which does not come with fedgram"):
        predict(model, tmp_path / "new.npz")
    assert len(predict(model, tmp_path / "new.npz", "--backbone", onnx_file).stdout.split()) == 4
    # The same weights under another name are equal; other weights under the same name are not.
    renamed = onnx_file.rename(onnx_file.with_name("renamed.onnx"))
    assert len(predict(model, tmp_path / "new.npz", "--backbone", renamed).stdout.split()) == 4
    other = keep(fg.LinearModel(np.eye(3, 2), (0, 1), features="renamed.onnx@0123456789ab"), tmp_path / "other")
    with pytest.raises(Mismatch, match="was made from features 'renamed.onnx@0123456789ab'"):
        predict(other, tmp_path / "new.npz", "--backbone", renamed)
    hub = keep(fg.LinearModel(np.eye(3, 2), (0, 1), features="hub:evil/model@0123456789ab"), tmp_path / "hub")
    with pytest.raises(InvalidParameter, match="a file does not choose what is loaded"):
        predict(hub, tmp_path / "new.npz")


def test_a_run_does_not_choose_what_a_node_loads(tmp_path, onnx_file):
    pytest.importorskip("flwr")
    from fedgram.engines.flower import config

    np.savez(tmp_path / "own.npz", x=np.zeros((6, 8, 8, 3), dtype=np.uint8), y=np.arange(6) % 2)
    run = config.App(backbone=str(onnx_file))
    node = config.NodeConfig(name="a", data=str(tmp_path / "own.npz"), folder=str(tmp_path / "node"))
    with pytest.raises(InvalidParameter, match="the run's backbone .* does not come with fedgram"):
        node.client(run)
    client = replace(node, backbone=str(onnx_file)).client(run)
    assert client.x.shape[1:] == (3,)
    assert client.features.startswith("means.onnx@")


def test_run_says_which_columns_it_uses(tmp_path):
    rows = "".join(f"{i % 5},{i / 7},{'uv'[i % 2]},{'xy'[i // 20]}\n" for i in range(40))
    path = write(tmp_path / "own.csv", f"age,bp,diagnosis,hospital\n{rows}")
    options = ["--data", path, "--label", "diagnosis", "--client-column", "hospital"]
    done = CliRunner().invoke(app, ["run", *map(str, options), "--json"])
    assert done.exit_code == 0, done.exception
    used = "outcome: diagnosis (u, v); numbers: age, bp; ignored: hospital"
    assert done.stderr.splitlines()[0] == f"study drafted from the table: {used}"
    assert json.loads(done.stdout)["clients"] == 2


def test_compare_and_nodes_say_which_columns_they_use(tmp_path, caplog):
    pytest.importorskip("flwr")
    from fedgram.engines.flower import config

    path = write(
        tmp_path / "own.csv", "age,bp,label\n" + "".join(f"{i / 3},{i % 5},{'uv'[i % 2]}\n" for i in range(60))
    )
    options = ["--data", str(path), "--methods", "afl", "--clients", "2", "--partition", "iid", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["compare", *options])
    assert done.exit_code == 0
    assert f"{path}: study drafted from the table: outcome: label (u, v); numbers: age, bp" in done.stderr
    with caplog.at_level("INFO", logger="flwr"):
        config.NodeConfig(name="a", data=str(path), folder=str(tmp_path / "node")).client(config.App())
    assert "features: age, bp; label: label" in caplog.text


def test_pixels_need_no_naming(tmp_path):
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 2, 2), dtype=np.uint8))
    model = keep(fg.LinearModel(np.eye(4, 2), (0, 1), features="pixels"), tmp_path / "model.safetensors")
    assert len(predict(model, tmp_path / "new.npz").stdout.split()) == 3


def test_a_network_is_imported_only_if_it_is_named(tmp_path, monkeypatch):
    """A model file may come from a stranger, and may name code."""
    monkeypatch.setattr(factories, "_admitted", set())
    classes, x = (0, 1), np.random.default_rng(0).random((3, 12))
    with monkeypatch.context() as patch:
        patch.setattr(factories, "_admitted", {"support.networks:mlp"})
        size = net_for("support.networks:mlp", (12,), 2).size
    file = keep(TrainedNet("support.networks:mlp", (12,), classes, np.ones(size, dtype=np.float32)), tmp_path / "model")
    network_module._module_net.cache_clear()
    np.savez(tmp_path / "new.npz", x=x)
    with pytest.raises(InvalidParameter, match="not told to trust.*--network support.networks:mlp"):
        predict(file, tmp_path / "new.npz")
    assert predict(file, tmp_path / "new.npz", "--network", "support.networks:mlp").stdout.split() == ["0", "0", "0"]
