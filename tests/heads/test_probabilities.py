"""Probabilities of models: their calibration, and the temperature."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

import fedgram as fg
from fedgram.core.errors import FedgramError, InvalidData
from fedgram.evaluation import Calibration
from fedgram.heads.least_squares import HOTTEST, calibrated, least_squares
from fedgram.heads.logistic import gradient
from fedgram.protocol.replies import Question
from support.campaign import examples

datasets = pytest.importorskip("sklearn.datasets")

TABLES = {"breast cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}
SEEDS = 4
LEAST_SQUARES = [
    fg.AFL(),
    fg.FedHiP(),
    fg.FedHiP(alpha=1.0),
    fg.Local(),
    fg.Local(ridge=10.0),
    fg.APFL(dim_primary=256),
    fg.FedACnnL(network="dense:64"),
    fg.PFedACnnL(network="dense:64"),
]


def spread(name, seed, alpha, clients=5):
    """Return a table's standardised samples over clients, each class in proportions from a Dirichlet distribution."""
    x, y = TABLES[name](return_X_y=True)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(clients, alpha), size=y.max() + 1)
    owner = np.array([rng.choice(clients, p=shares[label]) for label in y])
    tested = rng.random(len(x)) < 0.3
    parts = [(owner == k) & ~tested for k in range(clients)], [(owner == k) & tested for k in range(clients)]
    return [
        fg.Client(f"c{k}", x[train], y[train], x_test=x[test], y_test=y[test])
        for k, (train, test) in enumerate(zip(*parts, strict=True))
        if train.sum() > 1 and test.any()
    ]


def calibration(method, name, alpha):
    """Return the calibration errors of the global and of the personal models, over several partitions."""
    found = {"global": [], "personal": []}
    labels = []
    for seed in range(SEEDS):
        clients = spread(name, seed, alpha)
        fit = method.fit(clients, classes=int(max(client.y.max() for client in clients)) + 1)
        for client in clients:
            labels.append(client.y_test)
            if fit.model is not None:
                found["global"].append(fit.model.predict_proba(client.x_test))
            if fit.personal:
                found["personal"].append(fit.personal[client.name].predict_proba(client.x_test))
    y = np.concatenate(labels)
    return {kind: Calibration.of(np.concatenate(p), y).error for kind, p in found.items() if p}


@pytest.mark.parametrize("alpha", [0.5, 100.0])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedLogit()], ids=lambda method: method.name)
def test_fedgram_and_fedlogit_are_calibrated(method, name, alpha):
    errors = calibration(method, name, alpha)
    assert errors.keys() == {"global", "personal"}
    assert max(errors.values()) <= 0.03, errors


@pytest.mark.filterwarnings("ignore:the pooled features have rank")  # two pixels of digits are always empty
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "method",
    LEAST_SQUARES,
    ids=lambda method: f"{method.name}-{'fixed' if 1.0 in method.settings().values() else 'auto'}",
)
def test_least_squares_has_probabilities_too(method, name):
    """Without a temperature the error is 0.24 and more."""
    errors = calibration(method, name, 0.5)
    assert max(errors.values()) <= 0.05, errors


@pytest.mark.parametrize("alpha", [0.5, 100.0])
@pytest.mark.parametrize("name", TABLES)
def test_apfl_takes_account_of_samples_that_its_primary_stream_has_seen(name, alpha):
    """Without that, the errors of personal models are up to 0.027 here."""
    errors = calibration(fg.APFL(dim_primary=256), name, alpha)
    assert errors["global"] <= 0.03
    assert errors["personal"] <= 0.02


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.integers(1, 8), st.sampled_from([0.0, 0.3, 20.0]))
def test_the_classifier_is_that_of_the_moments(seed, n, d, ridge):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, d)), rng.integers(0, 3, n)
    moments = fg.Moments.of(np.column_stack([x, x[:, 0]]) if ridge else x, y, classes=3)
    for intercept in (False, True):
        if n <= d + 1:
            continue
        got, want = least_squares(moments, ridge, intercept=intercept), moments.model(ridge, intercept=intercept)
        assert np.array_equal(got.weights, want.weights)
        assert got.temperature > 0
        problem = moments.regression(intercept=intercept)
        freedom = problem.factor(ridge).freedom(ridge)
        assert freedom + intercept == pytest.approx(problem.degrees_of_freedom(ridge))


