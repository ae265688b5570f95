"""Arrival times of replies over Flower, as the server sees them, and their use by methods."""

from time import sleep

import numpy as np
import pytest
from flwr.app import Message

import fedgram as fg
from fedgram.core import wire
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.grid import GridTransport, Post
from fedgram.protocol import session
from fedgram.protocol.clientside import ClientSide, perform
from support.flower_grid import LocalGrid
from support.probe import clients

NAP = 0.02


def run(method, parties, *, nap=0.0, wall=0.0, **options):
    """Return the fit of a run over Flower's grid, where each answer sleeps and its node reports its computing time."""
    sides = {node: ClientSide(party) for node, party in enumerate(parties, start=1)}

    def performs(message, context):
        sleep(nap)
        [reply] = perform(method, [sides[context.node_id]], [wire.decode(flower_messages.body(message))])
        return Message(flower_messages.letter(wire.encode(reply), seconds=1.0, wall=wall), reply_to=message)

    nodes = {party.name: node for node, party in enumerate(parties, start=1)}
    transport = GridTransport(Post(LocalGrid([{}] * len(parties), performs=performs)), nodes, engine="flower")
    return session.run(method, transport, seed=0, require="all", progress=None, **options)


def test_what_is_not_computing_is_communication():
    fit = run(fg.AFL(), clients(2), nap=NAP, wall=NAP / 100, classes=2)
    for account in fit.timing.values():
        steps = round(account["computing"] / (NAP / 100))
        assert steps >= 3  # hello, summarize, receive
        assert account["computing"] == pytest.approx(steps * NAP / 100)
        assert account["communication"] > 0.9 * steps * NAP
    assert wire.decode(wire.encode(fit)).timing == fit.timing


@pytest.mark.parametrize(("claimed", "believed"), [(1e9, True), (float("inf"), False), (-1.0, False)])
def test_a_node_cannot_claim_more_than_the_clock_allows(claimed, believed):
    letter = flower_messages.letter(b"", wall=claimed)
    grid = LocalGrid([{}], performs=lambda message, _: Message(letter, reply_to=message))
    transport = GridTransport(Post(grid), {"a": 1}, engine="flower")
    assert len(list(transport.exchange("work", [("a", b"")]))) == 1
    computing, elapsed = transport.spent["a"]
    assert computing == (elapsed if believed else 0.0)


@pytest.mark.parametrize("method", [fg.FedACnnL(gamma=1.0), fg.PFedACnnL(gamma=1.0, groups=2, epsilon=5.0)])
def test_layers_are_reported_as_in_one_process(method):
    rng = np.random.default_rng(0)
    y = np.arange(240) // 60
    x = rng.normal(size=(240, 6)) + 2 * np.eye(6)[y]
    parties = [
        fg.Client(f"c{k}", x[part], y[part], x[part], y[part]) for k, part in enumerate(np.split(np.arange(240), 6))
    ]
    over_flower, here = run(method, parties, classes=4), method.fit(parties, classes=4)
    assert over_flower.rounds == here.rounds
    assert len(here.rounds) == 3 + method.personal
