"""Hashes of version 0.1.0: with other hashes, caches and finished runs would not be found again."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import WrongChecksum
from fedgram.core.hashing import checksum, hash_parts, verify
from fedgram.core.randomness import generator
from fedgram.data.dataset import Dataset, fingerprint
from fedgram.data.shift import shifted
from fedgram.experiments.scenario import stable_key


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"weights")
    return path


def test_data_sets():
    columns = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([0, 1]), "g": None}
    assert fingerprint(columns, ("a", "b")) == "e9b3091d0ed9b94e1c630a65b1b1451035064d88737ee0e08550449d9c62b38e"
    images = Dataset(name="i", classes=(0, 1), x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2, fingerprint="f")
    turned = shifted(images, [[0, 1], [2, 3]], ["a", "b"], "rotation:45").fingerprint
    assert turned == "f/rotation:45/82deead98248233628779f222e8ebc18f39f6820ac4e7e6346faa2565a8f4ce5"


def test_backbones(file):
    want = "5673c9f72493f1a4ac6904ac25fc1b85a70f6987e701f27c8963501196dafd87"
    assert hash_parts("lite", 1, (4, -1), file) == want


def test_files(file):
    assert checksum(file) == "sha256:9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
    assert checksum(file, "md5") == "md5:63f4f1e9b725370f459720575cd5f953"
    verify(file, checksum(file, "md5"))
    with pytest.raises(WrongChecksum, match="file has checksum md5:63f.*, expected md5:0"):
        verify(file, "md5:0")


def test_runs_and_random_numbers():
    assert stable_key({"method": "afl", "gamma": 1.0, "none": None}) == "ec43e16812a6778e"
    assert generator(3, "train", 2, "ward").integers(0, 2**62) == 3878951840888537903


def test_moments():
    moments = fg.Moments.of(np.arange(6.0).reshape(3, 2), [0, 1, 1], classes=["a", "b"])
    assert moments.digest == "c557e7d92d7b5c122ea8a7b77135063a0cd3dcfa703142f39e0391d39d845571"
