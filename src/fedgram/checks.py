"""The contract of methods, as checks that users can run on a method of their own.

>>> import fedgram as fg
>>> from fedgram import checks
>>> for check in checks.CHECKS:
...     check(fg.AFL())

A check that fails says which figure it found, against which bound, and what usually causes that.
"""

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.errors import ClientFailed, FedgramError, RankDeficient
from fedgram.data import digits
from fedgram.data.client import Client, make_clients
from fedgram.data.partition import dirichlet
from fedgram.engines.inprocess import InProcess, Room
from fedgram.models import Model
from fedgram.protocol.fit import Fit, load
from fedgram.protocol.method import Engine, Method
from fedgram.protocol.registry import registry
from fedgram.protocol.session import run

Check: TypeAlias = Callable[[Method], None]

CLASSES = 10


def example(name: str) -> Method:
    """Return a registered method with its `quick` settings, which can be checked in seconds."""
    method = registry[name]
    return method(**method.quick)


# Fits that several checks look at, each made once; the last few only.
_USUAL: dict[tuple[type[Method], str], Fit] = {}
_MOST_KEPT = 4


def some_clients(count: int = 6, samples: int = 400) -> list[Client]:
    """Return a few unequal clients with real digits."""
    data = digits()
    parts = dirichlet(data.y[:samples], clients=count, alpha=1.0, seed=3, min_size=8)
    return make_clients(data, parts, test_fraction=0.2, seed=3)


def fit(method: Method, clients: list[Client], **options: object) -> Fit:
    """Fit with the digits' classes, and without the warning that some of their pixels are always white."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        return method.fit(clients, **{"classes": CLASSES, **options})  # type: ignore[arg-type]


def usual_fit(method: Method) -> Fit:
    """Return the fit on `some_clients` with the default seed and engine.

    Most checks compare with it, so it is made once for a class and its settings: look at it, but change nothing.
    """
    key = type(method), repr(method)
    if key not in _USUAL:
        _USUAL[key] = fit(method, some_clients())
        if len(_USUAL) > _MOST_KEPT:
            del _USUAL[next(iter(_USUAL))]
    return _USUAL[key]


def scores(fitted: Fit) -> Array:
    """Return the scores of all models of a fit for the same samples."""
    x = digits().x[-50:]
    models: list[Model | None] = [fitted.model, *(fitted.personal[name] for name in sorted(fitted.personal))]
    return np.stack([model.scores(x) for model in models if model is not None])


def fail(method: Method, found: str, usually: str) -> NoReturn:
    """Fail with what was found and what usually causes it."""
    raise AssertionError(f"{method.name}: {found}. Usual cause: {usually}.")


def expect(method: Method, what: str, found: object, wanted: object, usually: str) -> None:
    """Fail unless what was found equals what was wanted."""
    if found != wanted:
        fail(method, f"{what} should be {wanted}, got {found}", usually)


def alike(method: Method, when: str, got: Fit, want: Fit, usually: str, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Fail unless the models of two fits score the same: to the bit, or within atol + rtol · |score|."""
    for fitted in (got, want):
        if fitted.model is None and not fitted.personal:
            cause = "`serve` that returns nothing while no step calls `client.keep`"
            fail(method, f"{when}: the fit has 0 models; bound: a global one, or one for each client", cause)
    found, wanted = scores(got), scores(want)
    if found.shape != wanted.shape:
        fail(method, f"{when}: scores of shape {wanted.shape} became {found.shape}", usually)
    with np.errstate(invalid="ignore"):  # a score of minus infinity equals itself
        apart, bound = np.abs(found - wanted), atol + rtol * np.abs(wanted)
        wrong = ~((found == wanted) | (apart <= bound))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[np.argmax((apart - bound)[wrong])])
        figure, most = f"{apart[at]:.3g}", f"{bound[at]:.3g}" if rtol or atol else "0: the same bits"
        fail(method, f"{when}: {wrong.sum()} of {wrong.size} scores differ, one by {figure}; bound {most}", usually)


def learns(method: Method) -> None:
    """Do far better than chance, on clients' own test samples."""
    evaluation, bound = usual_fit(method).evaluation, 3 / CLASSES
    if not evaluation.pooled > bound:
        found = f"pooled accuracy {evaluation.pooled:.3f}" if evaluation else "no evaluation"
        usually = "too few rounds, a learning rate that is far off, or labels that are not in the order of `classes`"
        fail(method, f"{found}, bound {bound:.3f} (chance is {1 / CLASSES})", usually)


