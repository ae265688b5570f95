"""Every registered method keeps the contract; adding a method adds no test code."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks


# The checks of a method look at one fit, which the process that runs them all makes once.
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(f"contract of {name}")) for name in fg.registry]
)
def test_contract(name, check):
    check(checks.example(name))


@dataclass(frozen=True, kw_only=True)
class FirstOnly(fg.AFL):
    """A broken method: it listens to the first client only."""

    def serve(self, clients):
        return next(iter(clients.call(self.summarize))).value.model(1.0)


@dataclass(frozen=True, kw_only=True)
class Hoarder(fg.AFL):
    """A broken method: its state cannot travel."""

    @fg.step
    def summarize(self, client):
        client.state["me"] = client
        return client.moments()


@dataclass(frozen=True, kw_only=True)
class Idle(fg.AFL):
    """A broken method: it learns nothing."""

    def serve(self, clients):
        return fg.LinearModel(np.zeros((64, 10)), clients.classes)


@dataclass(frozen=True, kw_only=True)
class Moody(fg.AFL):
    """A broken method: its random numbers come from nowhere."""

    def serve(self, clients):
        return fg.LinearModel(np.random.default_rng().random((64, 10)), clients.classes)


@dataclass(frozen=True, kw_only=True)
class Silent(fg.Method):
    """A broken method: clients get no model, and no reply counts."""

    personal = True

    def serve(self, clients) -> None:
        clients.each(self.look)

    @fg.step
    def look(self, client):
        client.moments()


@dataclass(frozen=True, kw_only=True)
class Counted(fg.AFL):
    """AFL that counts how often it is run."""

    runs: ClassVar[list[int]] = []

    def serve(self, clients):
        self.runs.append(len(clients.names))
        return super().serve(clients)


FAILURES = {
    "learns": (Idle(), r"idle: pooled accuracy 0\.\d+, bound 0\.300 \(chance is 0\.1\)\. Usual cause: too few rounds"),
    "same seed": (
        Moody(),
        r"500 of 500 scores differ, one by \S+; bound 0: the same bits\. Usual cause: random numbers",
    ),
    "order": (
        FirstOnly(),
        r"reverse order: \d+ of 500 scores differ, one by \S+; bound \d\S*\. Usual cause: the server",
    ),
    "empty": (FirstOnly(), r"contributors should be \('client-0', .*\), got \('client-0',\)\. Usual cause: the server"),
    "no model": (
        Silent(),
        r"reverse order: the fit has 0 models; bound: .*\. Usual cause: `serve` that returns nothing",
    ),
    "nobody": (
        Silent(),
        r"contributors should be \('client-0', .*\), got \(\)\. Usual cause: replies.*`ask` or `each`",
    ),
    "travel": (Hoarder(), r"state of 'client-0': .*cannot be sent.*\. Usual cause: an object in `client\.state`"),
}
BROKEN_IN = {
    "learns": checks.learns,
    "same seed": checks.same_seed_same_result,
    "order": checks.order_does_not_matter,
    "empty": checks.empty_client_is_listed,
    "no model": checks.order_does_not_matter,
    "nobody": checks.empty_client_is_listed,
    "travel": checks.state_can_travel,
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_check_that_fails_says_figure_bound_and_usual_cause(what):
    method, words = FAILURES[what]
    with pytest.raises(AssertionError, match=words):
        BROKEN_IN[what](method)


def test_the_fit_that_checks_share_is_made_once():
    for check in checks.CHECKS:
        check(Counted())
    alone = len(checks.some_clients())
    # Once for all, and where a check is about running again: seed, order, two numbers of workers, batch, names, state,
    # and an empty client, which is not asked.
    assert Counted.runs.count(alone) == 1 + 8
