"""From a data set's name or a user's path to features, ready to be spread; and AFL on them."""

import json

import numpy as np
import pytest
from PIL import Image

import fedgram as fg
from fedgram.core.errors import InvalidParameter
from fedgram.data import load_dataset
from fedgram.features import RandomFeatures, featurize, load_features
from support.command import run


def test_real_images_become_features():
    data = load_features("cifar10", backbone="lite0:64", samples=96)
    assert data.x.shape == (96, 1280)
    assert data.x.dtype == np.float32
    assert data.features.startswith("lite0:64")
    assert data.x_test is None
    again = load_features("cifar10", backbone="lite0:64", samples=96)
    assert np.array_equal(data.x, again.x)
    assert np.array_equal(data.y, again.y)


def test_own_test_set_stays_apart():
    data = load_features("mnist", backbone="pixels", own_test=True)
    assert data.x.shape == (60_000, 784)
    assert data.x_test.shape == (10_000, 784)
    assert data.x.max() == 1.0
    pooled = load_features("mnist", backbone="pixels")
    assert pooled.x.shape == (70_000, 784)
    assert np.array_equal(pooled.y[60_000:], data.y_test)


def test_afl_is_exact_on_real_images():
    """Fashion-MNIST over shards and over a skewed Dirichlet: the same weights, the same accuracy."""
    data = load_features("fashion-mnist", backbone="pixels", own_test=True)
    projected = RandomFeatures(784, 256, seed=0)
    data = fg.Dataset(data.name, projected(data.x), data.y, data.classes, "", features="projected")
    weights = []
    for parts in (
        fg.partition.shards(data.y, clients=100, shards_per_client=2, seed=0),
        fg.partition.dirichlet(data.y, clients=500, alpha=0.01, seed=1),
    ):
        weights.append(fg.AFL().fit(fg.make_clients(data, parts, test_fraction=0), classes=data.classes).model.weights)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6, atol=1e-8 * np.abs(weights[0]).max())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cifar10", {}, "cifar10 holds images, not features: choose a backbone, such as lite0:96"),
        ("spam-assassin", {}, "holds texts, not features: choose a backbone, minilm"),
        ("spam-assassin", {"backbone": "pixels"}, "texts, which have no pixels"),
        ("digits", {"backbone": "lite0"}, "holds features already"),
        ("digits", {"own_test": True}, "no test set of its own"),
        ("cifar10", {"samples": 60_001, "backbone": "pixels"}, "1 to the 60,000"),
    ],
)
def test_what_cannot_be_prepared(name, options, words):
    with pytest.raises(InvalidParameter, match=words):
        load_features(name, **options)


def test_samples_are_always_the_same():
    data = load_dataset("digits")
    assert np.array_equal(data.sample(50).x, data.sample(50).x)
    assert data.sample(50).fingerprint != data.sample(60).fingerprint
    grouped = load_dataset("synthetic", clients=5)
    assert len(grouped.sample(100).groups) == 100


def test_grouped_test_sets_cannot_be_pooled(tmp_path):
    path = tmp_path / "grouped.npz"
    np.savez(path, x=np.eye(4), y=[0, 1, 0, 1], groups=[0, 0, 1, 1], x_test=np.eye(4)[:1], y_test=[0])
    with pytest.raises(InvalidParameter, match="test set has no groups"):
        load_dataset(str(path)).pooled()


def test_own_table_with_a_client_column(tmp_path):
    """The engineer's way: a CSV of patients, its hospitals as clients."""
    rng = np.random.default_rng(0)
    path = tmp_path / "patients.csv"
    rows = ["age,pressure,hospital,diagnosis"]
    for i in range(60):
        ill = i % 2
        rows.append(f"{40 + 9 * ill + rng.normal():.3f},{rng.normal():.3f},{'ABC'[i % 3]},{'ill' if ill else 'well'}")
    path.write_text("\n".join(rows))
    options = ("--label", "diagnosis", "--client-column", "hospital", "--json")
    record = json.loads(run("run", "--data", str(path), *options).stdout)
    assert record["clients"] == 3
    assert record["partition"] == "by_group"
    assert record["contributors"] == 3
    wrong = run("run", "--data", str(path), *options, "--clients", "7")
    assert "--clients 7, but the data has 3 groups" in wrong.stderr
    path.write_text(path.read_text() + "\n50,high,A,ill")
    refused = run("run", "--data", str(path), *options)
    assert refused.returncode == 2
    assert "line 62" in refused.stderr
    skipped = run("run", "--data", str(path), *options, "--on-bad", "skip")
    assert skipped.returncode == 0
    assert "line 62" in skipped.stderr
    path.write_text(path.read_text().replace("high", "NaN"))
    mended = run("run", "--data", str(path), *options)
    assert mended.returncode == 0, "a missing value is not a bad row: a study says what becomes of it"
    assert "study drafted" in mended.stderr


def test_own_folder_of_images(tmp_path):
    """A folder per class, real images, one of them broken."""
    images = load_dataset("cifar10")
    for i in range(24):
        folder = tmp_path / "photos" / str(images.classes[images.y[i]])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.x[i]).save(folder / f"{i:03d}.png")
    data = featurize(load_dataset(str(tmp_path / "photos")), "lite0:64")
    assert data.x.shape == (24, 1280)
    (folder / "broken.png").write_bytes(b"not an image")
    refused = run("run", "--data", str(tmp_path / "photos"), "--backbone", "lite0:64", "--clients", "3")
    assert refused.returncode == 2
    assert "broken.png" in refused.stderr
