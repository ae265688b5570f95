"""Methods of several rounds by files: the store asks, keeps the answers, and goes on when all have come.

Nothing of a run is kept but what all parties together have answered in each round. A method is served from its
beginning each time, with the sums that are known; where it asks for one that is not, that is the next round.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, StoreError
from fedgram.core.hashing import hash_bytes
from fedgram.exchange import files, ledger
from fedgram.exchange.admission import check_name
from fedgram.exchange.files import File
from fedgram.exchange.fixedpoint import Fixed
from fedgram.exchange.known import KnownSums, Unanswered, clients_of
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
from fedgram.exchange.rounds import Round, check_answer
from fedgram.exchange.rows import run_differences
from fedgram.exchange.store import Store
from fedgram.exchange.sums import Sum
from fedgram.moments.moments import Moments
from fedgram.protocol.method import Method
from fedgram.protocol.pool import Pool
from fedgram.protocol.registry import registry


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
        if not restart and (earlier := published(store, chosen)) is not None:
            return earlier
        pool = pool_of(store, saving.total)
        if pool.basis is None or any(each.kind != "summary" for each in store.contributions()):
            raise InvalidParameter(
                f"{chosen.name} asks every party, round by round: that needs a study, and summaries that joined "
                "directly, not in combined files"
            )
        run = json.dumps([_last_change(store), chosen.name, chosen.settings()])
        rounds = store.index.rounds()
        if rounds and (restart or rounds[0].run != run):  # who takes part, or the settings, have changed: begin anew
            if not restart:
                _check_nothing_is_lost(store, chosen, rounds)
            with store.index.changing():
                store.index.end_rounds()
            store.answers.sweep(())
            rounds = []
        if wrong := next(run_differences(store.index, store.log()), None):
            raise StoreError(f"{wrong}: restore the store from a copy, or begin the rounds anew with --restart")
        if rounds and rounds[-1].said is None:
            if not store.index.answers():
                return Asked(len(rounds), store.published.read(rounds[-1].digest).data)
            rounds[-1] = _closed(store, rounds[-1])
        known = KnownSums(chosen, pool, [each.said for each in rounds if each.said is not None])
        try:
            model = chosen.serve(clients_of(chosen, pool, known))
        except Unanswered as next_round:
            return _ask(store, pool, chosen, run, len(rounds) + 1, next_round.payload)
        fit = fit_of(chosen, pool, known.published, model, warned_of_two(pool, chosen, known.published))
        return write(store, saving.total, chosen, fit)


def _check_nothing_is_lost(store: Store, method: Method, rounds: list[AskedRound]) -> None:
    """Refuse to begin a run while another is under way that parties have answered: of a method, or of settings."""
    name, under_way = _under_way(rounds[0])
    answers = len(store.index.answers())
    if (len(rounds) == 1 and not answers) or _ended(store, name):
        return
    same = name == method.name
    wanted = json.loads(json.dumps(method.settings() if same else registry[name]().settings()))
    options = [] if same else [f"--method {name}"]
    options += [f"--set {setting}={value}" for setting, value in under_way.items() if wanted.get(setting) != value]
    raise InvalidParameter(
        f"{name} is at round {len(rounds)}, with {answers} answers, in another run: go on with {' '.join(options)}, or "
        "give --restart to discard all answers and begin anew"
    )


def _under_way(round: AskedRound) -> tuple[str, dict[str, Any]]:
    """Return the method and the settings of a run."""
    try:
        _, name, settings = json.loads(round.run)
    except (ValueError, TypeError, RecursionError):
        name, settings = None, None
    if not isinstance(name, str) or not isinstance(settings, dict):
        raise StoreError(
            f"the index has {round.run!r:.60} as the run of round {round.number}: restore the store from a copy, or "
            "begin the rounds anew with --restart"
        )
    return name, settings


def _ended(store: Store, name: str) -> bool:
    """Whether the model of the last rounds has been published, so that their answers are not needed any more."""
    for entry in reversed(store.log()):
        what = entry.detail("what")
        if what in (ledger.ROUND, ledger.PUBLISH) and entry.detail("method") == name:
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
    check_answer(study, store.published.read(rounds[-1].digest), file, _joined(store, party.party))
    store.answers.add(file.digest, file.data)
    with store.index.changing():
        store.index.answer(party.party, file.digest)
        store.append(ledger.ANSWER, party=party.party, digest=file.digest, round=rounds[-1].number)
    return True


def _joined(store: Store, party: str) -> Moments:
    return store.objects.read(store.contribution(party).digest).holding(Moments)


def waited_for(store: Store) -> list[str]:
    """Return who has not answered the open round yet."""
    rounds, answers = store.index.rounds(), store.index.answers()
    if not rounds or rounds[-1].said is not None:
        return []
    return [each.party for each in store.contributions() if each.party not in answers]


def _closed(store: Store, round: AskedRound) -> AskedRound:
    """Add up all answers to a round; in fixed point, so that the order in which they came does not show.

    Each is checked again as when it came, since files in a folder can be put there by others.
    """
    if missing := waited_for(store):
        named = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InvalidData(
            f"round {round.number} waits for {len(missing)} answers, of {named}: join them, or remove who will not "
            "answer"
        )
    total: Fixed | Sum | None = None
    study, request = store.terms.study, store.published.read(round.digest)
    assert study is not None
    for party, digest in store.index.answers().items():
        file = store.answers.read(digest)
        check_name(file, store.terms, remembered=store.index.key_of(party))
        reply = check_answer(study, request, file, _joined(store, party)).reply
        part: Any = Sum.of(reply) if isinstance(reply, Moments) else Fixed.of(_flat(reply), name="an answer")
        total = part if total is None else total + part
    assert total is not None
    said = wire.encode(total.moments() if isinstance(total, Sum) else _like(reply, total.floats()))
    with store.index.changing():
        store.index.close_round(round.number, said)
        store.append(ledger.CLOSE, round=round.number, said=hash_bytes([said]))
    store.answers.sweep(())
    return AskedRound(round.number, round.digest, round.run, said)


def _ask(store: Store, pool: Pool, method: Method, run: str, number: int, payload: Any) -> Asked:
    assert pool.basis is not None
    request = Round(number, method.name, method.settings(), pool.basis, payload)
    study = store.terms.study
    assert study is not None
    data = files.encode("round", request, study=study, party=COORDINATOR, key=store.key)
    digest = files.read(data, checked=True).digest
    store.published.stage(digest, data)
    with store.index.changing():
        store.index.ask(AskedRound(number, digest, run, None))
        store.append(ledger.ROUND, method=method.name, round=number, digest=digest)
    store.published.keep(digest)
    return Asked(number, data)


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
