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
from typing import Any, NoReturn, TypeAlias

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.errors import ClientFailed, FedgramError, RankDeficient
from fedgram.data import digits
from fedgram.data.client import Client, make_clients
from fedgram.data.partition import dirichlet
from fedgram.engines.inprocess import InProcess, Room
from fedgram.evaluation import NumericErrors
from fedgram.models import Model
from fedgram.protocol.fit import Fit, load
from fedgram.protocol.method import Engine, Method
from fedgram.protocol.registry import registry
from fedgram.protocol.session import run
from fedgram.studies.kinds import Number
from fedgram.studies.study import Study

Check: TypeAlias = Callable[[Method], None]

CLASSES = 10
# Digits are 8 × 8 pixels of 0 to 1. Where their class is not the outcome, columns are the means of the pixels' rows.
_ROWS, _DARK = 8, 0.5
_COUNTED = Study(
    "ink",
    "dark pixels",
    {**{f"row {place}": Number(range=(-1, 1)) for place in range(_ROWS)}, "dark pixels": Number()},
    minimum_samples=0,
    minimum_cell=0,
    maximum_columns_per_row=0,
)


def example(name: str) -> Method:
    """Return a registered method with its `quick` settings, which can be checked in seconds."""
    method = registry[name]
    return method(**method.quick)


# Fits that several checks look at, each made once; the last few only.
_USUAL: dict[tuple[type[Method], str], Fit] = {}
_MOST_KEPT = 4


def some_clients(count: int = 6, samples: int = 400, *, method: Method | None = None) -> list[Client]:
    """Return a few unequal clients with real digits, and an outcome that suits the method."""
    data = digits()
    parts = dirichlet(data.y[:samples], clients=count, alpha=1.0, seed=3, min_size=8)
    found = make_clients(data, parts, test_fraction=0.2, seed=3)
    return found if method is None else [_suited(client, method) for client in found]


def options_of(method: Method) -> dict[str, Any]:
    """Return the options of a fit to these clients: the classes, or the study of another outcome."""
    if method.suits == "counts":
        return {"study": _COUNTED}
    return {"classes": CLASSES if method.suits == "classes" else 2}


def _suited(client: Client, method: Method) -> Client:
    """Return a client of digits with an outcome that suits the method: even digits, or the number of dark pixels."""
    if method.suits == "classes":
        return client
    made: dict[str, Any] = {}
    for end in ("", "_test"):
        x, y = getattr(client, f"x{end}"), getattr(client, f"y{end}")
        if x is None:
            continue
        rows = x.reshape(len(x), _ROWS, _ROWS).mean(axis=2)
        dark = np.where(np.isnan(x), np.nan, x > _DARK).sum(axis=1)
        counts = method.suits == "counts"
        made |= {f"x{end}": np.column_stack([rows, dark]) if counts else rows, f"y{end}": y * 0 if counts else y % 2}
    if method.suits == "counts":
        made |= {"features": _COUNTED.features, "columns": _COUNTED.sent}
    return replace(client, **made)


