"""What docs/privacy.md says moments reveal, shown."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedgram as fg
from fedgram import data as datasets
from fedgram.engines.inprocess import InProcess, Room
from fedgram.engines.session import run
from fedgram.logistic import Logistic, slope


def intercepted(x, y):
    """Return what the server sees of one client."""
    return fg.Moments.from_bytes(fg.Moments.of(x, y, classes=10).to_bytes())


def test_a_client_with_one_sample_is_reconstructed():
    digits = load_digits()
    for i in range(20):
        seen = intercepted(digits.data[i : i + 1], digits.target[i : i + 1])
        assert seen.counts.argmax() == digits.target[i]
        np.testing.assert_allclose(seen.cross[:, digits.target[i]], digits.data[i], atol=1e-9)


def test_a_class_with_one_sample_is_reconstructed_from_any_client():
    digits = load_digits()
    sevens, others = np.flatnonzero(digits.target == 7)[:1], np.flatnonzero(digits.target != 7)[:500]
    chosen = np.concatenate([sevens, others])
    seen = intercepted(digits.data[chosen], digits.target[chosen])
    assert seen.counts[7] == 1
    np.testing.assert_allclose(seen.cross[:, 7], digits.data[sevens[0]], atol=1e-9)


def test_the_papers_upload_reveals_the_same():
    """The server recovers the cross moments from (C_k, W_k), whatever γ is: C_k W_k = X_kᵀY_k."""
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(size=(1, 8)), 3.0
    C = x.T @ x + gamma * np.eye(8)
    W = np.linalg.solve(C, x.T @ np.eye(2)[[1]])
    np.testing.assert_allclose((C @ W)[:, 1], x[0], atol=1e-12)


def test_the_difference_of_two_totals_is_the_leaver():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)), np.arange(40) % 2
    before, after = fg.Moments.of(x, y, classes=2), fg.Moments.of(x[1:], y[1:], classes=2)
    assert (before - after).cross[:, 0] == pytest.approx(x[0], abs=1e-12)


def test_the_record_of_a_client_with_one_sample_is_that_sample():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(41, 6)), np.arange(41) % 2
    fit = fg.AFL().fit([fg.Client("lonely", x[:1], y[:1]), fg.Client("ward", x[1:], y[1:])], classes=2)
    known = fit.contributions.by_name["lonely"]
    np.testing.assert_allclose(known.gram / known.sums[y[0]], x[0])
    assert fit.contributions.by_name["ward"].counts.tolist() == [20, 20], "the label histogram"


def test_one_gradient_step_reveals_a_single_sample():
    # What FedAvg sends after a step on one sample is the old weights minus the error times the sample.
    data = datasets.digits()
    lonely = fg.Client("lonely", data.x[:1], data.y[:1])
    before, after = (fg.FedAvg(rounds=1, epochs=1, lr=lr).fit([lonely], classes=10).model for lr in (1e-30, 0.1))
    change = after.weights - before.weights
    guess = change[:, np.abs(change).sum(axis=0).argmax()]
    assert abs(np.corrcoef(guess, lonely.x[0])[0, 1]) > 0.999


def test_prototypes_of_one_sample_are_its_features():
    data = datasets.digits()
    lonely = fg.Client("lonely", data.x[:1], data.y[:1])
    method = fg.FedProto(rounds=1, network="linear", predict="prototype")
    room = Room(method, [lonely], None, InProcess())
    run(method, room, classes=10, seed=0, require="all", progress=None)
    side = room.sides["lonely"]
    sent = method._sums(side, side.state["own"])
    np.testing.assert_allclose(sent["features"][lonely.y[0]], lonely.x[0], rtol=1e-6)


def test_slopes_tell_more_than_moments_but_the_first():
    """Two clients with equal moments: turned within each class, about the class's mean."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 6)
    x = rng.normal(size=(18, 5))
    turned = x.copy()
    for c in range(3):
        own = x[y == c]
        basis, _ = np.linalg.qr(np.column_stack([np.ones(6), rng.normal(size=(6, 5))]))
        spin, _ = np.linalg.qr(rng.normal(size=(5, 5)))
        inner = basis[:, 1:]
        turned[y == c] = own - inner @ (inner.T @ own) + inner @ spin @ (inner.T @ own)
    one, other = fg.Moments.of(x, y, classes=3), fg.Moments.of(turned, y, classes=3)
    np.testing.assert_allclose(other.gram, one.gram, atol=1e-12)
    np.testing.assert_allclose(other.cross, one.cross, atol=1e-12)
    ascent = Logistic(one, 1.0)
    first, same = slope(x, y, ascent.ahead)[0], slope(turned, y, ascent.ahead)[0]
    np.testing.assert_allclose(same, first, atol=1e-12)
    ascent.climb(*slope(x, y, ascent.ahead))
    assert np.abs(slope(turned, y, ascent.ahead)[0] - slope(x, y, ascent.ahead)[0]).max() > 1e-3


def test_a_slope_of_one_sample_is_its_features_times_the_error():
    rng = np.random.default_rng(0)
    x, model = rng.normal(size=(1, 5)), fg.LinearModel(rng.normal(size=(5, 3)), (0, 1, 2), rng.normal(size=3))
    found, _ = slope(x, np.array([1]), model)
    np.testing.assert_allclose(found[:-1] / found[-1], np.repeat(x.T, 3, axis=1))
