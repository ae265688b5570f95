"""Gradient methods with clients that fail during a run, or send replies that would spoil the others' training."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.core.errors import ClientFailed, MissingClients
from support.gradient import GRADIENT, SETTINGS, breaking, fit, performing, vectors


@pytest.mark.parametrize("name", GRADIENT)
def test_a_round_without_any_reply_ends_the_run(name):
    some = SETTINGS | {"participation": 0.34, "rounds": 1}
    asked = set(fit(fg.FedAvg(**some)).contributors)  # all gradient methods draw the same clients
    assert len(asked) == 2
    lost = "; ".join(f"client '{client}': step 'train': .*broken" for client in sorted(asked))
    with pytest.raises(MissingClients, match=f"step 'train': none of the clients that were asked.* so far: {lost}$"):
        fit(breaking(fg.registry[name](**some), asked, 0), require=3)


@pytest.mark.parametrize("name", ["feddyn", "fedapa", "fedamp", "fedala", "fedavg"])
def test_a_client_lost_at_once_leaves_no_trace(name):
    method = fg.registry[name](**SETTINGS | {"participation": 1.0})
    rest = [client for client in some_clients() if client.name != "client-2"]
    got, want = fit(breaking(method, {"client-2"}, 0), require=5), fit(method, rest)
    assert set(got.absent) == {"client-2"}
    for client in rest:
        np.testing.assert_allclose(
            got.personal.get(client.name, got.model).vector,
            want.personal.get(client.name, want.model).vector,
            atol=1e-4,
        )


@pytest.mark.parametrize(
    ("name", "step", "path"),
    [
        ("fedgh", "train", ["means"]),
        ("fedpac", "train", ["features", "sums"]),
        ("fedpac", "train", ["features", "h"]),
        ("fedproto", "train", ["features"]),
        ("feddbe", "meet", []),
    ],
)
def test_features_of_an_absurd_size_are_refused_by_name_and_the_rest_goes_on(name, step, path):
    def perform(usual, clients, payloads):
        replies = usual(clients, payloads)
        for client, reply in zip(clients, replies, strict=True):
            if client.name == "client-2":
                place = reply
                for key in path:
                    place = place[key]
                place[:] = 1e30
        return replies

    usual = fg.registry[name](**SETTINGS, network="mlp:8")
    method = performing(usual, perform, step)
    fitted = fit(method, require=5)
    where = "/".join(["reply", *path])
    assert fitted.absent.keys() == {"client-2"}
    assert f"step {step!r}: {where} must be from -" in fitted.absent["client-2"]
    want = vectors(fit(usual, [client for client in some_clients() if client.name != "client-2"]))
    fitted.personal.pop("client-2", None)
    np.testing.assert_allclose(vectors(fitted), want, atol=1e-4)
    with pytest.raises(ClientFailed, match="client 'client-2'"):
        fit(method)
