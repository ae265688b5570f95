"""The server's side of methods by files: asking a round, collecting answers, and going on when all are in.

Of a run only the sum of all answers to each round is kept. Every time, the method runs from its beginning with the sums
that are known; the first sum that it asks for and that is missing becomes the next round.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, StoreError
from fedgram.core.fixed_point import Fixed
from fedgram.core.hashing import hash_bytes
from fedgram.exchange.format import fgm
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.format.fgm import File
from fedgram.exchange.rounds.round_messages import Round, check_answer
from fedgram.exchange.store import ledger
from fedgram.exchange.store.admission import check_name
from fedgram.exchange.store.delivery import delivering, target_of, write_again
from fedgram.exchange.store.index import AskedRound
from fedgram.exchange.store.index_check import run_differences
from fedgram.exchange.store.publishing import (
    COORDINATOR,
    MODEL,
    Publication,
    configured,
    fit_of,
    pool_of,
    published,
    warned_of_two,
    write,
)
from fedgram.exchange.store.study_store import Store
from fedgram.moments.moments import Moments
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.byfiles import asked_by_files
from fedgram.protocol.channel import Channel
from fedgram.protocol.clients import Clients
from fedgram.protocol.method import Method
from fedgram.protocol.pool import Pool
from fedgram.protocol.quorum import Quorum
from fedgram.protocol.registry import registry
from fedgram.protocol.transport import Spent

ALL = "all parties"


class Unanswered(Exception):
    """Raised when a method asks for a sum that the store lacks; `payload` is the request to all parties."""

    def __init__(self, payload: Any) -> None:
        super().__init__()
        self.payload = payload


class KnownSums:
    """Transport that replies from stored sums, and raises `Unanswered` for a sum that is missing.

    One client stands for all parties. The total gives moments and sums of columns; `said` has the sums of the closed
    rounds, in order. `published` is the message that parties personalize from later, with their own tables.
    """

    engine = "files"
    names: Sequence[str] = (ALL,)
    trusted = True  # each part of a sum was checked when it joined
    client_seconds = 0.0
    spent: Mapping[str, Spent] = MappingProxyType({})
    carried: Mapping[str, int] = MappingProxyType({})

    def __init__(self, method: Method, pool: Pool, said: Iterable[bytes]) -> None:
        self.published: Any = None
        self._asked, self._pool, self._said = asked_by_files(method.name).name, pool, iter(said)
        # The total is the sum of replies to `summarize` only if these are moments of the samples as they are.
        self._has_moments = method.finds_columns

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield the sum that answers a step; raise `Unanswered` if it is missing."""
        for name, request in requests:
            yield name, self._reply(step, request)

    def _reply(self, step: str, request: bytes) -> bytes:
        payload, total = wire.decode(request)["payload"], self._pool.sent
        if step == self._asked:
            said = next(self._said, None)
            if said is None:
                raise Unanswered(payload)
            return said
        if step == "personalize":
            self.published = payload
            return wire.encode(None)
        if step == "summarize" and self._has_moments:
            return wire.encode(total)
        if step == "column_sums":
            return wire.encode({"sums": total.cross.sum(axis=1), "squares": total.squares, "n": total.n})
        raise InvalidParameter(f"step {step!r} cannot be answered by files; ask for {self._asked!r} only")


def clients_of(method: Method, pool: Pool, transport: KnownSums) -> Clients:
    """Return the clients of a run by files, for a method's `serve`."""
    kind = pool.sent.schema
    samples = {ALL: pool.sent.n}
    agreement = Agreement(
        kind.classes,
        (kind.dimension,),
        kind.features,
        kind.columns,
        samples=samples,
        tested={ALL: 0},  # test samples stay with the parties
        study=pool.study,
    )
    clients = Clients(method, agreement, Channel(transport, method), Quorum(transport.names))
    if not method.finds_columns:
        clients.settle()
    return clients


@dataclass(frozen=True)
class Asked:
    """A round's number and file, which all parties answer, and its path outside the store, if one was asked for."""

    number: int
    data: bytes
    path: Path | None = None


