"""The feature cache: features are computed once, for any interruption."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgram.core.errors import CacheError, InvalidData, InvalidParameter
from fedgram.features import extract
from fedgram.features.extraction import BLOCK
from support import features_worker
from support.features_worker import Logged, Rows, expected
from support.waiting import PATIENCE, wait_for

WORKER = Path(features_worker.__file__)
ROWS = 4096


@pytest.fixture
def backbone(tmp_path):
    return Logged(tmp_path / "log")


def run(backbone, cache, rows=ROWS):
    features = extract(Rows(rows), backbone, data_fingerprint="rows", cache=cache)
    np.testing.assert_array_equal(features, expected(np.arange(rows), backbone.dim))
    return features


def worker(cache, backbone, **options):
    extra = [f"--{key}={value}" for key, value in options.items()]
    command = [sys.executable, WORKER, cache, backbone.log, *extra]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def only(cache, pattern):
    (path,) = (cache / "features").glob(pattern)
    return path


def samples_computed(backbone, after=0):
    return sum(n for _, _, n in backbone.batches()[after:])


def test_features_are_computed_once_and_mapped_from_disk(backbone, cache):
    first = run(backbone, cache, rows=1000)
    again = run(backbone, cache, rows=1000)
    assert samples_computed(backbone) == 1000
    assert isinstance(again, np.memmap)
    assert not first.flags.writeable
    assert again.dtype == np.float32
    np.testing.assert_array_equal(np.load(only(cache, "*.npy")), first)


def test_other_data_or_another_backbone_is_another_entry(backbone, cache):
    run(backbone, cache, rows=600)
    extract(Rows(600), backbone, data_fingerprint="other rows", cache=cache)
    backbone.fingerprint = "logged-2"
    extract(Rows(600), backbone, data_fingerprint="rows", cache=cache)
    assert samples_computed(backbone) == 3 * 600


@pytest.mark.parametrize("batch", [1, 63, 511, 5000])
def test_any_batch_size_gives_the_same(backbone, cache, batch):
    features = extract(Rows(1100), backbone, data_fingerprint="rows", cache=cache, batch=batch)
    np.testing.assert_array_equal(features, expected(np.arange(1100), backbone.dim))


def test_no_samples_no_features(backbone, cache):
    assert extract(Rows(0), backbone, data_fingerprint="none", cache=cache).shape == (0, 16)


def test_environment_names_the_cache_folder(backbone, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path / "elsewhere"))
    extract(Rows(5), backbone, data_fingerprint="rows")
    assert only(tmp_path / "elsewhere", "*.npy").is_file()


def test_killed_extraction_resumes_after_its_last_finished_block(backbone, cache):
    process = worker(cache, backbone, pause=0.02)

    def some_blocks_are_finished():
        assert process.poll() is None
        return sum(journal.read_bytes().count(b"\n") for journal in cache.glob("features/*.journal")) >= 4

    wait_for(some_blocks_are_finished, "the first blocks", pause=0.01)
    process.kill()
    process.communicate()
    finished = sum(len(word) == 8 for word in only(cache, "*.journal").read_text().splitlines()[1:])
    assert 1 <= finished < ROWS // BLOCK
    assert not list((cache / "features").glob("*.npy"))
    before = len(backbone.batches())
    run(backbone, cache)
    assert backbone.batches()[before][1] == finished * BLOCK
    assert samples_computed(backbone, before) == ROWS - finished * BLOCK


def test_two_processes_share_one_extraction(backbone, cache):
    both = [worker(cache, backbone, pause=0.005) for _ in range(2)]
    assert [p.wait(60) for p in both] == [0, 0]
    for process in both:
        process.communicate()
    assert samples_computed(backbone) == ROWS
    assert len({process for process, _, _ in backbone.batches()}) == 1
    run(backbone, cache)
    assert samples_computed(backbone) == ROWS


@pytest.mark.skipif(sys.platform == "win32", reason="no file-size quota")
def test_full_disk_is_told_and_what_is_finished_is_used(backbone, cache):
    quota = 128 + int(3.5 * BLOCK * 16 * 4)
    process = worker(cache, backbone, quota=quota)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "cannot write" in told
    assert "FEDGRAM_CACHE" in told
    before = len(backbone.batches())
    run(backbone, cache)
    assert samples_computed(backbone, before) == ROWS - 3 * BLOCK


def test_cache_of_an_older_layout_is_ignored(backbone, cache):
    run(backbone, cache, rows=1000)
    journal = only(cache, "*.journal")
    first, *sums = journal.read_text().splitlines()
    about = {**json.loads(first), "layout": 0}
    journal.write_text("\n".join([json.dumps(about), *sums, ""]))
    run(backbone, cache, rows=1000)
    assert samples_computed(backbone) == 2000


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (
            lambda data, journal: flip(data, 128 + 2 * BLOCK * 64 + 7),
            2000 - 2 * BLOCK,
        ),  # a bit, in the third block
        (lambda data, journal: flip(data, 60), 2000),  # in the header
        (lambda data, journal: data.write_bytes(data.read_bytes()[:-1]), 2000 - 3 * BLOCK),
        (lambda data, journal: data.write_bytes(b""), 2000),
        (lambda data, journal: journal.unlink(), 2000),
        (lambda data, journal: journal.write_bytes(b"\xff\x00 not a journal"), 2000),
        (lambda data, journal: journal.write_bytes(journal.read_bytes()[:-4]), 2000 - 3 * BLOCK),
        (lambda data, journal: journal.write_text("[1]\n"), 2000),
    ],
)
def test_damage_is_noticed_and_repaired(backbone, cache, damage, again):
    run(backbone, cache, rows=2000)
    damage(only(cache, "*.npy"), only(cache, "*.journal"))
    run(backbone, cache, rows=2000)
    assert samples_computed(backbone) == 2000 + again


@pytest.mark.skipif(sys.platform != "linux", reason="no peak memory of a process alone")
def test_memory_does_not_grow_with_the_number_of_samples(backbone, tmp_path):
    peaks = []
    for rows in (4_000, 40_000):  # 16 MB and 160 MB of features
        process = worker(tmp_path / str(rows), backbone, rows=rows, dim=1024)
        out, _ = process.communicate(timeout=PATIENCE)
        peaks.append(int(out) * 1024)
    assert peaks[1] - peaks[0] < 16e6


def test_errors_of_the_data_are_not_blamed_on_the_cache(cache, backbone):
    class Unreadable(Rows):
        def __getitem__(self, part):
            raise FileNotFoundError("photo.jpg")

    with pytest.raises(FileNotFoundError, match=r"photo\.jpg"):
        extract(Unreadable(10), backbone, data_fingerprint="rows", cache=cache)


def test_a_cache_that_cannot_be_made_is_told(backbone, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CacheError, match="FEDGRAM_CACHE"):
        extract(Rows(10), backbone, data_fingerprint="rows", cache=tmp_path / "file")


def test_features_that_are_not_numbers_are_refused_by_sample(cache, tmp_path):
    class Broken(Logged):
        def __call__(self, batch):
            return np.where(batch[:, None] == 70, np.nan, super().__call__(batch))

    with pytest.raises(InvalidData, match="sample 70"):
        extract(Rows(100), Broken(tmp_path / "log"), data_fingerprint="rows", cache=cache)


def test_a_backbone_that_loses_samples_is_refused(cache, tmp_path):
    class Lossy(Logged):
        def __call__(self, batch):
            return super().__call__(batch)[1:]

    with pytest.raises(InvalidData, match="samples 0 … 63"):
        extract(Rows(100), Lossy(tmp_path / "log"), data_fingerprint="rows", cache=cache)


def test_batch_must_be_positive(backbone, cache):
    with pytest.raises(InvalidParameter, match="batch 0"):
        extract(Rows(10), backbone, data_fingerprint="rows", cache=cache, batch=0)


def test_progress_goes_to_the_error_stream(backbone, cache, capfd):
    extract(Rows(100), backbone, data_fingerprint="rows", cache=cache, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "features of logged" in err