def same_seed_same_result(method: Method) -> None:
    """Give the same bits for the same seed."""
    usually = "random numbers that do not come from `client.rng` or `clients.rng`"
    alike(method, "two fits with the same seed", fit(method, some_clients()), usual_fit(method), usually)


def order_does_not_matter(method: Method) -> None:
    """Give the same result, to rounding, when clients come in another order."""
    back, rtol = fit(method, some_clients()[::-1]), max(method.rounding, 1e-6)
    usually = "the server treats replies by their place, or a step keeps something on the method itself"
    alike(method, "clients in the reverse order", back, usual_fit(method), usually, rtol, rtol / 100)


def workers_do_not_matter(method: Method) -> None:
    """Give the same bits with worker threads."""
    usually = "clients share something that a step changes: keep it in `client.state`"
    for n in (1, 3):
        fitted = fit(method, some_clients(), engine=InProcess(workers=n))
        alike(method, f"InProcess(workers={n})", fitted, usual_fit(method), usually)


def batches_do_not_matter(method: Method) -> None:
    """Give the same result whether batched steps get many clients at once or one."""
    usually = "a batched step mixes its clients: a mean over the batch, or padding that counts as samples"
    one, bounds = fit(method, some_clients(), engine=InProcess(batch=1)), np.maximum(method.rounding, (1e-5, 1e-6))
    alike(method, "InProcess(batch=1)", one, usual_fit(method), usually, *bounds)


def empty_client_is_listed(method: Method) -> None:
    """Give the same result with an empty client beside the others, and list it as absent."""
    clients = some_clients()
    fitted = fit(method, [*clients, _empty()])
    usually = "the server counts all clients, not those that replied"
    expect(method, "absent, with an empty client,", fitted.absent, {"empty": "no samples"}, usually)
    if not fitted.contributors:
        usually = "replies that are asked for with `ask` or `each`, which do not count: use `call`, `sum` or `mean`"
    expect(method, "contributors", fitted.contributors, tuple(client.name for client in clients), usually)
    alike(method, "an empty client more", fitted, usual_fit(method), usually)


def one_sample_is_enough(method: Method) -> None:
    """Take a client with a single sample like any other."""
    contributors = fit(method, [*some_clients(), _lonely()]).contributors
    if "lonely" not in contributors:
        usually = "a step that fails or says nothing where a split, a variance or a batch needs two samples"
        fail(method, f"a client with one sample is not among the contributors {contributors}", usually)


def bad_client_is_named(method: Method) -> None:
    """Refuse NaN features with the client's name; go on without it where a quorum allows."""
    rest = _without_the_bad(method)
    expect(method, "absent, with a bad client,", set(rest.absent), {"bad"}, "an error that `serve` swallows")
    alike(method, "a bad client more, which is left out", rest, usual_fit(method), "its part stays in a sum")


def names_match_by_name(method: Method) -> None:
    """Give the same result when labels are names that clients order differently."""
    names = [f"digit {9 - i}" for i in range(CLASSES)]
    named = [
        Client(c.name, c.x, [names[i] for i in c.y], c.x_test, [names[i] for i in c.y_test], c.features)
        for c in some_clients()
    ]
    usually = "labels taken from the data: use `client.y`, which counts in the order of `client.classes`"
    alike(method, "labels as names", fit(method, named, classes=names), usual_fit(method), usually)


def saves_and_loads(method: Method) -> None:
    """Predict the same after saving and loading."""
    fitted, usually = usual_fit(method), "a model whose message does not hold all of it"
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(path := Path(folder) / "fit.safetensors")
        loaded = load(path)
    alike(method, "saved and loaded", loaded, fitted, usually)
    expect(method, "contributors, loaded,", loaded.contributors, fitted.contributors, usually)
    expect(method, "traffic, loaded,", loaded.traffic, fitted.traffic, usually)


def state_can_travel(method: Method) -> None:
    """Keep only payloads in the clients' state, and models that are messages."""
    room = Room(method, some_clients(), InProcess())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    for name, side in room.sides.items():
        try:
            wire.decode(wire.encode({"state": side.state, "model": side.model}))
        except (TypeError, ValueError, FedgramError) as error:
            usually = "an object in `client.state` that is not a payload: keep arrays, numbers, texts, lists, dicts"
            fail(method, f"state of {name!r}: {error}", usually)


