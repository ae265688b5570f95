"""Every registered method keeps the contract; adding a method adds no test code."""

from dataclasses import dataclass

import pytest

import fedgram as fg
from fedgram import checks


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", fg.registry)
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


@pytest.mark.parametrize("check", [checks.order_does_not_matter, checks.empty_client_is_listed])
def test_contract_catches_a_method_that_forgets_clients(check):
    with pytest.raises(AssertionError):
        check(FirstOnly())


def test_contract_catches_state_that_cannot_travel():
    with pytest.raises(TypeError, match="cannot be sent"):
        checks.state_can_travel(Hoarder())
