"""Flower's simulation: one start of Ray serves every registered method, and other users of Ray."""

import gc
import time
from dataclasses import dataclass

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.core.errors import ClientFailed, InvalidData, InvalidParameter, Revealing
from fedgram.core.filesystem import file_name
from fedgram.engines.flower.grid import Expected, Post, roll_call
from fedgram.engines.flower.node import MODEL_FILE
from fedgram.engines.flower.simulation import FlowerSimulation
from fedgram.methods.gradient.gradient_method import GradientMethod
from fedgram.protocol.fit import load_model
from fedgram.protocol.named_methods import resolve
from fedgram.protocol.replies import like_payload
from studies.test_thresholds import STUDY
from studies.test_thresholds import parties as patients
from support.hospitals import pooled_correct, program
from support.own_method import forget_afterwards, write_method

# Ray leaves files open, and ends processes without waiting for them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def simulation(tmp_path):
    with FlowerSimulation(nodes=9, workers=2, models=tmp_path) as engine:
        yield engine
    gc.collect()  # while the warnings are still ignored


@pytest.mark.xdist_group("simulation")
def test_simulation(simulation, subtests, tmp_path, monkeypatch):
    """One test, because starting Ray takes longer than everything else together."""

    def personal(name):
        return load_model(tmp_path / file_name(name) / MODEL_FILE)

    for name in fg.registry:
        # All gradient methods refuse bad samples in the same step, so one method is tested.
        alike = issubclass(fg.registry[name], GradientMethod) and name != "fedavg"
        for check in checks.ENGINE_CHECKS[: 1 if alike else None]:
            with subtests.test(f"{name}: {check.__name__}"):
                check(checks.example(name), simulation, personal)
    cases = (
        a_state_lasts,
        large_messages_cross,
        a_batched_step_gets_each_client,
        only_so_many_clients,
        nan_is_refused,
        absurd_weights_are_refused,
        stragglers_are_given_up,
        the_roll_call_counts_the_missing,
        a_study_is_kept_to,
    )
    for case in cases:
        with subtests.test(case.__name__):
            case(simulation)
    with subtests.test("three hospitals"):
        hospitals_get_the_pooled_figures(simulation, tmp_path / "hospitals")
    with subtests.test("a method of a file"):
        forget_afterwards(monkeypatch)
        cls = resolve(write_method(tmp_path / "own" / "mean.py", "Meansimulated"))
        here, there = (cls().fit(parties(), engine=engine) for engine in ("inprocess", simulation))
        np.testing.assert_allclose(there.model.weights, here.model.weights, rtol=1e-9)


def a_study_is_kept_to(simulation):
    clients = patients(north=(20, 20), south=(9, 30), west=(12, 0), tiny=(4, 4))
    here, there = (
        fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes, require=3, engine=engine)
        for engine in ("inprocess", simulation)
    )
    np.testing.assert_allclose(there.model.weights, here.model.weights, rtol=1e-9)
    assert here.absent.keys() == there.absent.keys() == {"tiny"}
    assert "at least 10 training samples" in there.absent["tiny"]
    kept = load_model(simulation.models / "north" / MODEL_FILE)
    assert kept.study == STUDY
    np.testing.assert_allclose(kept.model.weights, here.personal["north"].weights, rtol=1e-9)


def hospitals_get_the_pooled_figures(simulation, folder):
    """The example, on the same test patients as in one process (tests/studies/test_hospitals.py)."""
    pytest.importorskip("sklearn", reason="the patients come with scikit-learn")
    example = program()
    example.make(folder)
    prepared = example.scenario(folder).prepare()
    # Warnings in the nodes' own processes would not be seen.
    with pytest.warns(Revealing, match="'east' sends sums of 12 samples in 12 columns"):
        fit = prepared.fit(fg.AFL(), engine=simulation)
    assert fit.engine == "flower-sim"
    assert fit.evaluation.correct == pooled_correct(example, folder)


def parties(count=3, d=3, n=6):
    rng = np.random.default_rng(0)
    return [fg.Client(f"c{k}", rng.normal(size=(n, d)), np.arange(n) % 2) for k in range(count)]


@dataclass(frozen=True, kw_only=True)
class Visits(fg.Method):
    """Counts in the clients' state, and draws random numbers."""

    def serve(self, clients):
        for round_ in clients.rounds_of(3):
            replies = {
                reply.client: reply.value
                for reply in clients.call(self.visit, per_client=dict.fromkeys(["c0", "c2"], 2))
            }
            assert {name: value["visits"] for name, value in replies.items()} == {"c0": round_ + 1, "c2": round_ + 1}
        weights = np.stack([replies[name]["drawn"] for name in sorted(replies)], axis=1)
        return fg.LinearModel(weights, (0, 1))

    @fg.step
    def visit(self, client, payload):
        client.state["visits"] = client.state.get("visits", 0) + payload // 2
        client.state["w"] = np.ones(3)
        return {"visits": client.state["visits"], "drawn": client.rng.random(3)}


def a_state_lasts(engine):
    here, there = (Visits().fit(parties(), classes=2, seed=4, engine=e) for e in ("inprocess", engine))
    assert np.array_equal(here.model.weights, there.model.weights)
    assert there.contributors == ("c0", "c2")


