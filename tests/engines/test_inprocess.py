"""The method protocol: inputs of a step, messages, contributors, and failures."""

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.core import wire
from fedgram.core.errors import ClientFailed, FedgramError, InvalidData, InvalidParameter
from support.probe import Probe, clients, fit, model


def test_a_step_sees_its_client():
    seen = {}

    class Look(Probe):
        def run(self, clients):
            for clients.round in (0, 1):
                clients.each(self.look, {"w": np.ones(2)})

        @fg.step
        def look(self, client, payload):
            client.state["visits"] = client.state.get("visits", 0) + 1
            seen[client.name, client.round] = (client.x.shape, client.y.tolist(), client.classes, client.rng.random())
            assert payload["w"].tolist() == [1, 1]
            assert client.state["visits"] == client.round + 1

    fit(Look(), classes=["no", "yes"])
    assert len(seen) == 8
    shape, y, classes, _ = seen["c0", 0]
    assert (shape, y, classes) == ((6, 3), [0, 1, 0, 1, 0, 1], ("no", "yes"))
    draws = {rng for *_, rng in seen.values()}
    assert len(draws) == 8, "every client and round has random numbers of its own"


def test_random_numbers_depend_on_the_clients_name_not_on_the_order():
    def draws(parties, seed=0):
        out = {}

        class Draw(Probe):
            def run(self, clients):
                out.update({reply.client: reply.value for reply in clients.call(self.draw)})

            @fg.step
            def draw(self, client):
                return client.rng.random(3)

        fit(Draw(), parties, seed=seed)
        return {name: value.tolist() for name, value in out.items()}

    assert draws(clients()) == draws(clients()[::-1])
    assert draws(clients(), seed=1) != draws(clients())


def test_payloads_have_been_through_the_wire():
    sent = np.zeros(3)

    class Change(Probe):
        def run(self, clients):
            clients.each(self.change, sent)

        @fg.step
        def change(self, client, payload):
            assert payload is not sent
            payload[0] = 1

    with pytest.raises(ClientFailed, match="read-only"):
        fit(Change())
    assert not sent.any()


def test_per_client_payloads_and_recipients():
    class Send(Probe):
        def run(self, clients):
            got = {reply.client: reply.value for reply in clients.call(self.echo, per_client={"c1": 10, "c3": 30})}
            assert got == {"c1": 10, "c3": 30}
            assert [reply.client for reply in clients.call(self.echo, 5, to=["c2"])] == ["c2"]

        @fg.step
        def echo(self, client, payload):
            return payload

    fit_ = fit(Send())
    assert fit_.contributors == ("c1", "c2", "c3")


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_batched_steps(batch):
    sizes = []

    class Batch(Probe):
        def run(self, clients):
            replies = list(clients.call(self.double, per_client={f"c{k}": k for k in range(4)}))
            assert [(reply.client, reply.value) for reply in replies] == [(f"c{k}", 2 * k) for k in range(4)]
            assert [reply.value for reply in clients.call(self.name_all)] == ["c0", "c1", "c2", "c3"]

        @fg.step(batched=True)
        def double(self, clients, payloads):
            sizes.append(len(clients))
            return [2 * payload for payload in payloads]

        @fg.step(batched=True)
        def name_all(self, clients):
            return [client.name for client in clients]

    fit(Batch(), engine=fg.InProcess(batch=batch))
    assert max(sizes) == min(batch, 4)


def test_sum_mean_sample():
    class Add(Probe):
        def run(self, clients):
            assert clients.sum(self.give).tolist() == [6.0, 24.0]
            assert clients.mean(self.nest, weighted=False)["a"][0].tolist() == [1.5, 6.0]
            sampled = clients.sample(0.5)
            assert len(sampled) == 2
            assert sampled == clients.sample(0.5)
            with pytest.raises(InvalidParameter, match="share"):
                clients.sample(0)

        @fg.step
        def give(self, client):
            return np.array([float(client.name[1]), 6.0])

        @fg.step
        def nest(self, client):
            return {"a": [self.give(client)]}

    fit(Add())


def test_mean_weights_by_samples():
    class Mean(Probe):
        def run(self, clients):
            assert clients.mean(self.give) == pytest.approx((1 * 0 + 3 * 1) / 4)

        @fg.step
        def give(self, client):
            return np.float64(client.name == "big")

    one, three = np.ones((1, 3)), np.ones((3, 3))
    fit(Mean(), [fg.Client("small", one, [0]), fg.Client("big", three, [0, 1, 1])])


