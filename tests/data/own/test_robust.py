"""Damaged, absurd and hostile files: one line that names the file, and memory in proportion to its size."""

import io
import os
import pickle
import random
import struct
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedgram.core.errors import BadArchive, CannotLoad, FedgramError, InvalidData, InvalidParameter
from fedgram.data.own import bad
from fedgram.data.own.cells import arrow_block
from fedgram.data.own.files import open_path
from fedgram.data.published.downloads import unpack
from fedgram.data.published.layouts import unpickle
from fedgram.features import backbone
from support.campaign import size

MEGABYTE = 1 << 20


def refused(path: Path, *, room: int = 64 * MEGABYTE) -> str:
    """Return the error that opening a file gives; it must be one line, and take little memory."""
    tracemalloc.start()
    try:
        open_path(path)
    except FedgramError as error:
        assert path.name in str(error)
        assert "\n" not in str(error)
        return str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < room
    raise AssertionError(f"{path} was accepted")


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape, descr: str = "<f8", content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + content


def test_npz_that_claims_more_than_it_holds(tmp_path):
    y = npy((2,), "<i8", struct.pack("<qq", 0, 1))
    for shape in ((10**9, 100), (2, 10**12), (2, 10**30), (-2, -4), (2, 3)):
        error = refused(npz(tmp_path / "own.npz", x=npy(shape, content=bytes(64)), y=y))
        assert "array 'x' claims shape" in error
    assert "array 'y' claims" in refused(
        npz(tmp_path / "own.npz", x=npy((2, 4), content=bytes(64)), y=npy((1,), "<U500000000"))
    )


@pytest.fixture
def little(monkeypatch):
    """Make bombs of some megabytes, not of hundreds."""
    monkeypatch.setattr(bad, "SPARE_BYTES", MEGABYTE)


def test_npz_bomb(tmp_path, little):
    zeros = npy((8 * MEGABYTE, 1), "|u1", bytes(8 * MEGABYTE))
    error = refused(npz(tmp_path / "own.npz", x=zeros), room=MEGABYTE)
    assert f"claims to hold {len(zeros):,}: refused; if that is true, save it uncompressed" in error


def test_npz_with_objects_is_never_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "hacked"),)

    np.savez(tmp_path / "own.npz", x=np.array([[Evil()]], dtype=object), y=np.arange(1))
    assert "holds Python objects" in refused(tmp_path / "own.npz")
    assert not (tmp_path / "hacked").exists()


# The noise is always the same: where tests run side by side, every process must find the same ones.
NOISE = np.random.default_rng(0).bytes(99)
DAMAGED = {"empty": b"", "zip": b"PK", "npy": b"\x93NUMPY", "empty zip": b"PK\x05\x06" + bytes(18), "noise": NOISE}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv"])
def test_files_of_nothing_and_of_noise(tmp_path, suffix, content):
    path = tmp_path / f"own.{suffix}"
    path.write_bytes(content)
    refused(path)


def test_empty_tables(tmp_path):
    pq.write_table(pa.table({"a": pa.array([], pa.float64()), "y": pa.array([], pa.int64())}), tmp_path / "own.parquet")
    assert "holds no usable row" in refused(tmp_path / "own.parquet")
    pq.write_table(pa.table({}), tmp_path / "own.parquet")
    refused(tmp_path / "own.parquet")
    np.savez(tmp_path / "own.npz", x=np.zeros((0, 4)), y=np.zeros(0, dtype=int))
    assert "holds no usable row" in refused(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 0)), y=np.zeros(4, dtype=int))
    assert "one row per sample" in refused(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz")
    assert "has no array 'x'; it has none" in refused(tmp_path / "own.npz")


def test_parquet_bomb(tmp_path, little):
    table = pa.table({"a": np.zeros(MEGABYTE), "y": np.zeros(MEGABYTE, dtype=np.int8)})
    pq.write_table(table, tmp_path / "own.parquet", compression="zstd")
    assert "claims to hold" in refused(tmp_path / "own.parquet", room=MEGABYTE)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_damaged_files_never_give_anything_but_one_line(tmp_path, suffix):
    path, rng = tmp_path / f"own.{suffix}", random.Random(0)
    if suffix == "npz":
        np.savez_compressed(path, x=np.random.default_rng(0).random((20, 3)), y=np.array(["a", "b"] * 10))
    else:
        pq.write_table(pa.table({"a": np.arange(20) / 3, "b": np.arange(20), "label": ["u", "v"] * 10}), path)
    whole = path.read_bytes()
    failures = 0
    for _ in range(size(120)):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 3, 20])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        try:
            open_path(path)
        except FedgramError as error:
            failures += 1
            assert path.name in str(error)
            assert "\n" not in str(error)
    assert failures > size(60)


def test_labels_of_odd_shapes(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=np.array(3))
    assert "one per sample" in refused(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=np.arange(2), groups=np.array(3))
    assert "2 samples in x but shape () of groups" in refused(tmp_path / "own.npz")