@dataclass(frozen=True, kw_only=True)
class Large(fg.Method):
    """Sends as much as moments of 2,048 features, both ways."""

    def serve(self, clients):
        sent = np.random.default_rng(0).random(2048 * 2049 // 2)
        assert np.array_equal(clients.sum(self.echo, sent), 3 * sent)
        return fg.LinearModel(np.eye(3, 2), (0, 1))

    @fg.step
    def echo(self, client, payload):
        return payload


def large_messages_cross(engine):
    fit = Large().fit(parties(), classes=2, engine=engine)
    assert fit.traffic.up > 3 * 8 * 2048 * 2049 // 2
    # Flower adds little; it also counts bytes that we do not: names and evaluation.
    for way in ("up", "down"):
        ours = getattr(fit.traffic, way)
        assert ours < fit.carried[way] < ours + 10_000


@dataclass(frozen=True, kw_only=True)
class Batched(fg.Method):
    """Has a step for many clients at once."""

    def serve(self, clients):
        assert clients.sum(self.ones) == 3
        return fg.LinearModel(np.eye(3, 2), (0, 1))

    @fg.step(batched=True)
    def ones(self, clients):
        return [1 for _ in clients]


def a_batched_step_gets_each_client(engine):
    Batched().fit(parties(), classes=2, engine=engine)


def only_so_many_clients(engine):
    with pytest.raises(InvalidParameter, match=r"10 clients, but the simulation was started for 9"):
        fg.AFL().fit(parties(10), engine=engine)
    with pytest.raises(InvalidData, match="2 clients are named 'c0'"):
        fg.AFL().fit(parties(1) + parties(1), engine=engine)
    with pytest.raises(InvalidData, match="no clients"):
        fg.AFL().fit([], engine=engine)


@dataclass(frozen=True, kw_only=True)
class Liar(fg.AFL):
    """One client answers with impossible values."""

    @fg.step
    def summarize(self, client):
        return np.array([np.nan]) if client.name == "c1" else client.moments()


def nan_is_refused(engine):
    with pytest.raises(ClientFailed, match="message from 'c1' refused: field 'payload' is nan"):
        Liar().fit(parties(), classes=2, engine=engine)
    fit = Liar().fit(parties(), classes=2, engine=engine, require=2)
    assert fit.contributors == ("c0", "c2")
    assert np.array_equal(fit.model.weights, fg.AFL().fit([parties()[0], parties()[2]], classes=2).model.weights)


@dataclass(frozen=True, kw_only=True)
class Absurd(fg.FedAvg):
    """One client answers with weights that training cannot reach."""

    @fg.step(reply=like_payload)
    def train(self, client, weights):
        return np.full_like(weights, 1e6 if client.name == "c1" else 1.0)


def absurd_weights_are_refused(engine):
    fit = Absurd(rounds=2).fit(parties(), classes=2, engine=engine, require=2)
    assert fit.contributors == ("c0", "c2")
    assert fit.absent["c1"].startswith("step 'train': reply must be at most 1e+03 times as large as most clients'")
    assert np.array_equal(fit.model.vector, np.ones_like(fit.model.vector))


@dataclass(frozen=True, kw_only=True)
class Slow(fg.AFL):
    """One client takes its time."""

    @fg.step
    def summarize(self, client):
        time.sleep(16 if client.name == "c1" else 0)
        return client.moments()


def stragglers_are_given_up(engine):
    engine.timeout = 8.0  # on a busy machine the others need some, too
    try:
        fit = Slow().fit(parties(), classes=2, engine=engine, require=2)
    finally:
        engine.timeout = None
    assert fit.contributors == ("c0", "c2")
    assert fit.absent == {"c1": "step 'summarize': no answer within 8 s"}
    # The late answer arrives when it is no longer expected, and has no effect.
    assert Slow().fit(parties(), classes=2, engine=engine).contributors == ("c0", "c1", "c2")


def the_roll_call_counts_the_missing(engine):
    running = engine._running
    with running.job(fg.AFL(), parties(2), None, None) as note:
        post = Post(running.grid(9))
        found, _ = roll_call(post, Expected(["c1", "nobody", "c0"], seconds=2), note)
        assert list(found) == ["c1", "nobody", "c0"]
        assert "not connected within 2 s" in str(found["nobody"])
        # Two have names, seven nodes report that they have no client, one more is expected.
        found, _ = roll_call(post, Expected(number=10, seconds=2), note)
        assert len(found) == 10
        assert {"c0", "c1", "unknown-1"} <= set(found)
        assert "no client" in str(next(why for who, why in found.items() if who.startswith("node ")))
        assert list(roll_call(post, Expected(number=2), note)[0]) == ["c0", "c1"]
        assert len(roll_call(post, Expected(), note)[0]) == 9


@pytest.mark.parametrize("options", [{"nodes": 0}, {"workers": -1}, {"timeout": 0}])
def test_impossible_options(options):
    with pytest.raises(InvalidParameter, match="must be positive"):
        FlowerSimulation(**options)
