"""The real data sets, against published facts. Fetched into the shared cache on first use."""

import time

import numpy as np
import pytest

from fedgram.core.errors import UnknownName
from fedgram.data.published import catalog


def test_cifar10_is_the_real_one() -> None:
    data = catalog.load("cifar10")
    assert data.x.shape == (50_000, 32, 32, 3)
    assert data.x_test.shape == (10_000, 32, 32, 3)
    assert data.x.dtype == np.uint8
    assert data.y.dtype == np.int64
    np.testing.assert_allclose(data.x.mean(axis=(0, 1, 2)), [125.307, 122.950, 113.866], atol=0.001)
    assert np.bincount(data.y).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert [data.classes[i] for i in data.y[:4]] == ["frog", "truck", "truck", "deer"]
    assert data.x[0, 0, 0].tolist() == [59, 62, 63]
    assert data.x[0, 31, 31].tolist() == [123, 92, 72]


def test_mnist_is_the_real_one() -> None:
    data = catalog.load("mnist")
    assert data.x.shape == (60_000, 28, 28)
    assert data.x.mean() == pytest.approx(33.318, abs=0.001)
    assert data.x_test.mean() == pytest.approx(33.791, abs=0.001)
    assert np.bincount(data.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.x[0, 5, 12:18].tolist() == [3, 18, 18, 18, 126, 136]
    assert data.classes == tuple(range(10))


def test_fashion_mnist_is_the_real_one() -> None:
    data = catalog.load("fashion-mnist")
    assert data.x.shape == (60_000, 28, 28)
    assert data.x.mean() == pytest.approx(72.940, abs=0.001)
    assert np.bincount(data.y).tolist() == [6000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert [data.classes[i] for i in data.y[:4]] == ["Ankle boot", "T-shirt/top", "T-shirt/top", "Dress"]


def test_spam_assassin_is_the_real_one() -> None:
    data = catalog.load("spam-assassin")
    assert data.groups is not None
    names, counts = np.unique(data.groups, return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {
        "easy-ham-1": 2500,
        "easy-ham-2": 1400,
        "hard-ham-1": 250,
        "spam-1": 500,
        "spam-2": 1396,
    }
    assert data.classes == ("ham", "spam")
    assert data.y.sum() == 1896
    assert all(isinstance(text, str) and text for text in data.x)
    first_spam = data.x[np.flatnonzero(data.groups == "spam-1")[0]]
    assert "Subject: Life Insurance - Why Pay More?" in first_spam


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist", "spam-assassin"])
def test_once_fetched_a_set_is_there_at_once(name: str) -> None:
    first = catalog.load(name)
    start = time.process_time()
    again = catalog.load(name)
    assert time.process_time() - start < 0.5
    assert again.fingerprint == first.fingerprint
    facts = catalog.info(name)
    assert facts.ready
    assert facts.fingerprint == first.fingerprint
    assert (facts.train, facts.classes) == (len(first), len(first.classes))
    assert facts.test == (0 if first.y_test is None else len(first.y_test))


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UnknownName, match="did you mean 'cifar10'"):
        catalog.load("cifer10")
