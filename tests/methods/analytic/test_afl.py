"""AFL is exact: the joint least-squares solution for any partition, order and number of clients."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidParameter, RankDeficient, UnknownName
from fedgram.protocol.named_methods import resolve
from reference import recursions
from support.campaign import examples
from support.problems import as_clients, features, least_norm, patients, relative_error, seeds, spread_any_way

ROOT = Path(__file__).parents[3]
EPS = np.finfo(float).eps


def joint_solution(x, y, classes):
    return least_norm(x, np.eye(classes)[y])


def with_intercept(x, y, classes):
    """Return the weights and the intercept of least squares with one, of minimum norm, on all samples in one place."""
    targets, mean = np.eye(classes)[y], x.mean(axis=0)
    weights = least_norm(x - mean, targets - targets.mean(axis=0), rcond=1e-10)
    return weights, targets.mean(axis=0) - mean @ weights


@examples(60)
@given(seeds, st.integers(1, 40), st.integers(2, 6), st.sampled_from([1, 2, 3, 7, 40, 300, 1000]), st.booleans())
def test_equals_the_joint_solution_for_any_partition(seed, d, classes, clients, single):
    rng = np.random.default_rng(seed)
    n = d + int(rng.integers(1, 200))
    x, y = features(rng, n, d), rng.integers(0, classes, n)
    parts = spread_any_way(rng, n, clients)
    rng.shuffle(parts)
    data = x.astype(np.float32) if single else x
    fit = fg.AFL(intercept=False).fit(as_clients(data, y, parts), classes=classes)
    assert relative_error(fit.model.weights, joint_solution(data.astype(float), y, classes)) < 1e-9
    assert fit.model.intercept is None
    assert set(fit.contributors) == {f"client-{k}" for k, part in enumerate(parts) if len(part)}


@examples(60)
@given(seeds, st.integers(1, 40), st.integers(2, 6), st.sampled_from([1, 2, 3, 7, 40, 300, 1000]), st.booleans())
def test_with_the_intercept_it_equals_the_joint_solution_with_one(seed, d, classes, clients, single):
    rng = np.random.default_rng(seed)
    n = d + int(rng.integers(2, 200))
    x, y = features(rng, n, d) + 3 * rng.normal(size=d), rng.integers(0, classes, n)
    parts = spread_any_way(rng, n, clients)
    rng.shuffle(parts)
    data = x.astype(np.float32) if single else x
    model = fg.AFL().fit(as_clients(data, y, parts), classes=classes).model
    weights, intercept = with_intercept(data.astype(float), y, classes)
    # Two samples more than features can leave centred features as ill-conditioned as chance has it.
    slack = 1e-9 + 50 * EPS * np.linalg.cond(data - data.mean(axis=0)) ** 2
    assert relative_error(model.weights, weights) < slack
    assert relative_error(model.intercept, intercept) < slack


@examples(40)
@given(seeds, st.integers(1, 11), st.sampled_from([1, 4, 60]))
def test_with_the_intercept_a_rank_deficient_pool_gives_the_minimum_norm_solution(seed, rank, clients):
    rng = np.random.default_rng(seed)
    x, y = features(rng, 80, 12, rank=rank) + 2 * rng.normal(size=12), rng.integers(0, 3, 80)
    with pytest.warns(RankDeficient, match=f"rank {rank} of 12"):
        model = fg.AFL().fit(as_clients(x, y, spread_any_way(rng, 80, clients)), classes=3).model
    weights, intercept = with_intercept(x, y, 3)
    assert relative_error(model.weights, weights) < 1e-9
    assert relative_error(model.intercept, intercept) < 1e-9


def test_fewer_samples_than_features_and_a_constant_column():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 30)) + 5, rng.integers(0, 3, 20)
    x[:, 4] = 1 / 3
    with pytest.warns(RankDeficient, match="rank 19 of 30"):
        model = fg.AFL().fit(as_clients(x, y, np.array_split(np.arange(20), 3)), classes=3).model
    weights, intercept = with_intercept(x, y, 3)
    assert relative_error(model.weights, weights) < 1e-9
    assert relative_error(model.intercept, intercept) < 1e-9
    assert np.abs(model.weights[4]).max() < 1e-12


def test_columns_of_a_table_far_from_zero():
    """Age, blood pressure, creatinine in µmol/l: without an intercept the weights must fit their means."""
    x, y = patients()
    clients = [fg.Client(f"hospital-{k}", x[k:300:3], y[k:300:3]) for k in range(3)]
    with_one, without = (
        (fg.AFL(intercept=intercept).fit(clients).model.predict(x[300:]) == y[300:]).mean()
        for intercept in (True, False)
    )
    assert with_one > 0.85
    assert without < 0.75


def test_without_ri_the_regularization_leaves_the_intercept_alone():
    rng = np.random.default_rng(2)
    x, y = features(rng, 60, 5) + 4, rng.integers(0, 2, 60)
    model = fg.AFL(gamma=1e9, ri=False).fit(as_clients(x, y, [np.arange(30), np.arange(30, 60)]), classes=2).model
    assert np.abs(model.weights).max() < 1e-6
    np.testing.assert_allclose(model.intercept, np.bincount(y) / 60, atol=1e-5)


@examples(40)
@given(seeds, st.floats(0, 6), st.sampled_from([1, 5, 50]))
def test_error_grows_with_the_square_of_the_condition_number(seed, exponent, clients):
    rng = np.random.default_rng(seed)
    condition = 10**exponent
    x, y = features(rng, 120, 12, condition=condition), rng.integers(0, 3, 120)
    fit = fg.AFL(intercept=False).fit(as_clients(x, y, spread_any_way(rng, 120, clients)), classes=3)
    bound = 1e-13 + 50 * condition**2 * EPS
    assert relative_error(fit.model.weights, joint_solution(x, y, 3)) < bound


@examples(40)
@given(seeds, st.integers(1, 11), st.sampled_from([1, 4, 60]))
def test_rank_deficient_pool_gives_the_minimum_norm_solution(seed, rank, clients):
    rng = np.random.default_rng(seed)
    x, y = features(rng, 80, 12, rank=rank), rng.integers(0, 3, 80)
    with pytest.warns(RankDeficient, match=f"rank {rank} of 12"):
        fit = fg.AFL(intercept=False).fit(as_clients(x, y, spread_any_way(rng, 80, clients)), classes=3)
    assert relative_error(fit.model.weights, joint_solution(x, y, 3)) < 1e-9


def test_a_thousand_clients_of_one_sample_each():
    rng = np.random.default_rng(0)
    x, y = features(rng, 1000, 20), rng.integers(0, 4, 1000)
    fit = fg.AFL(intercept=False).fit(as_clients(x, y, np.arange(1000)[:, None]), classes=4)
    assert relative_error(fit.model.weights, joint_solution(x, y, 4)) < 1e-9
    assert len(fit.contributors) == 1000


@examples(25)
@given(seeds, st.floats(-3, 3), st.booleans(), st.integers(1, 8))
def test_equals_the_papers_recursion(seed, log_gamma, ri, clients):
    rng = np.random.default_rng(seed)
    gamma = 10**log_gamma
    x, y = features(rng, 150, 10), rng.integers(0, 3, 150)
    parts = np.array_split(rng.permutation(150), clients)
    paper = recursions.afl([(x[part], np.eye(3)[y[part]]) for part in parts], gamma, ri=ri)
    ours = fg.AFL(gamma=gamma, ri=ri, intercept=False).fit(as_clients(x, y, parts), classes=3).model.weights
    # The recursion inverts each client's C_k, so it loses digits by their conditioning; ours does not.
    worst = max(np.linalg.cond(x[part].T @ x[part] + gamma * np.eye(10)) for part in parts)
    assert relative_error(ours, paper) < 1e-10 + 1e3 * EPS * worst


@pytest.mark.usefixtures("registered")
def test_the_recursion_of_the_examples_is_the_papers_and_fails_only_without_regularization():
    recursion = resolve(str(ROOT / "examples" / "afl_recursion.py"))
    rng = np.random.default_rng(0)
    x, y = features(rng, 150, 10), rng.integers(0, 3, 150)
    few, many = (np.array_split(rng.permutation(150), clients) for clients in (5, 30))  # 30 and 5 samples, 10 features

    def off(gamma, parts):
        fit = recursion(gamma=gamma).fit(as_clients(x, y, parts), classes=3)
        return relative_error(fit.model.weights, joint_solution(x, y, 3))

    assert off(1.0, many) < 1e-9
    assert off(0.0, few) < 1e-9
    assert off(0.0, many) > 0.1
    ours = fg.AFL(gamma=0, intercept=False).fit(as_clients(x, y, many), classes=3)
    assert relative_error(ours.model.weights, joint_solution(x, y, 3)) < 1e-9


def test_printed_sign_of_the_aa_law_is_a_misprint():
    """AFL (8), (10) print I + C⁻¹C. With that sign the result is far off; with minus it is the joint solution."""
    rng = np.random.default_rng(1)
    x, y = features(rng, 100, 6), rng.integers(0, 3, 100)
    Cu, Cv = (part.T @ part for part in (x[:50], x[50:]))
    Wu, Wv = (np.linalg.pinv(x[s]) @ np.eye(3)[y[s]] for s in (slice(50), slice(50, None)))
    want, unit = joint_solution(x, y, 3), np.eye(6)

    def merged(sign):
        C = Cu + Cv
        left = unit - np.linalg.solve(Cu, Cv) @ (unit + sign * np.linalg.solve(C, Cv))
        right = unit - np.linalg.solve(Cv, Cu) @ (unit + sign * np.linalg.solve(C, Cu))
        return left @ Wu + right @ Wv

    assert relative_error(merged(-1), want) < 1e-9
    assert relative_error(merged(+1), want) > 0.5


def test_without_ri_the_regularization_counts_those_who_contributed():
    rng = np.random.default_rng(2)
    x, y = features(rng, 60, 5), rng.integers(0, 2, 60)
    clients = as_clients(x, y, [np.arange(30), np.arange(30, 60), np.arange(0)])
    fit = fg.AFL(gamma=2.0, ri=False, intercept=False).fit(clients, classes=2)
    want = np.linalg.solve(x.T @ x + 2 * 2.0 * np.eye(5), x.T @ np.eye(2)[y])
    assert relative_error(fit.model.weights, want) < 1e-12


def test_gamma_cancels():
    rng = np.random.default_rng(3)
    x, y = features(rng, 60, 5), rng.integers(0, 2, 60)
    clients = as_clients(x, y, np.array_split(np.arange(60), 7))
    weights = [fg.AFL(gamma=gamma).fit(clients, classes=2).model.weights for gamma in (0.0, 1e-3, 1e3)]
    assert np.array_equal(weights[0], weights[1])
    assert np.array_equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("settings_", "error", "words"),
    [
        ({"gama": 1.0}, UnknownName, "did you mean 'gamma'"),
        ({"gamma": -1.0}, InvalidParameter, "gamma: expected a number ≥ 0, got -1.0"),
        ({"gamma": "x"}, InvalidParameter, "gamma: expected a number ≥ 0, got 'x'"),
        ({"gamma": float("nan")}, InvalidParameter, "gamma"),
        ({"gamma": float("inf")}, InvalidParameter, "gamma: expected a number ≥ 0, got inf"),
        ({"ri": 1}, InvalidParameter, "ri: expected true or false"),
        ({"intercept": "yes"}, InvalidParameter, "intercept: expected true or false"),
    ],
)
def test_bad_hyperparameters_are_named(settings_, error, words):
    with pytest.raises(error, match=words):
        fg.AFL(**settings_)


def test_digits_reach_the_centralised_accuracy():
    """On real digits with the worst split, AFL's predictions equal those of one ridge-free fit on all data."""
    from fedgram.data import digits

    data = digits()
    parts = fg.partition.dirichlet(data.y, clients=50, alpha=0.01, seed=0)
    clients = fg.make_clients(data, parts, test_fraction=0.2, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        fit = fg.AFL(intercept=False).fit(clients, classes=data.classes)
    x, y = (np.concatenate([getattr(client, name) for client in clients]) for name in ("x", "y"))
    joint = joint_solution(x, y, 10)
    x_test = np.concatenate([client.x_test for client in clients])
    assert np.array_equal(fit.model.predict(x_test), (x_test @ joint).argmax(axis=1))
    assert fit.evaluation.pooled > 0.92
