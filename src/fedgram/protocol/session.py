"""One run of a method over any transport: hello, serve, receive, evaluate."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeAlias

from fedgram.core.columns import Columns, as_columns, difference
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, InvalidParameter, Mismatch
from fedgram.core.labels import NUMERIC, Classes, Label, as_classes
from fedgram.core.randomness import read_seed
from fedgram.data.client import Client
from fedgram.data.own.bad import warn_of_look_alikes
from fedgram.models import Model, with_columns
from fedgram.moments.kind import described, study_of
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.channel import Channel
from fedgram.protocol.checkpoint import Checkpoint
from fedgram.protocol.clients import Clients
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import NAMES, Method, Require, check_outcomes
from fedgram.protocol.quorum import Quorum
from fedgram.protocol.recipe import Recipe, in_source
from fedgram.protocol.transport import Progress, Transport

# Shape of a sample, fingerprint of the features, kind of the labels, sorted names of the columns.
_Kind: TypeAlias = tuple[tuple[int, ...], str, str, Columns]
NOBODY = "no clients: give at least one"
AGREEING = "agreeing on the data"
DECIDES = 1000  # times the samples of all others: a client with more is warned of


def run(
    method: Method,
    transport: Transport,
    *,
    classes: int | Iterable[Label] | None,
    seed: int,
    require: Require,
    progress: Progress | None,
    recipe: Recipe | None = None,
    checkpoint: tuple[Path, Callable[[], str]] | None = None,
) -> Fit:
    """Run a method and return its fit (without personal models, which stay with the clients).

    `checkpoint` is a file in which a method that can be interrupted saves its state, and a function that returns the
    fingerprint of the clients' data; the file goes when the run has ended.
    """
    started, cpu_started = perf_counter(), process_time()
    seed = read_seed(seed)
    if not transport.names:  # nobody came
        raise InvalidData(NOBODY)
    channel = Channel(transport, method, seed=seed, progress=progress)
    quorum = Quorum(transport.names, require)
    agreement = agree(channel, quorum, _classes(method, classes, recipe))
    if recipe is None and study_of(agreement.features):
        raise Mismatch(
            f"clients have {described(agreement.features)}, and no study was given that makes their columns: "
            "fit(…, study=study)"
        )
    if recipe is not None:
        if agreement.features != recipe.features:
            raise Mismatch(f"clients have {described(agreement.features)}, and this is {described(recipe.features)}")
        agreement = replace(agreement, recipe=recipe)
    clients = Clients(method, agreement, channel, quorum, seed=seed)
    if checkpoint is not None:
        path, fingerprint = checkpoint
        about = {"method": method.name, "revision": method.revision, "settings": method.settings(), "seed": seed}
        about |= {"classes": list(agreement.classes), "features": agreement.features}
        clients.checkpoint = Checkpoint(path, lambda: about | {"data": fingerprint()}, clients, channel, quorum)
    if recipe is None:
        clients.centre()
    elif not method.finds_columns:
        clients.settle()
    model = method.serve(clients)
    if model is not None:
        if not isinstance(model, Model):
            raise InvalidParameter(f"serve of {method.name} must return a model or None, got a {type(model).__name__}")
        basis = clients.agreement.basis
        model = in_source(model, basis, agreement.columns) if basis else with_columns(model, agreement.columns)
        # Whoever has no personal model gets the global one, so that every client can predict afterwards.
        without = [name for name in clients.present if not method.personal or name not in clients.names]
        clients.each(method.receive, model, to=without)
    # Reports of rounds are for the reader; without them the result would be the same.
    before = clients.checkpoint.before if clients.checkpoint else {"wall": 0.0, "cpu": 0.0, "clients": 0.0}
    seconds = before["wall"] + perf_counter() - started - clients.reporting["wall"]
    cpu_seconds = before["cpu"] + process_time() - cpu_started - clients.reporting["cpu"]
    client_seconds = before["clients"] + transport.client_seconds - clients.reporting["clients"]
    server_seconds = cpu_seconds - client_seconds if transport.trusted else cpu_seconds
    timing = channel.timing.by_client
    evaluation, errors = clients.evaluate(), clients.errors()
    pool = clients.pooled
    if clients.checkpoint is not None:
        clients.checkpoint.remove()
    return Fit(
        model=model,
        method=method.name,
        settings=method.settings(),
        seed=seed,
        contributors=tuple(quorum.contributors),
        absent=quorum.absent,
        lost=quorum.lost,
        traffic=channel.traffic,
        evaluation=evaluation,
        errors=errors,
        rounds=clients.rounds,
        seconds=seconds,
        cpu_seconds={"clients": client_seconds, "server": max(0.0, server_seconds)},
        timing=timing,
        engine=transport.engine,
        carried=dict(transport.carried),
        total=None if pool is None else pool.sent,
        recipe=recipe,
        basis=clients.agreement.basis,
        contributions=None if pool is None else pool.contributions,
        message=clients.message,
        notes=clients.notes,
        shape=agreement.shape,
        sites=clients.sites and clients.sites.in_basis(clients.agreement.basis),
    )


def _classes(method: Method, given: int | Iterable[Label] | None, recipe: Recipe | None) -> Classes:
    """Return the agreed classes, () if they are to be found out; refuse a method that needs some where there are none.

    This comes before anything is sent.
    """
    classes = () if given is None else as_classes(given)
    if recipe is None or not recipe.targets:
        return classes
    check_outcomes([method], recipe.targets)
    outcomes = ", ".join(map(repr, recipe.targets))
    if classes not in ((), NUMERIC):
        raise InvalidParameter(f"classes were given, {classes[:5]}, and the outcome {outcomes} is a number: leave them")
    return NUMERIC


def unique_names(clients: Sequence[Client]) -> list[str]:
    """Return the clients' names, which tell them apart."""
    names = [client.name for client in clients]
    if not names:
        raise InvalidData(NOBODY)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InvalidData(f"{count} clients are named {name!r}: names must be unique")
    return names


