"""Where clients' time goes: computing, communicating and waiting; over Flower, in engines/flower/test_arrivals.py."""

from dataclasses import dataclass
from time import sleep

import numpy as np
import pytest

import fedgram as fg
from fedgram.protocol.transport import Spent, Timing
from support.probe import Probe, clients, fit

NAP = 0.1


def test_spans_add_up_to_the_slowest_reply():
    """A client's three spans together are the time of the slowest, step by step."""
    timing = Timing()
    timing.add({"a": Spent(1.0, 1.5), "b": Spent(3.0, 4.0)})
    timing.add({"a": Spent(2.0, 2.0)})
    timing.add({"a": Spent(1.0, 1.0), "b": Spent(0.5, 0.75)})
    for client, number in (("a", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 1)):
        timing.took_part(client, number)
    assert timing.by_client == {
        "a": {"computing": 4.0, "communication": 0.5, "idle": 2.5, "asked": 2},
        "b": {"computing": 3.5, "communication": 1.25, "idle": 0.25, "asked": 2},
    }
    assert timing.last == {"a": 1.0, "b": 0.75}
    assert Timing.summary(timing.by_client) == {"computing": 3.75, "communication": 0.875, "idle": 1.375, "asked": 2}
    assert Timing.summary({}) == {}


def test_what_clients_do_together_leaves_no_idle_time():
    """One such step in a run is enough: a sum without it would be of a part of the run."""
    timing = Timing()
    timing.add({"a": Spent(1.0, 1.5), "b": Spent(3.0, 4.0)})
    timing.add({"a": Spent(2.0, None), "b": Spent(1.0, 1.0)})
    assert timing.last == {"b": 1.0}
    assert timing.by_client == {
        "a": {"computing": 3.0, "communication": 0.5, "asked": 0},
        "b": {"computing": 4.0, "communication": 1.0, "asked": 0},
    }
    assert Timing.summary(timing.by_client) == {"computing": 3.5, "communication": 0.75, "asked": 0}


class Sleepy(Probe):
    """Client c1 sleeps in a step that counts, and in an evaluation that does not."""

    def run(self, clients):
        for _ in clients.rounds_of(2):
            for _ in clients.call(self.work):
                pass
            clients.report(clients.round, fg.LinearModel(np.eye(3, 2), (0, 1)))
            self.seen.append(dict(clients.elapsed))

    @fg.step
    def work(self, client):
        sleep(NAP * (client.name == "c1"))

    @fg.step
    def evaluate(self, client, model=None):
        sleep(NAP * (client.name == "c2"))
        return 0

    seen = []  # noqa: RUF012


def judges():
    return [fg.Client(one.name, one.x, one.y, one.x, one.y) for one in clients()]


@pytest.mark.parametrize("workers", [1, 2])
def test_in_one_process_who_is_quick_waits(workers):
    Sleepy.seen.clear()
    result = fit(Sleepy(), judges(), engine=fg.InProcess(workers=workers))
    slow, quick = result.timing["c1"], result.timing["c2"]
    assert slow["computing"] >= 2 * NAP
    assert quick["computing"] < 2 * NAP  # two evaluations of NAP each are not charged
    totals = [one["computing"] + one["idle"] for one in result.timing.values()]
    assert totals == pytest.approx([totals[0]] * 4)  # no client continues before all have replied
    assert quick["idle"] > slow["idle"]
    assert {one["communication"] for one in result.timing.values()} == {0.0}
    assert slow["asked"] == 2
    for elapsed in Sleepy.seen:  # of the step, not of the evaluation that came after it
        assert elapsed["c1"] >= NAP
        assert elapsed["c2"] < elapsed["c1"]


@pytest.mark.parametrize(("steps", "least", "most"), [(None, 5, 50), (3, 0.9, 2)])
def test_those_who_train_together_share_the_time_by_samples(steps, least, most):
    """With a number of local steps, clients with more samples than a batch have the same to do. Idle time is not made
    up from such shares; a client that trains by itself has its own.
    """

    @dataclass(frozen=True, kw_only=True)
    class Together(Probe):
        def run(self, clients):
            clients.each(self.work)

        def effort(self, n):
            return fg.FedAvg(local_steps=steps, batch=2).effort(n)

        @fg.step(batched=True)
        def work(self, clients):
            sleep(NAP)
            return [None] * len(clients)

    parties = [fg.Client("large", np.eye(3)[[0, 1, 2] * 30], [0, 1, 0] * 30), fg.Client("small", np.eye(3), [0, 1, 0])]
    result = fit(Together(), parties)
    ratio = result.timing["large"]["computing"] / result.timing["small"]["computing"]
    assert least < ratio < most
    assert [account.keys() for account in result.timing.values()] == [{"computing", "communication", "asked"}] * 2
    assert "idle" not in result.report()["timing"]
    apart = fit(Together(), parties, engine=fg.InProcess(batch=1))
    assert {"idle"} <= apart.timing["small"].keys() & apart.report()["timing"].keys()


def test_a_method_of_one_batch_a_round_has_the_same_to_do_for_all():
    assert fg.BAFFLE().effort(1000) == fg.BAFFLE().effort(100) == fg.BAFFLE().batch


def test_only_rounds_in_which_a_reply_entered_the_result_count():
    """Getting ready and receiving the model at the end are not rounds."""
    from fedgram.checks import CLASSES, some_clients

    method = fg.FedAvg(rounds=4, participation=0.34, epochs=1)
    result = method.fit(some_clients(), classes=CLASSES)
    assert sum(one["asked"] for one in result.timing.values()) == 4 * 2, "two of six clients in each of four rounds"
