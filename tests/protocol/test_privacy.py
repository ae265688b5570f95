"""Disclosures by moments, as docs/guides/privacy.md lists them."""

import numpy as np
import pytest

import fedgram as fg
from fedgram import data as datasets
from fedgram.engines.inprocess import InProcess, Room
from fedgram.heads.logistic import Logistic, gradient
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.session import run


def intercepted(x, y):
    """Return the server's view of one client."""
    return fg.Moments.from_bytes(fg.Moments.of(x, y, classes=10).to_bytes())


def test_a_client_with_one_sample_is_reconstructed():
    digits = datasets.digits()
    for i in range(20):
        seen = intercepted(digits.x[i : i + 1], digits.y[i : i + 1])
        assert seen.counts.argmax() == digits.y[i]
        np.testing.assert_allclose(seen.cross[:, digits.y[i]], digits.x[i], atol=1e-9)


def test_a_class_with_one_sample_is_reconstructed_from_any_client():
    digits = datasets.digits()
    sevens, others = np.flatnonzero(digits.y == 7)[:1], np.flatnonzero(digits.y != 7)[:500]
    chosen = np.concatenate([sevens, others])
    seen = intercepted(digits.x[chosen], digits.y[chosen])
    assert seen.counts[7] == 1
    np.testing.assert_allclose(seen.cross[:, 7], digits.x[sevens[0]], atol=1e-9)


def test_a_gram_matrix_of_few_samples_shows_the_space_they_span_and_their_inner_products():
    x = np.random.default_rng(0).normal(size=(4, 12))
    gram = intercepted(x, np.arange(4)).gram
    values, vectors = np.linalg.eigh(gram)
    span = vectors[:, -4:]
    np.testing.assert_allclose(x @ span @ span.T, x, atol=1e-12)
    # Up to a rotation: samples U x have the same Gram matrix, and inner products U x xᵀ Uᵀ with the same eigenvalues.
    np.testing.assert_allclose(values[-4:], np.linalg.eigvalsh(x @ x.T), atol=1e-12)


def test_the_papers_upload_reveals_the_same():
    """The server recovers the cross moments from (C_k, W_k), for any γ: C_k W_k = X_kᵀY_k."""
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
    # After a step on one sample FedAvg sends the old weights minus the error times the sample.
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
    room = Room(method, [lonely], InProcess())
    run(method, room, classes=10, seed=0, require="all", progress=None)
    side = room.sides["lonely"]
    sent = method._sums(side, side.state["own"])
    np.testing.assert_allclose(sent["features"][lonely.y[0]], lonely.x[0], rtol=1e-6)


def test_gradients_tell_more_than_moments_but_the_first():
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
    first = gradient(x, y, ascent.ahead)
    np.testing.assert_allclose(gradient(turned, y, ascent.ahead).gradient, first.gradient, atol=1e-12)
    ascent.climb(first)
    assert np.abs(gradient(turned, y, ascent.ahead).gradient - gradient(x, y, ascent.ahead).gradient).max() > 1e-3


def test_a_gradient_of_one_sample_is_its_features_times_the_error():
    rng = np.random.default_rng(0)
    x, model = rng.normal(size=(1, 5)), fg.LinearModel(rng.normal(size=(5, 3)), (0, 1, 2), rng.normal(size=3))
    found = gradient(x, np.array([1]), model).gradient
    np.testing.assert_allclose(found[:-1] / found[-1], np.repeat(x.T, 3, axis=1))


def test_counts_of_right_answers_to_chosen_models_find_a_test_samples_value():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    side = ClientSide(fg.Client("a", x, y, x, y), classes=(0, 1))

    def right(threshold):
        model = fg.LinearModel(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), (0, 1), np.array([0.0, -threshold]))
        return fg.AFL().evaluate(side, model)["right"].sum()

    low, high = -10.0, 10.0
    low = next(t for t in np.linspace(high, low, 2000) if right(t) != right(high))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if right(middle) == right(10.0) else (middle, high)
    assert np.abs(x[:, 0] - high).min() < 1e-12


def test_the_triangular_factor_shows_samples_that_have_no_features_in_common():
    """Texts without a common word, for example: R is the samples themselves, up to order and sign."""
    rng = np.random.default_rng(0)
    x = np.zeros((3, 40))
    for i in range(3):
        x[i, 10 * i : 10 * i + 5] = rng.normal(size=5)
    moments = fg.Moments.from_bytes(fg.Moments.of(x, np.zeros(3, dtype=int), classes=2).to_bytes())
    sent = moments._factor
    assert sent is not None, "few samples are sent as a factor"
    for row in x:
        assert min(np.abs(sent - row).max(axis=1).min(), np.abs(sent + row).max(axis=1).min()) < 1e-12


def test_a_gram_matrix_shows_a_sample_that_alone_has_a_feature():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8))
    x[:, 3] = 0.0
    x[17, 3] = 2.0
    gram = intercepted(x, np.arange(50) % 10).gram
    np.testing.assert_allclose(gram[:, 3] / np.sqrt(gram[3, 3]), x[17], atol=1e-12)