def agree(channel: Channel, quorum: Quorum, classes: Classes) -> Agreement:
    """Find out what data the clients have, and go on only with those that have the same kind.

    The kind that most clients have counts; the others are refused by name. Class folders {cat, dog} and {dog, fox} are
    never added as 0, 1: labels are matched by name. So are columns, in the order that most clients have. Without
    `classes` they are the labels that occur.
    """
    hellos = _hellos(channel, quorum, classes)
    kinds = {name: _kind(hello) for name, hello in hellos.items() if hello["n"]}
    if not kinds:
        raise InvalidData(f"none of the {len(hellos)} clients has any samples")
    (usual, most), *rest = Counter(kinds.values()).most_common(2)
    if rest and rest[0][1] == most:
        what = "; ".join(f"client {name!r} has {_describe(kind)}" for name, kind in kinds.items())
        raise Mismatch(f"{AGREEING}: clients differ, and no kind of data is the most frequent: {what}")
    strangers = {name: Mismatch(_unlike(kind, usual)) for name, kind in kinds.items() if kind != usual}
    if strangers:
        quorum.lose(strangers, during=AGREEING)
    alike = [hellos[name] for name, kind in kinds.items() if kind == usual]
    if not classes:
        classes = as_classes(sorted({label for hello in alike for label in hello["labels"]}))
        # "Well" here and "well" there would be two classes, each of which half of the clients have never seen.
        warn_of_look_alikes(classes, "the clients' labels")
    for name, hello in hellos.items():
        if not hello["n"]:
            quorum.leave_out(name)
    quorum.lose({}, during=AGREEING)
    _warn_of_the_largest({name: hellos[name]["n"] for name, kind in kinds.items() if kind == usual})
    shape, features, *_ = usual
    return Agreement(
        classes,
        shape,
        features,
        _usual_order(tuple(hello["columns"]) for hello in alike),
        far=any(hello["far"] for hello in alike),
        samples={name: hello["n"] for name, hello in hellos.items()},
        tested={name: hello["tested"] for name, hello in hellos.items()},
    )


def _hellos(channel: Channel, quorum: Quorum, classes: Classes) -> dict[str, dict[str, Any]]:
    """Return what clients say of their data, without those who contradict themselves."""
    failed: dict[str, FedgramError] = {}
    asked = [(name, None) for name in quorum.names]
    hellos = dict(channel.ask("hello", asked, Agreement(classes), failed))
    if failed:
        quorum.lose(failed, during="step 'hello'")
    odd = {name: error for name, hello in hellos.items() if (error := _contradiction(hello)) is not None}
    if odd:
        quorum.lose(odd, during=AGREEING)
    return {name: hello for name, hello in hellos.items() if name not in odd}


def _contradiction(hello: dict[str, Any]) -> FedgramError | None:
    """Return what in a client's own words does not go together; left in, it would spoil the run for all."""
    n, shape, labels, tested = (hello[key] for key in ("n", "shape", "labels", "tested"))
    try:
        as_columns(hello["columns"], *shape[:1])
    except FedgramError as error:
        return error
    if n and not shape:
        return Mismatch(f"has {n} samples without any shape")
    if n and labels is not None:
        wanted = str if hello["kind"] == NAMES else int
        if strangers := [label for label in labels if type(label) is not wanted]:
            return Mismatch(f"says that it has {hello['kind']} labels, and lists {repr(strangers[0])[:60]}")
        if not 0 < len(labels) <= n + tested:
            return Mismatch(f"lists {len(labels)} labels of {n + tested} samples")
    return None


def _warn_of_the_largest(samples: Mapping[str, int]) -> None:
    """Warn of a client that says it has nearly all samples: the server cannot count them."""
    name = max(samples, key=samples.__getitem__)
    rest = sum(samples.values()) - samples[name]
    if len(samples) > 2 and samples[name] > DECIDES * rest:
        warnings.warn(
            f"client {name!r} says that it has {samples[name]} samples, and the other {len(samples) - 1} have {rest}: "
            "where clients weigh by their samples it decides alone; leave it out if that cannot be",
            Doubtful,
            stacklevel=2,
        )


def _usual_order(orders: Iterable[Columns]) -> Columns:
    """Return the order of columns that most clients have; of several such, the first in the alphabet."""
    votes = Counter(orders)
    return min(votes, key=lambda columns: (-votes[columns], columns))


def _kind(hello: dict[str, Any]) -> _Kind:
    return tuple(hello["shape"]), hello["features"], hello["kind"], tuple(sorted(hello["columns"]))


def _unlike(kind: _Kind, usual: _Kind) -> str:
    """Say how a client's data differ from those that most clients have."""
    if unlike := difference(kind[-1], usual[-1]):
        return f"{unlike} (as to what most clients have)"
    return f"has {_describe(kind)}; most clients have {_describe(usual)}"


def _describe(kind: _Kind) -> str:
    shape, features, labels, _ = kind
    parts = [
        f"samples of shape {shape}",
        described(features) if features else "",
        f"{labels} labels" if labels else "",
    ]
    return ", ".join(part for part in parts if part)