def fit(method: Method, clients: list[Client], **options: object) -> Fit:
    """Fit to clients with suitable outcomes, and without the warning that some pixels are always white."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        return method.fit(clients, **{**options_of(method), **options})


def usual_fit(method: Method) -> Fit:
    """Return the fit on `some_clients` with the default seed and engine.

    Most checks compare with it, so it is made once for a class and its settings: look at it, but change nothing.
    """
    key = type(method), repr(method)
    if key not in _USUAL:
        _USUAL[key] = fit(method, some_clients(method=method))
        if len(_USUAL) > _MOST_KEPT:
            del _USUAL[next(iter(_USUAL))]
    return _USUAL[key]


def scores(fitted: Fit) -> Array:
    """Return the scores of all models of a fit for the same samples."""
    x, y = digits().x[-50:], digits().y[-50:]
    if fitted.method in registry:
        x = _suited(Client("new", x, y), registry[fitted.method]()).x[:, : None if fitted.study is None else -1]
    models: list[Model | None] = [fitted.model, *(fitted.personal[name] for name in sorted(fitted.personal))]
    return np.stack([model.scores(x) for model in models if model is not None])


def fail(method: Method, found: str, usually: str) -> NoReturn:
    """Fail with what was found and what usually causes it."""
    raise AssertionError(f"{method.name}: {found}. Usual cause: {usually}.")


def expect(method: Method, what: str, found: object, wanted: object, usually: str) -> None:
    """Fail unless what was found equals what was wanted."""
    if found != wanted:
        fail(method, f"{what} should be {wanted}, got {found}", usually)


def expect_evaluation(method: Method, found: Fit, wanted: Fit, usually: str) -> None:
    """Fail unless two fits have the same evaluation; errors of numbers may differ by rounding."""
    one, other = found.evaluation, wanted.evaluation
    if one.kind is other.kind is NumericErrors and one.tested == other.tested:
        ours, theirs = (
            [
                list(vars(each.performances[name].by_outcome[_COUNTED.outcome]).values())
                for name in sorted(one.performances)
            ]
            for each in (one, other)
        )
        if np.allclose(ours, theirs, rtol=method.rounding, atol=0):
            return
    expect(method, f"evaluation on {found.engine}", one, other, usually)


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
    evaluation, bound = usual_fit(method).evaluation, 0.6 if method.suits == "two classes" else 3 / CLASSES
    what, chance = "pooled accuracy", 0.5 if method.suits == "two classes" else 1 / CLASSES
    found: Any = evaluation.pooled
    if evaluation and evaluation.kind is NumericErrors:
        what, chance, found = "pooled R²", 0.0, found[_COUNTED.outcome].r2
    if not found > bound:
        told = f"{what} {found:.3f}" if evaluation else "no evaluation"
        usually = "too few rounds, a learning rate that is far off, or labels that are not in the order of `classes`"
        fail(method, f"{told}, bound {bound:.3f} (chance is {chance})", usually)


def same_seed_same_result(method: Method) -> None:
    """Give the same bits for the same seed."""
    usually = "random numbers that do not come from `client.rng` or `clients.rng`"
    again = fit(method, some_clients(method=method))
    alike(method, "two fits with the same seed", again, usual_fit(method), usually)


def order_does_not_matter(method: Method) -> None:
    """Give the same result, to rounding, when clients come in another order."""
    back, rtol = fit(method, some_clients(method=method)[::-1]), max(method.rounding, 1e-6)
    usually = "the server treats replies by their place, or a step keeps something on the method itself"
    alike(method, "clients in the reverse order", back, usual_fit(method), usually, rtol, rtol / 100)


def workers_do_not_matter(method: Method) -> None:
    """Give the same bits with worker threads."""
    usually = "clients share something that a step changes: keep it in `client.state`"
    for n in (1, 3):
        fitted = fit(method, some_clients(method=method), engine=InProcess(workers=n))
        alike(method, f"InProcess(workers={n})", fitted, usual_fit(method), usually)


def batches_do_not_matter(method: Method) -> None:
    """Give the same result whether batched steps get many clients at once or one."""
    usually = "a batched step mixes its clients: a mean over the batch, or padding that counts as samples"
    one, bounds = (
        fit(method, some_clients(method=method), engine=InProcess(batch=1)),
        np.maximum(method.rounding, (1e-5, 1e-6)),
    )
    alike(method, "InProcess(batch=1)", one, usual_fit(method), usually, *bounds)


def empty_client_is_listed(method: Method) -> None:
    """Give the same result with an empty client beside the others, and list it as absent."""
    clients = some_clients(method=method)
    fitted = fit(method, [*clients, _empty(method)])
    usually = "the server counts all clients, not those that replied"
    expect(method, "absent, with an empty client,", fitted.absent, {"empty": "no samples"}, usually)
    if not fitted.contributors:
        usually = "replies that are asked for with `ask` or `each`, which do not count: use `call`, `sum` or `mean`"
    expect(method, "contributors", fitted.contributors, tuple(client.name for client in clients), usually)
    alike(method, "an empty client more", fitted, usual_fit(method), usually)


def one_sample_is_enough(method: Method) -> None:
    """Take a client with a single sample like any other."""
    contributors = fit(method, [*some_clients(method=method), _lonely(method)]).contributors
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
    if method.suits == "counts":
        return
    count = options_of(method)["classes"]
    names = [f"digit {count - 1 - i}" for i in range(count)]
    named = [
        Client(c.name, c.x, [names[i] for i in c.y], c.x_test, [names[i] for i in c.y_test], c.features)
        for c in some_clients(method=method)
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
    options: dict[str, Any] = {"classes": None, "study": None} | options_of(method)
    room = Room(method, some_clients(method=method), InProcess(), options["study"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        run(method, room, seed=0, require="all", progress=None, **options)
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
    clients = [*some_clients(method=method), _lonely(method), _empty(method)]
    here, there = fit(method, clients, seed=5), fit(method, clients, seed=5, engine=engine)
    usually = "a step that needs what another process does not have: a global, a file, state outside `client.state`"
    for what in ("contributors", "absent"):
        expect(method, f"{what} on {there.engine}", getattr(there, what), getattr(here, what), usually)
    expect_evaluation(method, there, here, usually)
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
    expect_evaluation(method, rest, want, usually)


def _empty(method: Method) -> Client:
    return _suited(Client("empty", np.zeros((0, 64)), np.zeros(0, dtype=int)), method)


def _lonely(method: Method) -> Client:
    return _suited(Client("lonely", digits().x[-1:], digits().y[-1:]), method)


def _without_the_bad(method: Method, **options: object) -> Fit:
    """Fail unless a client with NaN features ends the fit by name; return the fit that goes on without it."""
    bad = _suited(Client("bad", np.full((5, 64), np.nan), np.arange(5)), method)
    clients = [*some_clients(method=method), bad]
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