def test_left_out_scores_say_how_sure_to_be():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 3000)
    logits = 2 * np.eye(3)[y]  # each label is right with probability e² / (e² + 2)
    y = np.array([rng.choice(3, p=np.exp(row) / np.exp(row).sum()) for row in logits])
    assert calibrated(0.1 * logits, y, expected=1.0).temperature == pytest.approx(0.1, rel=0.1)
    assert calibrated(0.1 * logits, y, expected=0.01).temperature == pytest.approx(0.1, rel=0.1)


def test_nothing_left_out_leaves_what_is_expected():
    assert calibrated(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), 0.2).temperature == pytest.approx(0.2)
    wrong = np.eye(2)[[0] * 50]
    assert calibrated(wrong, np.ones(50, dtype=np.int64), 0.2).temperature == pytest.approx(0.2 * HOTTEST)


def test_a_class_that_nobody_has_is_impossible():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, 4)), np.repeat([0, 2], 30)
    x[y == 2] += 1
    clients = [fg.Client(f"c{k}", x[k::2], y[k::2]) for k in range(2)]
    for method in (fg.FedGram(), fg.FedLogit(rounds=3)):
        fit = method.fit(clients, classes=3)
        for model in (fit.model, *fit.personal.values()):
            assert (model.predict_proba(x)[:, 1] == 0).all()


def test_clients_that_join_later_change_the_temperature_as_from_the_start():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(90, 4))
    y = (x[:, 0] + rng.normal(size=90) > 0).astype(int)
    clients = [fg.Client(f"c{k}", x[k::3], y[k::3]) for k in range(3)]
    for method in (fg.AFL(), fg.FedHiP(), fg.FedGram()):
        few, everybody = method.fit(clients[:2], classes=2), method.fit(clients, classes=2)
        late = few.add(few.summarize(clients[2]), name="c2")
        assert late.model.temperature == pytest.approx(everybody.model.temperature, rel=1e-6)
        assert late.model.temperature != pytest.approx(few.model.temperature, rel=1e-6)


@pytest.mark.parametrize("method", [fg.FedAvg, fg.FedProto, fg.FedDBE], ids=lambda method: method.name)
def test_networks_have_probabilities(method):
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 3
    clients = [fg.Client(f"c{k}", x[k::2], y[k::2]) for k in range(2)]
    fit = method(rounds=1, network="mlp:4").fit(clients, classes=4)
    models = [model for model in (fit.model, *fit.personal.values()) if model is not None]
    assert models
    for model in models:
        probabilities = model.predict_proba(x)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        assert np.array_equal(np.asarray(model.classes)[probabilities.argmax(axis=1)], model.predict(x))


def test_what_fedlogit_hears_of_the_temperature():
    """Two sums are the first and second derivative of the log-likelihood with respect to a factor of all scores."""
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(80, 3)), rng.integers(0, 3, 80)
    model = fg.LinearModel(rng.normal(size=(3, 3)), (0, 1, 2), rng.normal(size=3))
    said = gradient(x, y, model)

    def at(factor):
        return log_softmax(factor * model.scores(x), axis=1)[np.arange(80), y].sum()

    step = 1e-4
    assert said.sharper == pytest.approx((at(1 + step) - at(1 - step)) / (2 * step), rel=1e-6)
    assert said.bend == pytest.approx(-(at(1 + step) - 2 * at(1.0) + at(1 - step)) / step**2, rel=1e-4)
    assert gradient(x, y, model, leverage=0.1).sharper < said.sharper, "a sample's own label speaks for it"


def test_fedlogit_refuses_impossible_news_of_the_temperature():
    question = Question("north", None, 0, (0, 1), (3,), "", samples=10, tested=0)
    wanted = fg.FedLogit().gradient_of(question)
    for name in ("sharper", "bend"):
        wanted[name].check(5.0, question, name)
        for bad in (1e12, np.inf, np.nan):
            with pytest.raises(FedgramError):
                wanted[name].check(bad, question, name)


def test_scores_that_are_too_large_for_probabilities_are_refused():
    model = fg.models.LinearModel(np.eye(2) * 1e308, ("cat", "dog"), temperature=0.1)
    with pytest.raises(InvalidData, match="not finite"):
        fg.models.probabilities(model, model.scores([[1.0, 0.5]]))