def advance(
    store: Store,
    method: str,
    settings: Mapping[str, Any] | None = None,
    *,
    restart: bool = False,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Asked | Publication:
    """Return the next round's file, or after the last round the global model.

    With some answers missing it raises and names their parties; without any answers it returns the round's file again.
    Other settings than those of the present run raise once there are answers, which would be lost; `restart` discards
    them and begins with round 1.

    Parameters
    ----------
    store
        The coordinator's store; a round needs a study, and summaries that joined directly.
    method
        Name of a method with a step by files, such as "fedlogit".
    settings
        Hyper-parameters of the method; the others have their defaults.
    restart
        Whether to discard the answers of the present run and begin with round 1.
    out
        The file to write, or a folder for `round-1.fgm` and so on, and `global.fgm`.
    force
        Whether an earlier file there that holds something else may be written over; `restart` allows it, too.

    """
    chosen = configured(store, method, settings)
    model, force = target_of(out, MODEL), force or restart
    with store.changing() as saving:
        if not restart and (earlier := published(store, chosen)) is not None:
            write_again(model, earlier.data, force=force)
            return replace(earlier, path=model)
        pool = pool_of(store, saving.total)
        if pool.basis is None or any(each.kind != "summary" for each in store.contributions()):
            raise InvalidParameter(
                f"{chosen.name} asks every party, round by round: that needs a study, and summaries that joined "
                "directly, not in combined files"
            )
        run = json.dumps([_last_change(store), chosen.name, chosen.settings()])
        rounds = store.index.rounds()
        if rounds and (restart or rounds[0].run != run):  # parties or settings have changed
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
                path, data = target_of(out, _named(len(rounds))), store.published.read(rounds[-1].digest).data
                write_again(path, data, force=force)
                return Asked(len(rounds), data, path)
            rounds[-1] = _closed(store, rounds[-1])
        known = KnownSums(chosen, pool, [each.said for each in rounds if each.said is not None])
        try:
            clients = clients_of(chosen, pool, known)
            found = chosen.serve(clients)
        except Unanswered as next_round:
            path, number = target_of(out, _named(len(rounds) + 1)), len(rounds) + 1
            return _ask(store, pool, chosen, run, number, next_round.payload, path, force=force)
        message = clients.message if known.published is None else known.published
        fit = fit_of(chosen, pool, message, found, warned_of_two(pool, chosen, message))
        return write(store, saving.total, chosen, fit, model, force=force)


def _named(number: int) -> str:
    """Return the name of a round's file in a folder."""
    return f"round-{number}.fgm"


def _check_nothing_is_lost(store: Store, method: Method, rounds: list[AskedRound]) -> None:
    """Raise if another run with answers, of another method or other settings, would be discarded."""
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
    """Return the method and settings of a run."""
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
    """Return whether the last run's model has been published, so that its answers are not needed any more."""
    for entry in reversed(store.log()):
        what = entry.detail("what")
        if what in (ledger.ROUND, ledger.PUBLISH) and entry.detail("method") == name:
            return bool(what == ledger.PUBLISH)
    return False


def take_answer(store: Store, file: File, *, replace: bool) -> bool:
    """Store a party's answer to the open round and return whether it is new; raise if it is to another round."""
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
    """Return the parties that have not answered the open round."""
    rounds, answers = store.index.rounds(), store.index.answers()
    if not rounds or rounds[-1].said is not None:
        return []
    return [each.party for each in store.contributions() if each.party not in answers]


def _closed(store: Store, round: AskedRound) -> AskedRound:
    """Return the round with the sum of all its answers, in fixed point, so that their order has no effect.

    Each answer is checked again as when it joined, since others can put files into a folder.
    """
    if missing := waited_for(store):
        named = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InvalidData(
            f"round {round.number} waits for {len(missing)} answers, of {named}: join them, or remove the parties "
            "that will not answer"
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


def _ask(
    store: Store, pool: Pool, method: Method, run: str, number: int, payload: Any, path: Path | None, *, force: bool
) -> Asked:
    assert pool.basis is not None
    request = Round(number, method.name, method.settings(), pool.basis, payload)
    study = store.terms.study
    assert study is not None
    data = fgm.encode("round", request, study=study, party=COORDINATOR, key=store.key)
    digest = fgm.read(data, checked=True).digest
    with delivering(store, path, force=force) as stage:
        store.published.stage(digest, data)
        with store.index.changing():
            stage(data)
            store.index.ask(AskedRound(number, digest, run, None))
            store.append(ledger.ROUND, method=method.name, round=number, digest=digest)
        store.published.keep(digest)
    return Asked(number, data, path)


def _last_change(store: Store) -> int:
    return max(entry.number for entry in store.log() if entry.detail("what") in ledger.CHANGES)


def _flat(reply: Mapping[str, Any]) -> Any:
    return np.concatenate([np.asarray(reply[name], dtype=np.float64).ravel() for name in sorted(reply)])


def _like(reply: Mapping[str, Any], numbers: Any) -> dict[str, Any]:
    """Return numbers as a reply of the same names and shapes."""
    found, start = {}, 0
    for name in sorted(reply):
        shape = np.shape(reply[name])
        count = int(np.prod(shape))
        part = numbers[start : start + count]
        found[name] = part.reshape(shape) if shape else float(part[0])
        start += count
    return found
