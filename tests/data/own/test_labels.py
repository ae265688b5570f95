"""Labels in the user's own files: missing, alike, too large, of one class only."""

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedgram as fg
from fedgram.core.errors import Doubtful, InvalidData, Skipped
from fedgram.data.own.files import open_path
from support.data import write


def test_one_class_is_enough_for_a_party_among_others(tmp_path: Path, arrow: bool) -> None:
    path = write(tmp_path / "own.csv", "a,label\n1,u\n2,u\n")
    with pytest.raises(InvalidData, match=r"own.csv.*at least two classes.*where classes are agreed with others"):
        open_path(path)
    data = open_path(path, one_of_many=True)
    assert data.classes == ("u",)
    assert data.y.tolist() == [0, 0]


def test_a_hospital_with_one_class_joins(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from fedgram.engines.flower import config

    rng = np.random.default_rng(0)
    for name, labels in {"a": ["ill", "well"], "b": ["well", "well"]}.items():
        rows = "".join(f"{rng.normal()},{rng.normal()},{labels[i % 2]}\n" for i in range(30))
        write(tmp_path / f"{name}.csv", f"age,bp,label\n{rows}")
    for agreed in ("ill, well", ""):  # given to all, or found among all
        app = config.App(classes=agreed)
        clients = [config.NodeConfig(name=name, data=str(tmp_path / f"{name}.csv")).client(app) for name in "ab"]
        fit = fg.FedGram().fit(clients, classes=app.class_names())
        assert fit.contributors == ("a", "b")
        assert fit.model.classes == ("ill", "well")


@pytest.mark.parametrize("missing", ["NA", "nan", "NaN", "null", "NULL", "N/A", "#N/A", "<NA>", "None", " "])
def test_missing_labels_and_clients_are_no_classes(tmp_path: Path, arrow: bool, missing: str) -> None:
    text = f"a,client,label\n1,x,u\n2,x,{missing}\n3,{missing},v\n4,y,v\n"
    with pytest.raises(InvalidData, match=r"2 bad rows .*line 3: column 'label' .*line 4: column 'client' "):
        open_path(write(tmp_path / "own.csv", text))
    with pytest.warns(Skipped):
        data = open_path(write(tmp_path / "own.csv", text), on_bad="skip")
    assert data.classes == ("u", "v")
    assert data.groups is not None
    assert data.groups.tolist() == ["x", "y"]
    assert data.left_out == (1, 2)


def test_missing_labels_in_parquet_and_npz(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "y": ["u", "null", "v"]}), tmp_path / "own.parquet")
    with pytest.raises(InvalidData, match="row 2: label or client is empty"):
        open_path(tmp_path / "own.parquet")
    np.savez(tmp_path / "own.npz", x=np.eye(3), y=np.array(["u", "v", "nan"]))
    with pytest.raises(InvalidData, match=r"x\[2\]: has no label"):
        open_path(tmp_path / "own.npz")


def test_a_class_may_be_called_none(tmp_path: Path, arrow: bool) -> None:
    assert open_path(write(tmp_path / "own.csv", "a,label\n1,none\n2,mild\n")).classes == ("mild", "none")


def test_labels_that_look_alike(tmp_path: Path, arrow: bool) -> None:
    text = "a,label\n1,Well\n2,Well \n3,ill\n"
    with pytest.warns(Doubtful, match=r"label column of .* has 'Well' with and without blanks"):
        assert open_path(write(tmp_path / "own.csv", text)).classes == ("Well", "ill")
    with pytest.warns(Doubtful, match=r"'Well' and 'well' in .* differ only in upper and lower case"):
        assert open_path(write(tmp_path / "own.csv", text.replace("Well ", "well"))).classes == ("Well", "ill", "well")
    np.savez(tmp_path / "own.npz", x=np.eye(3), y=np.array(["Well", "Well ", "ill"]))
    with pytest.warns(Doubtful, match="with and without blanks"):
        assert open_path(tmp_path / "own.npz").classes == ("Well", "ill")


def test_labels_that_look_alike_among_clients() -> None:
    rng = np.random.default_rng(0)
    clients = [
        fg.Client(name, rng.normal(size=(6, 2)), ["ill", well] * 3)
        for name, well in zip("ab", ("Well", "well"), strict=True)
    ]
    with pytest.warns(Doubtful, match="'Well' and 'well' in the clients' labels differ only in upper and lower case"):
        assert fg.AFL().fit(clients).model.classes == ("Well", "ill", "well")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Doubtful)
        fg.AFL().fit(clients, classes=["ill", "Well", "well"])  # the classes are agreed


def test_labels_beyond_64_bits_are_refused(tmp_path: Path, arrow: bool) -> None:
    largest = 2**64 - 1
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=np.array([0, largest], dtype=np.uint64))
    with pytest.raises(InvalidData, match=f"own.npz: label {largest} does not fit into 64 bits"):
        open_path(tmp_path / "own.npz")
    for number in (2**63, largest, -(2**63) - 1, 10**40):
        with pytest.raises(InvalidData, match=f"label {number} of .*own.csv does not fit into 64 bits"):
            open_path(write(tmp_path / "own.csv", f"a,label\n1,{number}\n2,3\n"))
    assert open_path(write(tmp_path / "own.csv", f"a,label\n1,{2**63 - 1}\n2,3\n")).classes == (3, 2**63 - 1)


def test_whole_numbers_that_are_hardly_classes_are_warned_of(tmp_path: Path) -> None:
    """A cost in whole euros would silently become as many classes."""
    rows = [f"{k / 8},{1000 + 7 * k}" for k in range(60)]
    with pytest.warns(Doubtful, match="60 different whole numbers in 60 rows, and count as classes: .*--study"):
        open_path(write(tmp_path / "own.csv", "\n".join(["a,label", *rows])))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Doubtful)
        open_path(write(tmp_path / "many.csv", "\n".join(["a,label", *rows, *rows])))
        open_path(write(tmp_path / "few.csv", "\n".join(["a,label", *rows[:20]])))


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("Z\u00fcrich", "Zu\u0308rich"), ("0", "-0")])
def test_one_text_in_two_forms_is_one_label_and_one_client(tmp_path: Path, arrow: bool, one: str, other: str) -> None:
    """Programs write 1 as 1.0 where there are gaps, and macOS writes a letter and its dots as two characters."""
    text = f"a,client,label\n1,{one},{one}\n2,{other},{other}\n3,x,x\n"
    data = open_path(write(tmp_path / "own.csv", text))
    assert (data.classes, data.groups is not None and data.groups.tolist()) == ((one, "x"), [one, one, "x"])


def test_invisible_characters_are_warned_of(tmp_path: Path, arrow: bool) -> None:
    with pytest.warns(Doubtful, match=r"'Berlin' and 'Ber\\u200blin' in .* differ only in .* invisible characters"):
        open_path(write(tmp_path / "own.csv", "a,label\n1,Berlin\n2,Ber\u200blin\n"))
