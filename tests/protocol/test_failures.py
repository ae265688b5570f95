"""Failing, unknown, empty and absent clients."""

import sys

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import ClientFailed, InvalidParameter, Mismatch, MissingClients, UnknownName
from support.probe import Probe, clients, fit, model


class Fail(Probe):
    """Fails at c1 and c2."""

    def run(self, clients):
        self.total = None
        assert clients.sum(self.give) == len(clients.names)

    @fg.step
    def give(self, client):
        if client.name in ("c1", "c2"):
            raise RuntimeError(f"{client.name} has a bad day")
        return 1

    def serve(self, clients):
        total = clients.sum(self.give)
        assert total == len(clients.contributors)
        return model()


def test_errors_name_client_and_step_and_keep_their_cause():
    with pytest.raises(ClientFailed) as caught:
        fit(Fail())
    assert str(caught.value) == (
        "step 'give': client 'c1': RuntimeError: c1 has a bad day; client 'c2': RuntimeError: c2 has a bad day"
    )
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("require", [2, 0.5, 1])
def test_quorum_goes_on_and_says_who_contributed(require, workers):
    result = fit(Fail(), require=require, engine=fg.InProcess(workers=workers))
    assert result.contributors == ("c0", "c3")
    assert set(result.absent) == {"c1", "c2"}
    assert "bad day" in result.absent["c1"]


@pytest.mark.parametrize("require", [3, 0.75, 1.0])
def test_too_few_clients_end_the_run(require):
    with pytest.raises(MissingClients, match="2 clients left, [34] required.*'c1'.*'c2'"):
        fit(Fail(), require=require)


@pytest.mark.parametrize("require", [0, 5, 1.5, -0.1, "most", True])
def test_bad_requirement(require):
    with pytest.raises(InvalidParameter, match="require must be"):
        fit(fg.AFL(), require=require)


def test_empty_clients_do_not_fill_a_quorum():
    empties = [fg.Client(f"empty-{k}", np.zeros((0, 3)), []) for k in range(3)]
    bad = fg.Client("bad", np.full((2, 3), np.nan), [0, 1])
    with pytest.raises(MissingClients, match="0 clients left, 1 required"):
        fit(fg.AFL(), [*empties, bad], require=1)
    with pytest.raises(MissingClients, match="1 clients left, 2 required"):
        fit(fg.AFL(), [*empties, bad, *clients(1)], require=0.8)
    assert fit(fg.AFL(), [*empties, *clients(1)], require=np.int64(1)).contributors == ("c0",)


def test_a_fraction_is_taken_as_written():
    bad = [fg.Client(f"bad-{k}", np.full((2, 3), np.nan), [0, 1]) for k in range(93)]
    assert len(fit(fg.AFL(), [*clients(7), *bad], require=0.07).contributors) == 7


def test_one_bad_client_does_not_spoil_its_batch():
    class Batched(Fail):
        @fg.step(batched=True)
        def give(self, clients):
            return [Fail.give(self, client) for client in clients]

    result = fit(Batched(), require=2)
    assert result.contributors == ("c0", "c3")
    assert set(result.absent) == {"c1", "c2"}


def test_unknown_clients_cannot_be_asked():
    class Ask(Probe):
        def run(self, clients):
            with pytest.raises(UnknownName, match="unknown client 'nobody'"):
                list(clients.call(self.hello, to=["nobody"]))
            with pytest.raises(InvalidParameter, match="not both"):
                list(clients.call(self.hello, to=["c0"], per_client={"c0": 1}))
            assert [reply.client for reply in clients.call(self.hello, to="c1")] == ["c1"]
            assert list(clients.call(self.hello, per_client={})) == []

    fit(Ask())


def test_the_servers_random_numbers_go_on_within_a_round():
    class Draw(Probe):
        def run(self, clients):
            assert clients.rng.random() != clients.rng.random()

    fit(Draw())


def test_sums_go_through_lists_and_dicts():
    class Sum(Probe):
        def run(self, clients):
            total = clients.sum(self.give)
            assert total["w"].tolist() == [4.0, 4.0]
            assert total["b"][0] == 8

        @fg.step
        def give(self, client):
            return {"w": np.ones(2), "b": [2]}

    fit(Sum())


def test_serve_must_return_a_model():
    class Wrong(Probe):
        def serve(self, clients):
            return np.eye(2)

    with pytest.raises(InvalidParameter, match="must return a model or None, got a ndarray"):
        fit(Wrong())


def test_numbers_are_not_taken_for_names():
    parties = [fg.Client("a", np.eye(3), ["cat", "dog", "dog"]), fg.Client("b", np.eye(3), [0, 1, 1])]
    with pytest.raises(Mismatch, match="'a' has .*names as labels; client 'b' has .*numbers as labels"):
        fg.AFL().fit(parties, classes=["cat", "dog"])
    more = [*parties, fg.Client("c", np.eye(3), ["cat", "dog", "dog"])]
    with pytest.raises(ClientFailed, match="'b': has .*numbers as labels; most clients have .*names as labels"):
        fg.AFL().fit(more, classes=["cat", "dog"])


def test_a_broken_package_does_not_keep_ours_from_working(monkeypatch):
    from importlib.metadata import EntryPoint

    module = sys.modules["fedgram.protocol.registry"]
    broken = EntryPoint("theirs", "no_such_module:Theirs", module.GROUP)
    monkeypatch.setattr(module, "entry_points", lambda group: [broken])
    fresh = module.Registry()
    fresh.register(fg.AFL)
    with pytest.warns(UserWarning, match="'theirs' .* cannot be loaded"):
        assert list(fresh) == ["afl"]


def test_strangers_are_refused_by_name():
    parties = [*clients(3), fg.Client("odd", np.ones((2, 5)), [0, 1])]
    with pytest.raises(ClientFailed, match=r"'odd': has samples of shape \(5,\), .*; most clients have .*\(3,\)"):
        fit(fg.AFL(), parties)
    result = fit(fg.AFL(), parties, require=3)
    assert result.contributors == ("c0", "c1", "c2")
    assert "(5,)" in result.absent["odd"]


def test_other_features_are_refused_by_name():
    x = np.eye(3)
    parties = [fg.Client(name, x, [0, 1, 1], features=print_) for name, print_ in zip("abc", "112", strict=True)]
    with pytest.raises(
        ClientFailed, match="'c': has samples of shape .*features '2', .*; most clients have .*features '1'"
    ):
        fit(fg.AFL(), parties)


def test_unknown_labels_are_refused_by_name():
    parties = [*clients(2), fg.Client("odd", np.ones((2, 3)), [0, 7])]
    with pytest.raises(ClientFailed, match="'odd': label 7 is not one of the 2 classes"):
        fit(fg.AFL(), parties)


def test_unknown_test_labels_are_refused_too():
    parties = [*clients(2), fg.Client("odd", np.ones((2, 3)), [0, 1], np.ones((1, 3)), [7])]
    with pytest.raises(ClientFailed, match="'odd': label 7 is not one of the 2 classes"):
        fit(fg.AFL(), parties)


def test_labels_are_told_only_where_classes_are_sought():
    class Hello(Probe):
        @fg.step
        def hello(self, client):
            reply = super().hello(client)
            told.append(reply["labels"])
            return reply

    told = []
    fit(Hello(), clients(1))
    fit(Hello(), clients(1), classes=None)
    assert told == [None, [0, 1]]
