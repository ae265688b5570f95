"""Partitions cover every sample once, for any numbers; data sets match their descriptions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidData, InvalidParameter, UnknownName
from fedgram.data import digits, load_dataset, synthetic
from fedgram.data.partition import spread
from support.problems import seeds


def assert_covers(parts, n, clients):
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def random_labels(seed, n, classes):
    return np.random.default_rng(seed).integers(0, classes, n)


@given(seeds, st.integers(1, 300), st.integers(1, 12), st.integers(1, 60), st.floats(-12, 4))
def test_dirichlet_covers_everything_for_any_alpha(seed, n, classes, clients, log_alpha):
    labels = random_labels(seed, n, classes)
    assert_covers(fg.partition.dirichlet(labels, clients=clients, alpha=10**log_alpha, seed=seed), n, clients)


@given(seeds, st.integers(1, 300), st.integers(1, 40), st.floats(-9, 2), st.data())
def test_dirichlet_minimum_size_always_ends_and_holds(seed, n, clients, log_alpha, data):
    smallest = data.draw(st.integers(0, n // clients))
    parts = fg.partition.dirichlet(
        random_labels(seed, n, 4), clients=clients, alpha=10**log_alpha, seed=seed, min_size=smallest
    )
    assert_covers(parts, n, clients)
    assert min(map(len, parts)) >= smallest


def test_dirichlet_has_the_law_it_names():
    """Shares of a class over K clients have mean 1/K and variance (1/K)(1 - 1/K)/(Kα + 1)."""
    labels, clients, alpha = np.zeros(10_000, dtype=int), 5, 0.4
    shares = np.array(
        [
            [len(part) / 10_000 for part in fg.partition.dirichlet(labels, clients=clients, alpha=alpha, seed=seed)]
            for seed in range(400)
        ]
    )
    assert shares.mean() == pytest.approx(0.2)
    assert shares.var() == pytest.approx(0.2 * 0.8 / (clients * alpha + 1), rel=0.1)


def test_small_alpha_is_more_skewed():
    labels = random_labels(0, 5000, 10)

    def classes_per_client(alpha):
        parts = fg.partition.dirichlet(labels, clients=20, alpha=alpha, seed=0)
        return np.mean([len(np.unique(labels[part])) for part in parts])

    assert classes_per_client(0.01) < 2.5 < classes_per_client(0.3) < classes_per_client(100) == 10


@given(seeds, st.integers(1, 300), st.integers(1, 20), st.integers(1, 4))
def test_shards(seed, n, clients, per_client):
    labels = random_labels(seed, n, 5)
    if clients * per_client > n:
        with pytest.raises(InvalidParameter, match=f"{clients * per_client} shards"):
            fg.partition.shards(labels, clients=clients, shards_per_client=per_client, seed=seed)
        return
    parts = fg.partition.shards(labels, clients=clients, shards_per_client=per_client, seed=seed)
    assert_covers(parts, n, clients)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= per_client


def test_shards_limit_the_classes():
    labels = np.repeat(np.arange(10), 100)
    parts = fg.partition.shards(labels, clients=50, shards_per_client=2, seed=0)
    assert max(len(np.unique(labels[part])) for part in parts) <= 2


@given(seeds, st.integers(20, 300), st.integers(1, 8), st.integers(1, 30), st.data())
def test_pathological(seed, n, classes, clients, data):
    labels = np.arange(n) % classes
    per_client = data.draw(st.integers(1, classes))
    if clients * per_client < classes:
        with pytest.raises(InvalidParameter, match="cannot hold all"):
            fg.partition.pathological(labels, clients=clients, classes_per_client=per_client, seed=seed)
        return
    for balanced in (True, False):
        parts = fg.partition.pathological(
            labels, clients=clients, classes_per_client=per_client, seed=seed, balanced=balanced
        )
        assert_covers(parts, n, clients)
        assert max(len(np.unique(labels[part])) for part in parts) <= per_client


def test_unbalanced_shares_are_those_of_fedapa():
    """Of two holders, the larger share is at most 0.7 / 0.3 of the smaller, and on average well above it."""
    labels = np.repeat(np.arange(10), 1000)
    ratios = []
    for seed in range(20):
        parts = fg.partition.pathological(labels, clients=10, classes_per_client=2, seed=seed, balanced=False)
        shares = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        assert ((shares > 0).sum(axis=1) == 2).all()
        ratios += [np.divide(*sorted(held[held > 0])[::-1]) for held in shares.T]
    assert max(ratios) <= 7 / 3 + 0.01
    # The mean of max / min of two draws that are uniform between 0.3 and 0.7.
    mean = (0.7**2 * np.log(0.7 / 0.3) - (0.7**2 - 0.3**2) / 2) / 0.4**2
    assert np.mean(ratios) == pytest.approx(mean, abs=0.06)


def test_even_shares_are_what_they_were():
    parts = fg.partition.pathological(np.arange(15) % 3, clients=4, classes_per_client=2, seed=5)
    assert [part.tolist() for part in parts] == [[1, 6, 7, 9, 10], [0, 5, 12, 14], [2, 4, 11, 13], [3, 8]]


def test_unbalanced_shares_have_a_text():
    data = digits()
    parts = spread(data, "pathological:2:unbalanced", clients=20, seed=3)
    want = fg.partition.pathological(data.y, clients=20, classes_per_client=2, seed=3, balanced=False)
    assert [part.tolist() for part in parts] == [part.tolist() for part in want]
    assert [len(part) for part in parts] != [len(part) for part in spread(data, "pathological:2", clients=20, seed=3)]


@given(seeds, st.integers(1, 200), st.integers(1, 30))
def test_iid(seed, n, clients):
    parts = fg.partition.iid(n, clients=clients, seed=seed)
    assert_covers(parts, n, clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_by_group():
    parts = fg.partition.by_group(["north", "south", "north", "east"])
    assert [part.tolist() for part in parts] == [[3], [0, 2], [1]]


def test_seeds_reproduce_and_differ():
    labels = random_labels(0, 500, 10)
    for make in (
        lambda seed: fg.partition.dirichlet(labels, clients=7, alpha=0.3, seed=seed),
        lambda seed: fg.partition.shards(labels, clients=7, shards_per_client=2, seed=seed),
        lambda seed: fg.partition.pathological(labels, clients=7, classes_per_client=2, seed=seed),
        lambda seed: fg.partition.iid(500, clients=7, seed=seed),
    ):
        first, again, other = ([part.tolist() for part in make(seed)] for seed in (1, 1, 2))
        assert first == again
        assert first != other


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_bad_alpha(alpha):
    with pytest.raises(InvalidParameter, match="alpha must be a number > 0"):
        fg.partition.dirichlet([0, 1], clients=2, alpha=alpha)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: fg.partition.dirichlet([], clients=2, alpha=1), InvalidData, "labels must be"),
        (lambda: fg.partition.dirichlet([0, 1], clients=0, alpha=1), InvalidParameter, "at least 1"),
        (
            lambda: fg.partition.dirichlet([0, 1], clients=2, alpha=1, min_size=2),
            InvalidParameter,
            "min_size: expected 0 to 1",
        ),
        (lambda: fg.partition.pathological([0, 1], clients=2, classes_per_client=3), InvalidParameter, "1 to 2"),
        (lambda: fg.partition.iid(0, clients=2), InvalidData, "n = 0"),
        (lambda: fg.partition.by_group([]), InvalidData, "groups"),
    ],
)
def test_bad_partitions(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_split_inside_clients():
    data = digits()
    parts = [np.arange(100), np.arange(100, 101), np.arange(101, 103), np.arange(0)]
    sizes = [(len(c.x), len(c.x_test)) for c in fg.make_clients(data, parts, test_fraction=0.2, seed=0)]
    assert sizes == [(80, 20), (1, 0), (2, 0), (0, 0)]
    client = fg.make_clients(data, [np.arange(50)], test_fraction=0.2, seed=0)[0]
    together = np.concatenate([client.x, client.x_test])
    assert sorted(map(bytes, together)) == sorted(map(bytes, data.x[:50]))
    with pytest.raises(InvalidParameter, match="test_fraction"):
        fg.make_clients(data, parts, test_fraction=1.0)


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), digits()
    assert np.array_equal(ours.x * 16, theirs.data)
    assert np.array_equal(ours.y, theirs.target)


def test_synthetic_follows_its_recipe():
    data = synthetic(0.5, 0.5, clients=40, seed=0)
    names, sizes = np.unique(data.groups, return_counts=True)
    assert sizes.min() >= 50
    assert sizes.max() > 10 * np.median(sizes), "power-law sizes"
    big = data.x[data.groups == names[sizes.argmax()]]
    want = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(big.var(axis=0), want, rtol=0.5)
    means = np.array([data.x[data.groups == name].mean(axis=0) for name in names])
    assert means.var() == pytest.approx(1 + 0.25, rel=0.2)  # v_k ~ N(B_k, 1), B_k ~ N(0, 0.5²)
    again = synthetic(0.5, 0.5, clients=40, seed=0)
    assert np.array_equal(again.x, data.x)
    assert np.array_equal(again.y, data.y)
    with pytest.raises(InvalidParameter, match="alpha and beta"):
        synthetic(-1, 0)


def test_a_clients_synthetic_data_do_not_depend_on_the_others():
    few, many = synthetic(clients=2, seed=1), synthetic(clients=5, seed=1)
    assert np.array_equal(few.x[few.groups == "client-1"], many.x[many.groups == "client-1"])


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("digts", UnknownName, "did you mean 'digits'"),
        ("digits:3", InvalidParameter, "takes no folder"),
        ("synthetic:a,b", InvalidParameter, "synthetic:0.5,0.5"),
    ],
)
def test_bad_data_sets(name, error, words):
    with pytest.raises(error, match=words):
        load_dataset(name)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("dirichlet", InvalidParameter, "takes a concentration"),
        ("dirichlet:x", InvalidParameter, "got 'x'"),
        ("dirichlt:1", UnknownName, "did you mean 'dirichlet'"),
        ("shards:1.5", InvalidParameter, "shards:2"),
        ("iid:3", InvalidParameter, "no argument"),
        ("pathological:unbalanced", InvalidParameter, "pathological:2:unbalanced"),
        ("shards:2:unbalanced", InvalidParameter, "shards:2"),
        ("by_group", InvalidParameter, "has no groups"),
        ("shards:9999", InvalidParameter, "use fewer clients or shards"),
    ],
)
def test_bad_partition_texts(how, error, words):
    with pytest.raises(error, match=words):
        spread(digits(), how, clients=3)