def bytes_are_counted(method: Method) -> None:
    """Account for every contributor's messages."""
    for name in usual_fit(method).contributors:
        account = usual_fit(method).traffic.by_client[name]
        if not (account["up"] > 0 and account["down"] > 0):
            fail(method, f"bytes of {name!r}: {account}; bound: more than 0", "a client that was never asked")


def settings_rebuild_it(method: Method) -> None:
    """Be determined by its class and settings alone, and have a docstring."""
    usually = "a field that `__init__` or `__post_init__` changes, or a class that is not a frozen dataclass"
    expect(method, "the method of its own settings", type(method)(**method.settings()), method, usually)
    if not (type(method).__doc__ or "").strip():
        fail(method, f"{type(method).__name__} has no docstring", "it is still to be written")


def engine_agrees(method: Method, engine: Engine, personal: Callable[[str], Model]) -> None:
    """Give the same on another engine as in one process, also with an empty client and one of a single sample.

    `personal` returns the model that a client has kept for itself.
    """
    clients = [*some_clients(), _lonely(), _empty()]
    here, there = fit(method, clients, seed=5), fit(method, clients, seed=5, engine=engine)
    usually = "a step that needs what another process does not have: a global, a file, state outside `client.state`"
    for what in ("contributors", "absent", "evaluation"):
        expect(method, f"{what} on {there.engine}", getattr(there, what), getattr(here, what), usually)
    ours, theirs = here.traffic.by_client, there.traffic.by_client
    expect(method, f"clients with traffic on {there.engine}", set(theirs), set(ours), usually)
    for name, account in theirs.items():
        for way, found in account.items():
            # A number may take some digits more or fewer when replies were added in another order.
            if abs(found - (want := ours[name][way])) > 64:
                fail(method, f"bytes {way} of {name!r} on {there.engine}: {found}, bound {want} ± 64", usually)
    expect(method, "personal models that left their clients", set(there.personal), set(), "an engine that collects")
    there = replace(there, personal={name: personal(name) for name in here.personal})
    alike(method, f"on {there.engine}", there, here, usually, method.rounding, method.rounding)


def engine_names_the_bad(method: Method, engine: Engine, personal: Callable[[str], Model]) -> None:
    """Never pass over a client that fails: end the run with its name, or go on without it and say so."""
    rest, want, usually = _without_the_bad(method, engine=engine), usual_fit(method), "a failed reply that counts"
    expect(method, "absent, with a bad client,", set(rest.absent), {"bad"}, usually)
    expect(method, "contributors, without the bad client,", rest.contributors, want.contributors, usually)
    expect(method, "evaluation, without the bad client,", rest.evaluation, want.evaluation, usually)


def _empty() -> Client:
    return Client("empty", np.zeros((0, 64)), np.zeros(0, dtype=int))


def _lonely() -> Client:
    return Client("lonely", digits().x[-1:], digits().y[-1:])


def _without_the_bad(method: Method, **options: object) -> Fit:
    """Fail unless a client with NaN features ends the fit by name; return the fit that goes on without it."""
    clients = [*some_clients(), Client("bad", np.full((5, 64), np.nan), np.arange(5))]
    usually = "a step that catches errors, or one that never looks at `client.x`"
    try:
        fit(method, clients, **options)
    except ClientFailed as error:
        if "'bad'" not in str(error):
            fail(method, f"the error does not name the client 'bad': {error}", usually)
    else:
        fail(method, "NaN features of the client 'bad' were accepted", usually)
    return fit(method, clients, require=len(clients) - 1, **options)


CHECKS: tuple[Check, ...] = (
    learns,
    same_seed_same_result,
    order_does_not_matter,
    workers_do_not_matter,
    batches_do_not_matter,
    empty_client_is_listed,
    one_sample_is_enough,
    bad_client_is_named,
    names_match_by_name,
    saves_and_loads,
    state_can_travel,
    bytes_are_counted,
    settings_rebuild_it,
)

# Checks of a method on an engine other than the default.
ENGINE_CHECKS: tuple[Callable[[Method, Engine, Callable[[str], Model]], None], ...] = (
    engine_agrees,
    engine_names_the_bad,
)
