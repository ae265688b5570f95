"""The user's own images: folders of them, good and bad."""

import io
import os
import struct
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgram.core.errors import BadImage, InvalidData, InvalidParameter, MissingExtra, Skipped
from fedgram.data.own.files import open_path
from fedgram.data.own.images import ImageFiles, decode
from support.data import Bytes


@pytest.fixture
def folder(tmp_path: Path, photos: Bytes) -> Path:
    """Real photographs, ten in each of three classes."""
    for i, name in enumerate(["cat", "dog", "fox"]):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for j in range(10):
            Image.fromarray(photos[10 * i + j]).save(tmp_path / "pets" / name / f"{j}.png")
    (tmp_path / "pets" / "cat" / ".DS_Store").write_bytes(b"not meant as an image")
    return tmp_path / "pets"


def test_a_folder_of_images_per_class(folder: Path, photos: Bytes) -> None:
    data = open_path(folder)
    assert data.classes == ("cat", "dog", "fox")
    assert data.y.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert isinstance(data.x, ImageFiles)
    assert data.x.shape == (30, 32, 32, 3)
    np.testing.assert_array_equal(data.x[:], photos[:30])
    np.testing.assert_array_equal(data.x[5:8], photos[5:8])
    np.testing.assert_array_equal(data.x[-1], photos[29])
    np.testing.assert_array_equal(data.x[[3, 1]], photos[[3, 1]])
    np.testing.assert_array_equal(data.x[data.y == 1], photos[10:20])
    part = data.x.take([29, 0])
    assert isinstance(part, ImageFiles)
    np.testing.assert_array_equal(part[:], photos[[29, 0]])


def test_train_and_test_folders_are_told_apart(tmp_path: Path, photos: Bytes) -> None:
    for part, names in (("train", "ab"), ("val", "ba")):
        for i, name in enumerate(names):
            (tmp_path / "set" / part / name).mkdir(parents=True)
            Image.fromarray(photos[i]).save(tmp_path / "set" / part / name / "0.png")
    data = open_path(tmp_path / "set")
    np.testing.assert_array_equal(data.x[:], photos[:2])
    np.testing.assert_array_equal(data.x_test[:], photos[[1, 0]])
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 1]
    (tmp_path / "set" / "val" / "c").mkdir()
    Image.fromarray(photos[0]).save(tmp_path / "set" / "val" / "c" / "0.png")
    with pytest.raises(InvalidData, match="class 'c', which has no training images"):
        open_path(tmp_path / "set")


def make_bad(folder: Path) -> None:
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(whole, "JPEG")
    (folder / "cat" / "truncated.jpg").write_bytes(whole.getvalue()[:-200])
    (folder / "dog" / "notes.txt").write_text("not an image")
    (folder / "dog" / "empty.png").write_bytes(b"")
    Image.fromarray(np.zeros((32, 32), dtype=np.uint16)).save(folder / "fox" / "deep.png")


def test_bad_images_are_refused_by_name(folder: Path) -> None:
    make_bad(folder)
    with pytest.raises(InvalidData, match="4 bad images in") as failure:
        open_path(folder)
    said = str(failure.value)
    assert "cat/truncated.jpg: is damaged" in said
    assert "dog/notes.txt: is not an image" in said
    assert "dog/empty.png: is not an image" in said
    assert "fox/deep.png: has pixels of kind 'I;16': convert it to 8 bits" in said


def test_bad_images_are_skipped_by_name(folder: Path, photos: Bytes) -> None:
    good = open_path(folder).fingerprint
    make_bad(folder)
    for _ in range(2):  # the second time from what was remembered
        with pytest.warns(Skipped, match="skipped 4 bad images .*cat/truncated.jpg"):
            data = open_path(folder, on_bad="skip")
        np.testing.assert_array_equal(data.x[:], photos[:30])
        assert data.fingerprint == good


def test_a_folder_is_examined_again_when_a_file_changes(folder: Path, photos: Bytes) -> None:
    first = open_path(folder)
    assert open_path(folder).fingerprint == first.fingerprint
    Image.fromarray(photos[35]).save(folder / "dog" / "3.png")
    second = open_path(folder)
    assert second.fingerprint != first.fingerprint
    np.testing.assert_array_equal(second.x[13], photos[35])


