"""Methods of several rounds by files: the store asks, keeps the answers, and goes on when all have come.

Nothing of a run is kept but what all parties together have answered in each round. A method is served from its
beginning each time, with the sums that are known; where it asks for one that is not, that is the next round.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.exchange import files, ledger
from fedgram.exchange.files import File
from fedgram.exchange.fixedpoint import Fixed
from fedgram.exchange.publishing import (
    COORDINATOR,
    Publication,
    configured,
    fit_of,
    pool_of,
    published,
    warned_of_two,
    write,
)
from fedgram.exchange.records import AskedRound
from fedgram.exchange.rounds import STEPS, Answer, Round, check_answer
from fedgram.exchange.store import Store
from fedgram.protocol.clients import Clients
from fedgram.protocol.method import Method
from fedgram.protocol.pool import Pool


@dataclass(frozen=True)
class Asked:
    """A round's file, for all parties to answer."""

    number: int
    data: bytes


def advance(
    store: Store, method: str, settings: Mapping[str, Any] | None = None, *, restart: bool = False
) -> Asked | Publication:
    """Return the next round's file, or after the last round the global model.

    While answers are missing it is refused, naming who is waited for; unless nobody has answered yet: then the round's
    file is returned again. Other settings than those of the run under way are refused once there are answers, which
    would be lost; `restart` discards them and begins with round 1.
    """
    chosen = configured(store, method, settings)
    with store.changing() as saving:
        if not restart and (known := published(store, chosen)) is not None:
            return known
        pool = pool_of(store, saving.total)
        if pool.basis is None or any(each.kind != "summary" for each in store.contributions()):
            raise InvalidParameter(
                f"{chosen.name} asks every party, round by round: that needs a study, and summaries that joined "
                "directly, not in combined files"
            )
        run = json.dumps([_last_change(store), chosen.settings()])
        rounds = store.index.rounds()
        if rounds and (restart or rounds[0].run != run):  # who takes part, or the settings, have changed: begin anew
            if not restart:
                _check_nothing_is_lost(store, chosen, rounds)
            with store.index.changing():
                store.index.end_rounds()
            rounds = []
        if rounds and rounds[-1].said is None:
            if not store.index.answers():
                return Asked(len(rounds), store.published.read(rounds[-1].digest).data)
            rounds[-1] = _closed(store, rounds[-1])
        replay = _Replay(pool, [wire.decode(cast("bytes", each.said)) for each in rounds])
        try:
            model = chosen.serve(cast("Clients", replay))
        except _Unanswered as next_round:
            return _ask(store, pool, chosen, run, len(rounds) + 1, next_round.payload)
        return write(store, saving.total, chosen, fit_of(chosen, pool, replay.message, model, replay.notes))


def _check_nothing_is_lost(store: Store, method: Method, rounds: list[AskedRound]) -> None:
    """Refuse to begin a run anew with other settings while one is under way that parties have answered."""
    answers = len(store.index.answers())
    if (len(rounds) == 1 and not answers) or _ended(store, method):
        return
    wanted = json.loads(json.dumps(method.settings()))
    under_way = json.loads(rounds[0].run)[1]
    settings = " ".join(f"--set {name}={value}" for name, value in under_way.items() if wanted.get(name) != value)
    raise InvalidParameter(
        f"{method.name} is at round {len(rounds)}, with {answers} answers, in a run with other settings: go on with "
        f"{settings}, or give --restart to discard all answers and begin anew"
    )


def _ended(store: Store, method: Method) -> bool:
    """Whether the model of the last rounds has been published, so that their answers are not needed any more."""
    for entry in reversed(store.log()):
        what = entry.detail("what")
        if what in (ledger.ROUND, ledger.PUBLISH) and entry.detail("method") == method.name:
            return bool(what == ledger.PUBLISH)
    return False


