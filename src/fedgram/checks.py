"""What every method must do: the contract, as checks that anyone can run on a method of their own.

>>> import fedgram as fg
>>> from fedgram import checks
>>> for check in checks.CHECKS:
...     check(fg.AFL())
"""

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.errors import ClientFailed, RankDeficient
from fedgram.data import digits
from fedgram.data.client import Client, make_clients
from fedgram.data.partition import dirichlet
from fedgram.engines.inprocess import InProcess, Room
from fedgram.models import Model
from fedgram.protocol.fit import Fit, load
from fedgram.protocol.method import Engine, Method
from fedgram.protocol.registry import registry
from fedgram.protocol.session import run

CLASSES = 10


def example(name: str) -> Method:
    """Return a registered method with the settings that it says it can be checked with in seconds."""
    method = registry[name]
    return method(**method.quick)


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


def scores(fitted: Fit) -> Array:
    """Return what all the models of a fit say about the same samples."""
    x = digits().x[-50:]
    models: list[Model | None] = [fitted.model, *(fitted.personal[name] for name in sorted(fitted.personal))]
    return np.stack([model.scores(x) for model in models if model is not None])


def learns(method: Method) -> None:
    """Do far better than chance, on clients' own test samples."""
    evaluation = fit(method, some_clients()).evaluation
    assert evaluation is not None
    assert evaluation.pooled > 3 / CLASSES, evaluation


def same_seed_same_result(method: Method) -> None:
    """Give the same bits for the same seed."""
    first, second = (scores(fit(method, some_clients(), seed=5)) for _ in range(2))
    assert np.array_equal(first, second)


def order_does_not_matter(method: Method) -> None:
    """Give the same result, to rounding, when clients come in another order."""
    clients, rtol = some_clients(), max(method.rounding, 1e-6)
    np.testing.assert_allclose(
        scores(fit(method, clients[::-1])), scores(fit(method, clients)), rtol=rtol, atol=rtol / 100
    )


def workers_do_not_matter(method: Method) -> None:
    """Give the same bits with worker threads."""
    one, three = (scores(fit(method, some_clients(), engine=InProcess(workers=n))) for n in (1, 3))
    assert np.array_equal(one, three)


def batches_do_not_matter(method: Method) -> None:
    """Give the same result whether batched steps get many clients at once or one."""
    one, many = (scores(fit(method, some_clients(), engine=InProcess(batch=n))) for n in (1, 64))
    np.testing.assert_allclose(one, many, rtol=max(method.rounding, 1e-5), atol=max(method.rounding, 1e-6))


def empty_client_is_listed(method: Method) -> None:
    """Give the same result with an empty client beside the others, and list it as absent."""
    clients = some_clients()
    empty = Client("empty", np.zeros((0, 64)), np.zeros(0, dtype=int))
    with_empty = fit(method, [*clients, empty])
    assert with_empty.absent == {"empty": "no samples"}
    assert with_empty.contributors == tuple(client.name for client in clients)
    assert np.array_equal(scores(with_empty), scores(fit(method, clients)))


def one_sample_is_enough(method: Method) -> None:
    """Take a client with a single sample like any other."""
    data = digits()
    lonely = Client("lonely", data.x[-1:], data.y[-1:])
    assert "lonely" in fit(method, [*some_clients(), lonely]).contributors


def bad_client_is_named(method: Method) -> None:
    """Refuse NaN features with the client's name; go on without it where a quorum allows."""
    clients = some_clients()
    bad = Client("bad", np.full((5, 64), np.nan), np.arange(5))
    try:
        fit(method, [*clients, bad])
    except ClientFailed as error:
        assert "'bad'" in str(error), error
    else:
        raise AssertionError("NaN features were accepted")
    rest = fit(method, [*clients, bad], require=len(clients))
    assert "bad" in rest.absent
    assert np.array_equal(scores(rest), scores(fit(method, clients)))


def names_match_by_name(method: Method) -> None:
    """Give the same result when labels are names that clients order differently."""
    clients = some_clients()
    names = [f"digit {9 - i}" for i in range(CLASSES)]
    named = [
        Client(c.name, c.x, [names[i] for i in c.y], c.x_test, [names[i] for i in c.y_test], c.features)
        for c in clients
    ]
    assert np.array_equal(scores(fit(method, named, classes=names)), scores(fit(method, clients)))


def saves_and_loads(method: Method) -> None:
    """Predict the same after saving and loading."""
    fitted = fit(method, some_clients())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.safetensors"
        fitted.save(path)
        loaded = load(path)
    assert np.array_equal(scores(loaded), scores(fitted))
    assert loaded.contributors == fitted.contributors
    assert loaded.traffic == fitted.traffic


def state_can_travel(method: Method) -> None:
    """Keep only payloads in the clients' state, and models that are messages."""
    room = Room(method, some_clients(), InProcess())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    for side in room.sides.values():
        wire.decode(wire.encode({"state": side.state, "model": side.model}))


def bytes_are_counted(method: Method) -> None:
    """Account for every contributor's messages."""
    fitted = fit(method, some_clients())
    for name in fitted.contributors:
        account = fitted.traffic.by_client[name]
        assert account["up"] > 0, name
        assert account["down"] > 0, name


def settings_rebuild_it(method: Method) -> None:
    """Be what its class and settings say, and nothing more; and say what it is."""
    assert type(method)(**method.settings()) == method
    assert (type(method).__doc__ or "").strip(), f"{method.name} has no docstring"


def engine_agrees(method: Method, engine: Engine, personal: Callable[[str], Model]) -> None:
    """Give the same on another engine as in one process, an empty client and one of a single sample included.

    `personal` returns the model that a client has kept for itself.
    """
    data = digits()
    empty = Client("empty", np.zeros((0, 64)), np.zeros(0, dtype=int))
    clients = [*some_clients(), Client("lonely", data.x[-1:], data.y[-1:]), empty]
    here, there = fit(method, clients, seed=5), fit(method, clients, seed=5, engine=engine)
    assert there.contributors == here.contributors
    assert there.absent == here.absent
    assert there.evaluation == here.evaluation
    assert set(there.traffic.by_client) == set(here.traffic.by_client)
    for name, account in there.traffic.by_client.items():
        # A number may take some digits more or fewer when replies were added in another order.
        assert all(abs(account[way] - here.traffic.by_client[name][way]) <= 64 for way in account), name
    assert not there.personal, "models stay with the clients"
    there = replace(there, personal={name: personal(name) for name in here.personal})
    np.testing.assert_allclose(scores(there), scores(here), rtol=method.rounding, atol=method.rounding)


def engine_names_the_bad(method: Method, engine: Engine, personal: Callable[[str], Model]) -> None:
    """Never pass over a client that fails: end the run with its name, or go on without it and say so."""
    clients = some_clients()
    bad = Client("bad", np.full((5, 64), np.nan), np.arange(5))
    try:
        fit(method, [*clients, bad], engine=engine)
    except ClientFailed as error:
        assert "'bad'" in str(error), error
    else:
        raise AssertionError("NaN features were accepted")
    rest, want = fit(method, [*clients, bad], require=len(clients), engine=engine), fit(method, clients)
    assert set(rest.absent) == {"bad"}
    assert rest.contributors == want.contributors
    assert rest.evaluation == want.evaluation


CHECKS: tuple[Callable[[Method], None], ...] = (
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

# Of a method on an engine other than the default.
ENGINE_CHECKS: tuple[Callable[[Method, Engine, Callable[[str], Model]], None], ...] = (
    engine_agrees,
    engine_names_the_bad,
)
