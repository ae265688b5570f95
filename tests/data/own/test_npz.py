"""The user's own .npz files, good and bad."""

import warnings
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedgram.core.errors import InvalidData, Skipped
from fedgram.data.own.files import open_path
from support.data import Bytes


def test_npz(tmp_path: Path, photos: Bytes) -> None:
    path = tmp_path / "own.npz"
    names = np.array(["b", "a"] * 20)
    np.savez(path, x=photos, y=names, x_test=photos[:3], y_test=names[:3], groups=np.arange(40) // 10)
    data = open_path(path)
    np.testing.assert_array_equal(data.x, photos)
    assert data.classes == ("a", "b")
    assert data.y[:2].tolist() == [1, 0]
    assert data.groups is not None
    assert data.groups.tolist() == (np.arange(40) // 10).tolist()
    np.testing.assert_array_equal(data.x_test, photos[:3])
    assert data.y_test is not None
    assert data.y_test.tolist() == [1, 0, 1]
    assert open_path(path).fingerprint == data.fingerprint


def test_npz_with_named_classes_and_arrays(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(
        path, x=np.eye(3), kind=np.array([2, 0, 2]), site=np.array(["p", "q", "p"]), classes=np.array(["u", "v", "w"])
    )
    data = open_path(path, label="kind", client="site")
    assert data.classes == ("u", "v", "w")
    assert data.y.tolist() == [2, 0, 2]
    assert data.groups is not None
    assert data.groups.tolist() == ["p", "q", "p"]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.eye(3)}, "has no array 'y'; it has x"),
        ({"x": np.eye(3), "y": np.arange(2)}, "has 3 samples in x but 2 labels"),
        ({"x": np.eye(3), "y": np.arange(3), "client": np.arange(2)}, "3 samples in x but 2 groups"),
        ({"x": np.eye(3), "y": np.arange(3), "x_test": np.eye(3)}, "has x_test but no y_test"),
        ({"x": np.arange(3), "y": np.arange(3)}, "one row per sample"),
        ({"x": np.array([[None], [1]]), "y": np.arange(2)}, "not an .npz file of plain arrays"),
    ],
)
def test_npz_that_makes_no_sense(tmp_path: Path, arrays: dict[str, npt.NDArray[np.float64]], reason: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InvalidData, match=reason):
        open_path(tmp_path / "own.npz")


def test_npz_with_bad_rows(tmp_path: Path) -> None:
    x = np.eye(5)
    x[1, 2], x[4, 0] = np.nan, np.inf
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(5) % 2)
    with pytest.raises(InvalidData, match=r"2 bad rows .*x\[1\]: holds NaN or infinity; x\[4\]"):
        open_path(tmp_path / "own.npz")
    with pytest.warns(Skipped, match=r"x\[1\]"):
        data = open_path(tmp_path / "own.npz", on_bad="skip")
    np.testing.assert_array_equal(data.x, x[[0, 2, 3]])
    assert data.y.tolist() == [0, 0, 1]


def test_a_cut_npz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.eye(9), y=np.arange(9))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InvalidData, match=r"own.npz is not an .npz file"):
        open_path(path)
    np.save(tmp_path / "one.npy", np.eye(3))
    (tmp_path / "one.npy").rename(path)
    with pytest.raises(InvalidData, match="a single array"):
        open_path(path)


@pytest.mark.parametrize("groups", [["x", "NA", "y", "y"], [0.0, np.nan, 1.0, 1.0]], ids=["names", "numbers"])
def test_missing_clients_in_npz(tmp_path: Path, groups: list[str] | list[float]) -> None:
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=[0, 1, 0, 1], groups=np.array(groups))
    with pytest.raises(InvalidData, match=r"1 bad row in .*x\[1\]: has no client"):
        open_path(tmp_path / "own.npz")
    with pytest.warns(Skipped):
        data = open_path(tmp_path / "own.npz", on_bad="skip")
    assert data.groups is not None
    assert data.groups.tolist() == [groups[0], *groups[2:]]


def test_names_of_columns_in_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=np.arange(2), columns=np.array(["age", "bp"]))
    assert open_path(tmp_path / "own.npz").columns == ("age", "bp")
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=np.arange(2), columns=np.array(["age"]))
    with pytest.raises(InvalidData, match="1 column names for 2 columns"):
        open_path(tmp_path / "own.npz")


def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.eye(4), y=np.array([0, 1, 0, 1]))
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for name in ("x.npy", "x"):  # the same key for numpy
        with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for entry in [*entries.items(), (name, entries["x.npy"])]:
                archive.writestr(*entry)
        with pytest.raises(InvalidData, match="array 'x' is there twice"):
            open_path(path)