def test_only_steps_can_be_asked_for():
    class Sneak(Probe):
        def run(self, clients):
            clients.each(self.private)

        def private(self, client):
            return client.x

    with pytest.raises(ClientFailed, match="unknown step of Sneak 'private'"):
        fit(Sneak())


def test_rounds_and_reports():
    class Rounds(Probe):
        def run(self, clients):
            for round_ in clients.rounds_of(3):
                clients.each(self.check, round_)
                clients.report(round_, model())

        @fg.step
        def check(self, client, payload):
            assert client.round == payload

    parties = [fg.Client("a", np.eye(3)[:2], [0, 1], np.eye(3)[:2], [0, 1]), *clients(1)]
    result = fit(Rounds(), parties)
    assert [evaluation.pooled for evaluation in result.rounds] == [1.0, 1.0, 1.0]
    assert result.evaluation.by_client == {"a": 1.0}
    assert result.evaluation.untested == 1


def test_kept_models_are_personal_and_get_evaluated():
    class Keep(Probe):
        personal = True

        def run(self, clients):
            clients.each(self.take)

        @fg.step
        def take(self, client):
            client.keep(fg.LinearModel(-np.eye(3, 2), (0, 1)))

    parties = [fg.Client("a", np.eye(3)[:2], [0, 1], np.eye(3)[:2], [0, 1])]
    result = fit(Keep(), parties)
    assert result.evaluation.pooled == 0.0
    assert result.model.predict(np.eye(3)[:2]).tolist() == [0, 1]
    assert result.personal["a"].predict(np.eye(3)[:2]).tolist() == [1, 0]


def test_only_models_can_be_kept():
    class Keep(Probe):
        def run(self, clients):
            clients.each(self.take)

        @fg.step
        def take(self, client):
            client.keep(np.ones(3))

    with pytest.raises(ClientFailed, match="only models can be kept, got a ndarray"):
        fit(Keep())


def test_progress_is_told():
    told = []
    fit(fg.AFL(), progress=lambda *news: told.append(news))
    summing_up = [news for news in told if news[0] == "summarize"]
    assert summing_up == [("summarize", 0, done, 4) for done in range(5)], "from the first, before any reply"


def test_progress_tells_the_round():
    told = []
    fit(fg.FedAvg(rounds=2), progress=lambda step, round, done, total: told.append((step, round, done == total)))
    assert [(step, round) for step, round, all_there in told if all_there and step == "train"] == [
        ("train", 0),
        ("train", 1),
    ]


def test_traffic_is_what_was_encoded():
    parties = clients(2)
    result = fit(fg.AFL(), parties)
    moments = [fg.Moments.of(c.x, c.y, classes=2) for c in parties]
    for client, m in zip(parties, moments, strict=True):
        account = result.traffic.by_client[client.name]
        assert account["up"] >= len(wire.encode(m))
        assert account["down"] >= len(wire.encode(result.model))
        assert account["up"] - len(wire.encode(m)) < 1000, "hello and receive are small"
    assert result.traffic.up == sum(account["up"] for account in result.traffic.by_client.values())


def test_saved_fits_are_checked_like_any_message(tmp_path):
    path = tmp_path / "fit.safetensors"
    fit(fg.AFL()).save(path)
    assert fg.load(path).method == "afl"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FedgramError, match="fit.safetensors"):
        fg.load(path)
    with pytest.raises(InvalidData, match="cannot read"):
        fg.load(tmp_path / "missing")
    with pytest.raises(InvalidData, match="cannot write"):
        fit(fg.AFL()).save(tmp_path / "no" / "such" / "folder" / "fit")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "fit.safetensors"
    fit(fg.AFL()).save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InvalidData, match="No space left"):
        fit(fg.AFL()).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_evaluation_refuses_scores_that_are_not_finite():
    """A bad test sample is named, and the model that was trained without it is kept."""
    party = fg.Client("a", np.eye(3)[:2], [0, 1], np.full((1, 3), np.nan), [0])
    result = fit(fg.AFL(), [party, *clients(1)])
    assert "sample 0 has scores that are not finite" in result.evaluation.failed["a"]
    assert result.evaluation.untested == 2
    assert result.contributors == ("a", "c0")
    assert result.absent == {}


def test_checks_helper_makes_unequal_real_clients():
    sizes = [len(client.x) for client in checks.some_clients()]
    assert min(sizes) >= 6
    assert len(set(sizes)) > 1