def make_tar(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    return path


@pytest.mark.parametrize(
    "names", [["a", "a/b"], ["a/b", "a"], ["x" * 4000], ["a\x1b[2Jb"], ["."], ["a\nb"], ["caf\udce9"]], ids=repr
)
def test_archives_with_odd_names(tmp_path, names):
    with pytest.raises(BadArchive, match=r"odd.tar.gz"):
        unpack(make_tar(tmp_path / "odd.tar.gz", *names), tmp_path / "out")


def test_archive_bombs_and_locked_ones(tmp_path, little):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(8 * MEGABYTE))
    with pytest.raises(BadArchive, match="bomb.zip.*claims to hold"):
        unpack(tmp_path / "bomb.zip", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "locked.zip", "w") as archive:
        archive.writestr("a", b"secret")
    raw = bytearray((tmp_path / "locked.zip").read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + offset] |= 1  # says that it is encrypted
    (tmp_path / "locked.zip").write_bytes(raw)
    with pytest.raises(BadArchive, match="locked.zip is damaged .*encrypted"):
        unpack(tmp_path / "locked.zip", tmp_path / "out")


def laughs(depth: int) -> bytes:
    """Return a pickle of lists in lists: small, but without end when it is written out."""
    value: list[object] = [b"ha"]
    for _ in range(depth):
        value = [value, value]
    return pickle.dumps(value, protocol=2)


def repeated_text() -> bytes:
    """Return a pickle that turns one long text into bytes thousands of times."""
    text = b"X" + struct.pack("<I", MEGABYTE) + b"a" * MEGABYTE + b"q\x00"
    turned = b"h\x01h\x00h\x02\x86R"
    return b"\x80\x02" + text + b"0c_codecs\nencode\nq\x010X\x06\x00\x00\x00latin1q\x020](" + turned * 5000 + b"e."


@pytest.mark.parametrize(
    "content",
    [
        laughs(40),
        repeated_text(),
        b"\x80\x02Nr\xff\xff\xff\x3f.",  # a place far beyond all others
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",  # a text of a terabyte
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    ],
    ids=["laughs", "text", "place", "bytes", "bytearray"],
)
def test_pickle_bombs(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidData, match="data_batch_1"):
            unpickle(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="names of other systems are text")
def test_folders_whose_names_are_not_utf8(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    for label in "ab":
        (folder / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / label / "1.png")
    data = open_path(folder)
    assert len(data) == 2
    assert data.name == "caf\\udce9"
    (folder / "own.csv").write_text("a,label\n1,u\n2,v\n")
    assert len(open_path(folder / "own.csv")) == 2
    with (folder / "own.parquet").open("wb") as file:
        pq.write_table(pa.table({"a": [1.0, 2.0], "y": [0, 1]}), file)
    assert len(open_path(folder / "own.parquet")) == 2
    (folder / "b").rename(Path(os.fsdecode(os.fsencode(folder) + b"/\xe9")))
    with pytest.raises(InvalidData, match="has a name that is not UTF-8: rename it"):
        open_path(folder)


def onnx_model(nodes, output, shape=("n", 3, 8, 8), **constants) -> bytes:
    onnx = pytest.importorskip("onnx")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operation, inputs, ["y"], **options) for operation, inputs, options in nodes],
        "odd",
        [value("x", kind, list(shape))],
        [value("y", kind, output)] if output != "none" else [],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return made.SerializeToString()


MEANS = [("GlobalAveragePool", ["x"], {})]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: b"", "cannot load the model odd.onnx .*get it anew"),
        (lambda: b"not a model", "cannot load the model odd.onnx .*get it anew"),
        (lambda: onnx_model(MEANS, ["n", 3, 1, 1])[:80], "cannot load the model odd.onnx"),
        (lambda: onnx_model(MEANS, None, ("n", 3, 10**6, 10**6)), "input size 1000000 is out of range"),
        (lambda: onnx_model(MEANS, "none"), "has 1 inputs .* and 0 outputs"),
        (lambda: onnx_model([("ReduceMean", ["x"], {"keepdims": 0})], None), "'y' of odd.onnx is not one row"),
        (lambda: onnx_model([("Frobnicate", ["x"], {})], None), "cannot load the model odd.onnx"),
        (
            lambda: onnx_model([("MatMul", ["x", "w"], {})], None, ("n", 3, "h", "w0"), w=np.ones((5, 5), np.float32)),
            r"cannot load the model odd.onnx for images of shape \(3, 224, 224\)",
        ),
        (
            lambda: onnx_model([("ConstantOfShape", ["s"], {})], None, s=np.array([10**7, 10**7])),
            "cannot load the model odd.onnx for images",
        ),
    ],
)
def test_onnx_files_that_make_no_sense(tmp_path, capfd, made, reason):
    path = tmp_path / "odd.onnx"
    path.write_bytes(made())
    with pytest.raises((CannotLoad, InvalidParameter), match=reason) as failure:
        backbone(str(path))(np.zeros((2, 8, 8, 3), dtype=np.uint8))
    assert "\n" not in str(failure.value)
    assert capfd.readouterr().out == ""


def test_a_text_that_a_dictionary_does_not_have_is_damage():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 3]), pa.array(["u", "v"]), safe=False)
    with pytest.raises(pa.ArrowInvalid, match="the column's dictionary does not have"):
        arrow_block(0, pa.RecordBatch.from_arrays([column], names=["a"]), [], ["a"], share=1.0)