def test_images_of_many_sizes_kinds_and_orientations(folder: Path, photos: Bytes) -> None:
    data = open_path(folder, size=16)
    assert data.x[:2].shape == (2, 16, 16, 3)
    assert data.fingerprint != open_path(folder).fingerprint
    Image.fromarray(photos[0]).resize((300, 200)).save(folder / "fox" / "large.jpg")
    Image.fromarray(photos[0]).convert("L").save(folder / "fox" / "grey.png")
    Image.fromarray(photos[0]).convert("RGBA").save(folder / "fox" / "clear.png")
    Image.fromarray(photos[0]).convert("P").save(folder / "fox" / "palette.gif")
    mixed = open_path(folder)
    assert mixed.x.shape == (34, 224, 224, 3)
    assert mixed.x[:].std(axis=(1, 2, 3)).min() > 0

    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    path = folder.parent / "turned.png"
    Image.fromarray(photos[0]).save(path, exif=exif)
    np.testing.assert_array_equal(decode(path), np.rot90(photos[0], -1))


def test_grey_images_stay_grey(tmp_path: Path, photos: Bytes) -> None:
    grey = photos[:, :, :, 0]
    for i in range(4):
        (tmp_path / "grey" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey[i]).save(tmp_path / "grey" / f"c{i % 2}" / f"{i}.png")
    data = open_path(tmp_path / "grey")
    np.testing.assert_array_equal(data.x[:], grey[[0, 2, 1, 3]])


def test_an_image_that_goes_bad_later_is_named(folder: Path) -> None:
    data = open_path(folder)
    (folder / "cat" / "4.png").unlink()
    with pytest.raises(BadImage, match=r"4.png is missing"):
        data.x[:]


def test_memory_stays_flat_in_the_number_of_images(tmp_path: Path, photos: Bytes) -> None:
    for name in "ab":
        (tmp_path / "many" / name).mkdir(parents=True)
        for i in range(150):
            Image.fromarray(photos[i % 40]).resize((128, 128)).save(tmp_path / "many" / name / f"{i}.jpg")
    open_path(tmp_path / "many")  # warm up Pillow
    Image.fromarray(photos[0]).resize((128, 128)).save(tmp_path / "many" / "a" / "one-more.jpg")
    tracemalloc.start()
    data = open_path(tmp_path / "many")
    for start in range(0, len(data), 10):
        data.x[start : start + 10]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = 301 * 128 * 128 * 3
    assert peak < whole / 8


def test_folders_that_hold_no_classes(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidData, match="expected one subfolder per class"):
        open_path(tmp_path / "empty")
    with pytest.raises(InvalidParameter, match="subfolders are the labels"):
        open_path(folder, label="kind")


def test_without_pillow_one_line_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[vision\]'"):
        open_path(folder)


def test_a_postscript_program_is_not_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would give it to Ghostscript, under any file name."""
    (tmp_path / "bin").mkdir()
    program, ran = tmp_path / "bin" / "gs", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    (folder / "cat" / "x.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%Page: 1 1\nshowpage\n%%EOF\n"
    )
    with pytest.raises(InvalidData, match="cat/x.png: is not an image of a format that is read here .PNG, JPEG, TIFF"):
        open_path(folder)
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM"])
def test_formats(photos: Bytes, kind: str) -> None:
    made = io.BytesIO()
    Image.fromarray(photos[0]).save(made, kind, **({"lossless": True} if kind == "WEBP" else {}))
    found = decode(made.getvalue())
    if kind in ("JPEG", "GIF"):
        assert np.abs(found.astype(int) - photos[0]).mean() < 20
    else:
        np.testing.assert_array_equal(found, photos[0])


def png(width: int, height: int, rows: int, interlaced: int = 0) -> bytes:
    """Return a PNG of grey pixels, all checksums right, that has so many rows of its pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlaced)
    pixels = zlib.compress((b"\0" + b"\x80" * width) * rows)
    half = len(pixels) // 2
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", pixels[:half])
        + chunk(b"IDAT", pixels[half:])
        + chunk(b"IEND", b"")
    )