def take_answer(store: Store, file: File, *, replace: bool) -> bool:
    """Keep a party's answer to the round that is open; return whether it is new. A round out of order is refused."""
    rounds = store.index.rounds()
    study = store.terms.study
    if not rounds or rounds[-1].said is not None or study is None:
        raise Mismatch(f"{file.name} refused: no round is open that it could answer: fedgram publish asks the next one")
    party = store.contribution(file.header.party)
    if file.digest == (former := store.index.answers().get(party.party)):
        return False
    if former is not None and not replace:
        raise InvalidData(
            f"{file.name} refused: {party.party!r} has answered round {rounds[-1].number} with another file: give "
            "--replace if this one is to take its place"
        )
    check_answer(study, store.published.read(rounds[-1].digest), file, party.samples)
    store.answers.add(file.digest, file.data)
    with store.index.changing():
        store.index.answer(party.party, file.digest)
        store.append(ledger.ANSWER, party=party.party, digest=file.digest, round=rounds[-1].number)
    return True


def waited_for(store: Store) -> list[str]:
    """Return who has not answered the open round yet."""
    rounds, answers = store.index.rounds(), store.index.answers()
    if not rounds or rounds[-1].said is not None:
        return []
    return [each.party for each in store.contributions() if each.party not in answers]


def _closed(store: Store, round: AskedRound) -> AskedRound:
    """Add up all answers to a round; in fixed point, so that the order in which they came does not show."""
    if missing := waited_for(store):
        named = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InvalidData(
            f"round {round.number} waits for {len(missing)} answers, of {named}: join them, or remove who will not "
            "answer"
        )
    total: Fixed | None = None
    for digest in store.index.answers().values():
        reply = store.answers.read(digest).holding(Answer).reply
        part = Fixed.of(_flat(reply), name="an answer")
        total = part if total is None else total + part
    assert total is not None
    said = wire.encode(_like(reply, total.floats()))
    with store.index.changing():
        store.index.close_round(round.number, said)
    store.answers.sweep(())
    return AskedRound(round.number, round.digest, round.run, said)


def _ask(store: Store, pool: Pool, method: Method, run: str, number: int, payload: Any) -> Asked:
    assert pool.basis is not None
    request = Round(number, method.name, method.settings(), pool.basis, payload)
    study = store.terms.study
    assert study is not None
    data = files.encode("round", request, study=study, party=COORDINATOR, key=store.key)
    digest = files.read(data, checked=True).digest
    store.published.add(digest, data)
    with store.index.changing():
        store.index.ask(AskedRound(number, digest, run, None))
        store.append(ledger.ROUND, method=method.name, round=number, digest=digest)
    return Asked(number, data)


class _Unanswered(Exception):
    """A method asks for a sum that nobody has been asked for yet."""

    def __init__(self, payload: Any) -> None:
        super().__init__()
        self.payload = payload


class _Replay:
    """Stands in for the clients of a run whose answers come by files, as far as a method of sums needs them."""

    def __init__(self, pool: Pool, said: list[Any]) -> None:
        self.names = list(pool.contributors)
        self.message: Any = None
        self.notes: dict[str, str] = {}
        self._pool, self._said = pool, iter(said)

    def sum(self, step: Any, payload: Any = None, **_: Any) -> Any:
        """Return the pooled moments, or the answers of the next round; publishing validates the sites."""
        if step.__name__ not in STEPS.values():
            return self._pool.total
        for said in self._said:
            return said
        raise _Unanswered(payload)

    def rounds_of(self, count: int) -> Iterator[int]:
        """Count the rounds."""
        return iter(range(count))

    def report(self, *_: Any) -> None:
        """Judge nothing: test samples are with the parties."""

    def warn_of_two(self, what: str) -> None:
        """Warn before something is published from which each of two contributors can subtract its own part."""
        self.notes |= warned_of_two(self._pool, what)

    def each(self, *_: Any) -> None:
        """Ask for nothing: parties personalize by themselves, from what is published."""


def _last_change(store: Store) -> int:
    return max(entry.number for entry in store.log() if entry.detail("what") in ledger.CHANGES)


def _flat(reply: Mapping[str, Any]) -> Any:
    return np.concatenate([np.asarray(reply[name], dtype=np.float64).ravel() for name in sorted(reply)])


def _like(reply: Mapping[str, Any], numbers: Any) -> dict[str, Any]:
    """Return numbers in the form of a reply."""
    found, start = {}, 0
    for name in sorted(reply):
        shape = np.shape(reply[name])
        count = int(np.prod(shape))
        part = numbers[start : start + count]
        found[name] = part.reshape(shape) if shape else float(part[0])
        start += count
    return found
