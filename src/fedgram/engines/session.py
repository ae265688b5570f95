"""One run of a method over any transport: hello, serve, receive, evaluate."""

from collections import Counter
from collections.abc import Iterable
from time import perf_counter, process_time
from typing import Any

from fedgram.errors import FedgramError, InvalidData, Mismatch
from fedgram.labels import Classes, Label, as_classes, to_indices
from fedgram.methods.base import Method, Require
from fedgram.methods.clients import NO_SAMPLES, Clients, Progress, Transport
from fedgram.methods.fit import Fit


def run(
    method: Method,
    transport: Transport,
    *,
    classes: int | Iterable[Label] | None,
    seed: int,
    require: Require,
    progress: Progress | None,
) -> Fit:
    """Run a method and return its fit (without personal models, which stay with the clients)."""
    started, cpu_started = perf_counter(), process_time()
    if not transport.names:
        raise InvalidData("no clients: give at least one")
    clients = Clients(transport, method=method, seed=seed, require=require, progress=progress)
    agree(clients, method, None if classes is None else as_classes(classes))
    model = method.serve(clients)
    if model is not None:
        # Whoever has no personal model gets the global one; everybody can predict afterwards.
        without = [name for name in clients.present if not method.personal or name in clients.absent]
        clients.each(method.receive, model, to=without)
    seconds, cpu_seconds = perf_counter() - started, process_time() - cpu_started
    client_seconds = transport.client_seconds
    return Fit(
        model=model,
        method=method.name,
        settings=method.settings(),
        seed=seed,
        contributors=tuple(clients.contributors),
        absent=clients.absent,
        traffic=clients.traffic,
        evaluation=clients.evaluate(),
        rounds=clients.rounds,
        seconds=seconds,
        cpu_seconds={"clients": client_seconds, "server": max(0.0, cpu_seconds - client_seconds)},
    )


def agree(clients: Clients, method: Method, classes: Classes | None) -> None:
    """Find out what data the clients have, and go on only with those that have the same kind.

    The kind that most clients have counts; the others are refused by name. Class folders {cat, dog} and {dog, fox} are
    never added as 0, 1: labels are matched by name.
    """
    hellos = {reply.client: reply.value for reply in clients.ask(method.hello, to=clients.present)}
    filled = {name: hello for name, hello in hellos.items() if hello["n"]}
    if not filled:
        raise InvalidData(f"none of the {len(hellos)} clients has any samples")
    by_name = classes is not None
    usual = Counter(_kind(hello, by_name) for hello in filled.values()).most_common(1)[0][0]
    strangers: dict[str, FedgramError] = {}
    for name, hello in filled.items():
        if (kind := _kind(hello, by_name)) != usual:
            strangers[name] = Mismatch(f"has {_describe(kind)}; most clients have {_describe(usual)}")
        elif classes is not None:
            try:
                to_indices(hello["labels"], classes)
            except InvalidData as error:
                strangers[name] = error
    if strangers:
        clients.lose(strangers, during="agreeing on the data")
    if classes is None:
        seen = {label for name, hello in filled.items() if name not in strangers for label in hello["labels"]}
        classes = as_classes(sorted(seen))
    clients.classes = classes
    for name, hello in hellos.items():
        clients.samples[name] = hello["n"]
        clients.tested[name] = hello["tested"]
        if not hello["n"]:
            clients.absent[name] = NO_SAMPLES


def _kind(hello: dict[str, Any], by_name: bool) -> tuple[tuple[int, ...], str, str]:
    labels = "" if by_name else type(hello["labels"][0]).__name__
    return tuple(hello["shape"]), hello["features"], labels


def _describe(kind: tuple[tuple[int, ...], str, str]) -> str:
    shape, features, labels = kind
    parts = [
        f"samples of shape {shape}",
        f"features {features!r}" if features else "",
        f"{labels} labels" if labels else "",
    ]
    return ", ".join(part for part in parts if part)
