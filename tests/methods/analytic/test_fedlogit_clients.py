"""FedLogit among clients: odd features, lost clients and newcomers, and what its rounds cost."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import softmax

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.data import digits
from fedgram.heads import logistic
from fedgram.heads.logistic import Logistic
from support.problems import as_clients, logistic_problem, relative_error, skewed


def test_classes_that_nobody_has_and_a_constant_feature():
    x, y = logistic_problem()
    x[:, 2] = 7.0
    parts = [np.arange(100), np.arange(100, 240)]
    fit = fg.FedLogit().fit(as_clients(x, y, parts), classes=5)
    for model in (fit.model, *fit.personal.values()):
        assert np.isfinite(model.scores(x)).all()
        assert set(np.unique(model.predict(10 * x))) <= {0, 1, 2}
        assert np.abs(model.weights[2]).max() < 1e-9


@pytest.mark.parametrize("ridge", ["auto", 1.0])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1, 1e9])
def test_features_that_only_seem_to_vary(value, ridge):
    """Sums of such numbers are not exact; their remainder must not count as a gradient."""
    x, y = logistic_problem()
    nothing = fg.FedLogit(ridge=ridge).fit(as_clients(np.full_like(x, value), y, [np.arange(240)]), classes=3).model
    np.testing.assert_allclose(softmax(nothing.scores(np.full_like(x[:1], value)))[0], np.bincount(y) / 240, atol=1e-3)
    shifted, lost = x.copy(), x.copy()
    shifted[:, 2] += 1e11
    lost[:, 2] += 1e19  # beyond, numbers do not hold its deviation
    without = np.delete(x, 2, axis=1)
    predicted = [
        fg.FedLogit(ridge=ridge).fit(as_clients(rows, y, [np.arange(240)]), classes=3).model.predict(rows)
        for rows in (shifted, x, lost, without)
    ]
    assert (predicted[0] == predicted[1]).all()
    assert (predicted[2] == predicted[3]).mean() > 0.95


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_feature_that_is_constant_within_classes_counts_in_any_unit(unit):
    x, y = logistic_problem(signal=0.1)
    x[:, 0] = unit * (y == 1)
    model = fg.FedLogit(rounds=50).fit(as_clients(x, y, [np.arange(240)]), classes=3).model
    assert (model.predict(x[y == 1]) == 1).mean() > 0.95


def test_own_frequencies_and_the_refinement_help():
    x, y, parts = skewed(noise=8.0)
    train, test = [part[::2] for part in parts], [part[1::2] for part in parts]
    fit = fg.FedLogit().fit(as_clients(x, y, train), classes=4)
    ours = np.mean([(fit.personal[f"client-{k}"].predict(x[part]) == y[part]).mean() for k, part in enumerate(test)])
    pooled = np.mean([(fit.model.predict(x[part]) == y[part]).mean() for part in test])
    assert ours > pooled + 0.05
    x, y, _ = skewed(clients=1, n=800)
    x[:100] = x[:100][:, ::-1]
    clients = as_clients(x, y, [np.arange(100), np.arange(100, 800)])
    plain, refined = (
        fg.FedLogit(refine=refine).fit(clients, classes=4).personal["client-0"] for refine in (False, True)
    )
    before, after = ((model.predict(x[100:][:, ::-1]) == y[100:]).mean() for model in (plain, refined))
    assert after > before + 0.05


@dataclass(frozen=True, kw_only=True)
class Fragile(fg.FedLogit):
    """One client is gone from some round on."""

    lost: int = 3

    @fg.step
    def gradient(self, client, asked):
        if client.name == "client-1" and client.round >= self.lost:
            raise OSError("gone")
        return super().gradient(client, asked)


@pytest.mark.parametrize(
    ("lost", "rest"), [(0, "no gradients"), (1, "the gradient of round 0"), (2, "the gradients of rounds 0 to 1")]
)
def test_what_remains_of_a_lost_client_is_said(lost, rest):
    x, y = logistic_problem()
    clients = as_clients(x, y, [np.arange(0, 240, 2), np.arange(1, 240, 2)])
    fit = Fragile(rounds=4, lost=lost).fit(clients, classes=3, require=0.5)
    assert fit.notes["remains"] == {"client-1": f"its moments in the bound and in the class frequencies, {rest}"}
    total, gradients = fg.Moments.of(x, y, classes=3), fg.FedLogit(rounds=4).fit(clients, classes=3)
    assert np.array_equal(fit.published.counts, total.counts), "the class frequencies include it"
    assert "remains" not in gradients.notes
    ascent = Logistic(total, "auto")
    for number in range(4):
        here = clients[: 1 if number >= lost else 2]
        parts = [logistic.gradient(c.x, c.y, ascent.ahead, ascent.leverage) for c in here]
        ascent.climb(logistic.Said(*(sum(part) for part in zip(*parts, strict=True))))
    assert relative_error(fit.model.weights, ascent.model.weights) < 1e-9, "no more and no less than that is in"


def test_a_client_lost_between_rounds_is_told_and_the_rest_goes_on():
    x, y = logistic_problem(n=1000)
    clients = as_clients(x, y, [np.arange(0, 1000, 2), np.arange(1, 1000, 2)])
    fit = Fragile().fit(clients, classes=3, require=0.5)
    assert "gone" in fit.lost["client-1"]
    assert fit.contributors == ("client-0", "client-1")
    assert fit.absent == {}
    whole = fg.FedLogit().fit(clients, classes=3)
    assert (fit.model.predict(x) == whole.model.predict(x)).mean() > 0.9


def test_a_gradient_of_another_shape_is_not_stretched():
    x, y = logistic_problem()

    @dataclass(frozen=True, kw_only=True)
    class Narrow(fg.FedLogit):
        """One client sends a single row."""

        @fg.step
        def gradient(self, client, asked):
            reply = super().gradient(client, asked)
            return reply if client.name == "client-0" else reply | {"gradient": reply["gradient"][:1]}

    with pytest.raises(ClientFailed, match=r"'client-1': reply/gradient must be .* shape \(7, 3\), got .* \(1, 3\)"):
        Narrow().fit(as_clients(x, y, [np.arange(100), np.arange(100, 240)]), classes=3)


def test_rounding_does_not_choose_for_a_client_of_one_sample():
    """Its frequencies without that sample are the same however much they are smoothed."""
    data = digits()
    clients = [*some_clients(), fg.Client("lonely", data.x[-1:], data.y[-1:])]
    for method in (fg.FedLogit(rounds=4), fg.FedGram()):
        want = method.fit(clients, classes=10).personal["lonely"].scores(data.x[:20])
        for seed in range(12):
            order = np.random.default_rng(seed).permutation(len(clients))
            got = method.fit([clients[i] for i in order], classes=10).personal["lonely"].scores(data.x[:20])
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_one_class_alone_and_a_client_of_one_sample():
    x, y = logistic_problem()
    only = np.flatnonzero(y == 1)
    fit = fg.FedLogit().fit(as_clients(x, y, [only[:1], only[1:]]), classes=3)
    assert (fit.model.predict(x) == 1).all()
    assert (fit.personal["client-0"].predict(x[only]) == 1).all()


def test_rounds_cost_a_head_each():
    x, y = logistic_problem(d=50)
    clients = as_clients(x, y, [np.arange(120), np.arange(120, 240)])
    few, many = (fg.FedLogit(rounds=rounds).fit(clients, classes=3).traffic for rounds in (1, 11))
    assert (many.up - few.up) / 20 < 8 * 51 * 3 + 1000
    assert (many.down - few.down) / 20 < 8 * 51 * 3 + 1000


def test_accuracy_after_each_round_is_reported_and_grows():
    fit = fg.FedLogit(rounds=15).fit(some_clients(), classes=10)
    assert len(fit.rounds) == 15
    assert fit.rounds[-1].pooled >= fit.rounds[0].pooled


def test_what_takes_gradients_cannot_be_changed_afterwards():
    x, y = logistic_problem()
    fit = fg.FedLogit(rounds=1).fit(as_clients(x, y, [np.arange(240)]), classes=3)
    for change in (fit.add, fit.remove):
        with pytest.raises(InvalidParameter, match="fedlogit cannot be changed: it is not made from moments alone"):
            change(fg.Moments.of(x[:5], y[:5], classes=3), name="client-0")
    with pytest.raises(InvalidParameter, match="cannot be changed"):
        fit.summarize(fg.Client("client-0", x, y))


def test_newcomers_personalize_from_the_published_head(tmp_path):
    x, y, parts = skewed(noise=8.0)
    *early, new = as_clients(x, y, parts)
    fit = fg.FedLogit().fit(early, classes=4)
    fit.save(tmp_path / "fit")
    loaded = fg.load(tmp_path / "fit")
    np.testing.assert_array_equal(loaded.personalize(new).scores(x), fit.personalize(new).scores(x))
    gains = []
    for k, part in enumerate(parts):
        rest = fg.FedLogit(rounds=8).fit(as_clients(x, y, [*parts[:k], *parts[k + 1 :]]), classes=4)
        own = rest.personalize(fg.Client("new", x[part[::2]], y[part[::2]]))
        test = part[1::2]
        gains.append((own.predict(x[test]) == y[test]).mean() - (rest.model.predict(x[test]) == y[test]).mean())
    assert np.mean(gains) > 0.05


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"ridge": 0.0}, {"ridge": -1.0}, {"ridge": float("nan")}])
def test_bad_hyperparameters(bad):
    with pytest.raises(InvalidParameter, match=f"{next(iter(bad))}: expected"):
        fg.FedLogit(**bad)
