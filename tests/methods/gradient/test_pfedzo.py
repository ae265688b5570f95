"""pFedZO: pFedMe whose inner steps take an estimate of the gradient."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.methods.gradient.pfedzo import PFedZO
from fedgram.nets.estimates import OnSphere
from support.gradient import SETTINGS, breaking, first_weights, fit, vectors

OPTIONS = SETTINGS | {"rounds": 1, "local_steps": 2, "inner": 3, "eta": 0.02, "lam": 2.0, "lr": 0.02}


def test_pfedzo_with_exact_gradients_is_pfedme(monkeypatch):
    monkeypatch.setattr(PFedZO, "estimate", lambda _: None)
    options = OPTIONS | {"rounds": 2, "participation": 0.5, "network": "mlp:16"}
    got, want = fit(fg.PFedZO(**options)), fit(fg.PFedMe(**options))
    np.testing.assert_array_equal(got.model.vector, want.model.vector)
    np.testing.assert_array_equal(vectors(got), vectors(want))


def test_pfedzo_follows_its_personal_model():
    [client] = some_clients()[:1]
    options = OPTIONS | {"local_steps": 1}
    fitted, first = fit(fg.PFedZO(**options), [client]), first_weights()
    theta = fitted.personal[client.name].vector
    assert np.abs(theta - first).max() > 1e-3
    np.testing.assert_allclose(fitted.model.vector, first - 0.02 * 2.0 * (first - theta), atol=1e-6)


def test_pfedzo_is_held_near_the_global_model():
    [client] = some_clients()[:1]
    first = first_weights()
    near = [
        np.linalg.norm(fit(fg.PFedZO(**OPTIONS | {"lam": lam}), [client]).personal[client.name].vector - first)
        for lam in (0.0, 5.0, 25.0)
    ]
    assert near == sorted(near, reverse=True)


def test_pfedzo_without_a_pull_leaves_the_global_model_where_it_was():
    fitted = fit(fg.PFedZO(**OPTIONS | {"lam": 0.0}))
    np.testing.assert_allclose(fitted.model.vector, first_weights(), atol=1e-7)


def test_pfedzo_never_back_propagates(monkeypatch):
    asked = []
    real = OnSphere.__call__
    monkeypatch.setattr(OnSphere, "__call__", lambda self, now: asked.append(now) or real(self, now))
    monkeypatch.setattr("torch.autograd.grad", None)
    monkeypatch.setattr("fedgram.nets.sgd.dense_gradient", None)
    fit(fg.PFedZO(**OPTIONS), some_clients()[:1])
    assert len(asked) == 2 * 3, "an estimate for each of the inner steps on each batch"
    assert len({int(now.rngs[0].integers(2**63)) for now in asked}) == 6, "with directions of its own"


def test_pfedzo_sends_weights_and_keeps_its_model():
    rounds, numbers = 3, 64 * CLASSES + CLASSES
    one, more = (fit(fg.PFedZO(**OPTIONS | {"rounds": count})) for count in (1, 1 + rounds))
    for name, counted in more.traffic.by_client.items():
        for way in ("up", "down"):
            a_round = (counted[way] - one.traffic.by_client[name][way]) / rounds
            assert 4 * numbers < a_round < 4 * numbers + 600, (name, way)


def test_pfedzo_goes_on_without_a_client_that_is_lost_on_the_way():
    method = fg.PFedZO(**OPTIONS | {"rounds": 3})
    fitted = fit(breaking(method, {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert np.isfinite(vectors(fitted)).all()
    with pytest.raises(ClientFailed, match="client-2"):
        fit(breaking(method, {"client-2"}, 1))


@pytest.mark.parametrize("bad", [{"directions": 0}, {"mu": 0.0}, {"inner": 0}])
def test_pfedzo_refuses(bad):
    with pytest.raises(InvalidParameter, match=rf"{next(iter(bad))}: .*got {next(iter(bad.values()))}"):
        fg.PFedZO(**bad)
