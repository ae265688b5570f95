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

from fedgram.core.errors import BadImage, Doubtful, InvalidData, InvalidParameter, MissingExtra, Skipped
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
    for _ in range(2):  # the second time from the cache
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


def tiff(tags: dict[int, int], body: bytes = b"") -> bytes:
    """Return a TIFF of 8 × 8 grey pixels with these tags besides."""
    usual = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted((usual | tags).items()))
    return struct.pack("<2sHIH", b"II", 42, 8, len(usual | tags)) + entries + bytes(4) + body


def test_tiles_are_bounded_by_the_image() -> None:
    """A file of 2 KB takes 900 MB for a tile of which 8 × 8 pixels are seen."""
    with pytest.raises(BadImage, match="has tiles of 30,000 × 30,000 pixels, expected at most 1,048,576 in all"):
        decode(tiff({322: 30_000, 323: 30_000, 324: 300, 325: 1000}, zlib.compress(bytes(900_000)) + bytes(1000)))
    tile = zlib.compress(b"\x80" * 16 * 16)
    made = decode(tiff({322: 16, 323: 16, 324: 8 + 2 + 10 * 12 + 4, 325: len(tile)}, tile))
    assert made.tolist() == [[0x80] * 8] * 8


def test_sides_are_bounded() -> None:
    with pytest.raises(BadImage, match="has 60,000,000 × 1 pixels, expected at most 65,535 a side"):
        decode(png(60_000_000, 1, 1))


def test_scans_of_a_jpeg_are_bounded() -> None:
    """Each scan is some bytes that go over all pixels again: a file of 1 MB would take an hour."""
    made = io.BytesIO()
    Image.new("L", (64, 64)).save(made, "JPEG", progressive=True)
    whole = made.getvalue()
    last, end = whole.rfind(b"\xff\xc4"), whole.rfind(b"\xff\xd9")
    assert decode(whole[:end] + whole[last:end] * 20 + whole[end:]).shape == (64, 64)
    with pytest.raises(BadImage, match="is drawn in 206 scans, expected at most 100: save it anew"):
        decode(whole[:end] + whole[last:end] * 200 + whole[end:])


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "PNG"])
def test_pages_and_frames_are_not_left_out_unseen(photos: Bytes, kind: str) -> None:
    made = io.BytesIO()
    first, *others = map(Image.fromarray, photos[:3])
    first.save(made, kind, save_all=True, append_images=others)
    with pytest.raises(BadImage, match="has several pages or frames, expected one image"):
        decode(made.getvalue())


def test_a_photograph_with_smaller_copies_is_taken(photos: Bytes) -> None:
    made = io.BytesIO()
    first, *others = map(Image.fromarray, photos[:3])
    first.save(made, "MPO", save_all=True, append_images=others)
    assert np.abs(decode(made.getvalue()).astype(int) - photos[0]).mean() < 20


@pytest.mark.skipif(os.name != "posix", reason="links need no rights")
def test_what_is_no_file_of_the_folder_is_named(folder: Path, tmp_path: Path) -> None:
    """A folder from elsewhere may hold links to private images; and a link to nothing is a missing image."""
    (tmp_path / "private").mkdir()
    (folder / "cat" / "0.png").rename(tmp_path / "private" / "scan.png")
    (folder / "cat" / "away.png").symlink_to(tmp_path / "private" / "scan.png")
    (folder / "cat" / "gone.png").symlink_to("nothing.png")
    (folder / "cat" / "ring.png").symlink_to("ring.png")
    (folder / "dog" / "all").symlink_to(tmp_path / "private")
    (folder / "owl").symlink_to(tmp_path / "private")
    os.mkfifo(folder / "fox" / "pipe.png")
    (folder / "fox" / "alias.png").symlink_to("../cat/1.png")
    with pytest.raises(InvalidData, match="6 bad images") as refused:
        open_path(folder)
    for name, why in {
        "cat/away.png": "is a link to outside of the folder",
        "cat/gone.png": "cannot be read",
        "dog/all": "is a link to outside of the folder",
        "fox/pipe.png": "cannot be read: expected a regular file, got a pipe",
    }.items():
        assert f"{name}: {why}" in str(refused.value), name
    with pytest.warns(Skipped, match="skipped 6 bad images"):
        assert len(open_path(folder, on_bad="skip")) == 30
    (folder.parent / "link").symlink_to(folder)
    with pytest.warns(Skipped, match="skipped 6 bad images"):
        assert len(open_path(folder.parent / "link", on_bad="skip")) == 30


def test_a_link_that_is_turned_elsewhere_is_examined_again(folder: Path, tmp_path: Path) -> None:
    (folder / "cat" / "0.png").rename(folder / "dog" / "copy.png")
    (folder / "cat" / "0.png").symlink_to("../dog/copy.png")
    assert len(open_path(folder)) == 31
    (folder / "cat" / "0.png").unlink()
    (folder / "dog" / "copy.png").rename(tmp_path / "copy.png")
    (folder / "cat" / "0.png").symlink_to(tmp_path / "copy.png")
    with pytest.raises(InvalidData, match="cat/0.png: is a link to outside"):
        open_path(folder)


def test_names_of_classes_are_composed(tmp_path: Path, photos: Bytes) -> None:
    """macOS writes the letters of a folder's name in parts, other systems do not."""
    names = {"north": "Zu\u0308rich", "south": "Z\u00fcrich"}
    for party, name in names.items():
        for k, label in enumerate((name, "Bern")):
            (tmp_path / party / label).mkdir(parents=True)
            Image.fromarray(photos[k]).save(tmp_path / party / label / "0.png")
    if os.listdir(tmp_path / "north") == os.listdir(tmp_path / "south"):
        pytest.skip("this file system writes names in one way")
    assert open_path(tmp_path / "north").classes == open_path(tmp_path / "south").classes == ("Bern", "Z\u00fcrich")
    (tmp_path / "south" / names["north"]).mkdir()
    with pytest.raises(InvalidData, match=r"got 'Zu\\u0308rich' and 'Z\\xfcrich', which are one name written in two"):
        open_path(tmp_path / "south")


def test_names_of_classes_that_look_alike_are_told(folder: Path) -> None:
    (folder / "dog").rename(folder / "Cat")
    with pytest.warns(Doubtful, match="'Cat' and 'cat' in .*pets differ only in upper and lower case"):
        assert len(open_path(folder).classes) == 3


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
    """Pillow uses the upper 8 of 16 bits of colours: images of 12-bit devices would be nearly black."""
    with pytest.raises(BadImage, match="convert it to 8 bits"):
        decode(content)