def test_a_png_without_all_its_rows_is_refused() -> None:
    """Where the stream ends in order, Pillow leaves the rest black."""
    assert decode(png(30, 20, 20)).min() == 0x80
    for rows in (0, 1, 19):
        with pytest.raises(BadImage, match="is damaged .* bytes of its pixels are there"):
            decode(png(30, 20, rows))
    with pytest.raises(BadImage, match="is damaged"):
        decode(png(30, 20, 20, interlaced=1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_whole_pngs_of_all_kinds_are_taken(photos: Bytes, mode: str) -> None:
    for width, height in ((1, 1), (9, 5), (31, 32)):
        made = io.BytesIO()
        Image.fromarray(photos[0]).resize((width, height)).convert(mode).save(made, "PNG")
        assert decode(made.getvalue()).shape[:2] == (height, width)


def test_an_interlaced_png_is_taken() -> None:
    """Rows of 3 × 3 pixels in seven passes: 1, none, none, 2 × 1, 1 + 1 (two rows of one), … as the format says."""
    widths = [1, 1, 2, 1, 1, 3]  # of the passes' rows; the second and the third have none, the fifth and sixth have two
    raw = b"".join(b"\0" + b"\x80" * width for width in widths)
    whole = png(3, 3, 0, interlaced=1)
    start = whole.index(b"IDAT") - 4
    content = zlib.compress(raw)
    part = struct.pack(">I", len(content)) + b"IDAT" + content + struct.pack(">I", zlib.crc32(b"IDAT" + content))
    made = whole[:start] + part + whole[whole.index(b"IEND") - 4 :]
    assert decode(made).tolist() == [[0x80] * 3] * 3


def test_pixels_are_bounded_before_they_are_decoded(folder: Path) -> None:
    (folder / "cat" / "bomb.png").write_bytes(png(15_000, 11_000, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own
        with pytest.raises(InvalidData, match="cat/bomb.png: has 15,000 × 11,000 pixels, expected at most 64,000,000"):
            open_path(folder)
    with pytest.raises(BadImage, match="bomb.png has more than 64,000,000 pixels: make it smaller"):
        decode(folder / "cat" / "bomb.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_is_not_a_regular_file_is_not_read(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadImage, match="pipe.png is damaged .expected a regular file, got a pipe"):
        decode(tmp_path / "pipe.png")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    with pytest.raises(BadImage, match="endless.png is damaged .expected a regular file"):
        decode(tmp_path / "endless.png")
    for name in ("table.csv", "table.parquet", "table.npz"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(InvalidData, match=f"{name}.*expected a regular file, got a pipe"):
            open_path(tmp_path / name)
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(InvalidData, match=f"{name}.*expected a regular file, got a pipe, socket or device"):
            open_path(tmp_path / name)


def png_of_16_bits(colours: int, kind: int) -> bytes:
    rows = (b"\0" + b"\x01\x02" * (8 * colours)) * 8
    parts = {b"IHDR": struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
        for name, part in parts.items()
    )


def tiff_of_16_bits() -> bytes:
    tags = {256: 4, 257: 4, 258: 200, 259: 1, 262: 2, 273: 300, 277: 3, 278: 4, 279: 96, 284: 1}
    entries = b"".join(
        struct.pack("<HHII", tag, *((3, 3) if tag == 258 else (4, 1)), value) for tag, value in tags.items()
    )
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    return (head.ljust(200, b"\0") + struct.pack("<HHH", 16, 16, 16)).ljust(300, b"\0") + b"\x02\x01" * 48


@pytest.mark.parametrize(
    "content",
    [
        *(png_of_16_bits(colours, kind) for colours, kind in ((1, 0), (3, 2), (2, 4), (4, 6))),
        tiff_of_16_bits(),
        b"P6\n4 4\n65535\n" + b"\x01\x02" * 48,
        b"P3\n2 2\n300\n" + b"1 2 3 " * 4,
        b"P5\n4 4\n65535\n" + b"\x01\x02" * 16,
    ],
    ids=["png grey", "png colour", "png grey and alpha", "png alpha", "tiff", "ppm", "ppm in digits", "pgm"],
)
def test_more_than_8_bits_are_refused_not_cut(content: bytes) -> None:
    """Pillow takes the upper 8 of 16 bits of colours: what 12-bit devices write would be nearly black."""
    with pytest.raises(BadImage, match="convert it to 8 bits"):
        decode(content)
