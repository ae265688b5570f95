"""One client replies with absurd numbers, in any part of any step of any method: it alone is refused, by name."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import Doubtful, LostPrecision, RankDeficient, Revealing
from fedgram.protocol.channel import FEWEST, Peers
from fedgram.protocol.replies import FAR, Learnt, Question, Size
from fedgram.protocol.transport import Reply
from support import campaign
from support.lying import Spoiled, Times, clients, honest, lies, quick, told

SAMPLE = 6  # lies about each method in `make test`; a campaign uses all of them


def quiet(method, engine, **options):
    with warnings.catch_warnings():
        for category in (RankDeficient, Doubtful, Revealing, LostPrecision):
            warnings.simplefilter("ignore", category)
        return method.fit(clients(), classes=10, engine=engine, require=0.7, **options)


def largest_number(models):
    """Return the largest number of models' own."""
    arrays = [model.vector if hasattr(model, "vector") else getattr(model, "weights", ()) for model in models]
    each = [part for array in arrays for part in (array if isinstance(array, list | tuple) else [array])]
    return max((float(np.abs(part).max()) for part in each), default=0.0)


def models_of_the_others(fit, bad):
    models = [fit.model, *(model for name, model in fit.personal.items() if name != bad)]
    return [model for model in models if model is not None]


def chosen(name, found):
    """Return all lies in a campaign, otherwise some of them, each time the same."""
    if campaign.FULL or len(found) <= campaign.size(SAMPLE):
        return found
    rng = np.random.default_rng(sum(map(ord, name)))
    return [found[i] for i in sorted(rng.choice(len(found), campaign.size(SAMPLE), replace=False))]


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(fg.registry))
def test_a_client_with_an_absurd_reply_fails_alone_or_changes_little(name):
    method = quick(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        usual, replies = honest(method)
    x = clients()[0].x
    most = FAR * max(1.0, largest_number(models_of_the_others(usual, None)))
    found = [
        (step, path, lie, bad)
        for step, value in replies.items()
        for path, lie in lies(value)
        for bad in ("client-0", "client-3")
    ]
    for step, path, lie, bad in chosen(name, found):
        about = f"{name}: {step} of {bad} with {lie!r:.60} at {path}"
        try:
            fit = quiet(method, Spoiled(step, lambda value, path=path, lie=lie: told(value, path, lie), bad))
        except Exception as error:
            raise AssertionError(f"{about} ended the run") from error
        assert {*fit.absent, *fit.lost} <= {bad}, about
        assert set(fit.evaluation.failed) <= {bad}, about
        models = models_of_the_others(fit, bad)
        assert all(np.isfinite(model.scores(x)).all() for model in models), about
        assert largest_number(models) <= most, about


def test_a_bound_may_be_beyond_what_single_precision_holds():
    question = Question("c", None, 0, (0, 1), (3,), "", 5, 5)
    Learnt((2,), unit=1e30).check(np.array([1, -3e38], dtype=np.float32), question, "reply")
    assert question.sizes["reply"].largest == pytest.approx(3e8)


@pytest.mark.parametrize("bad", ["client-0", "client-3"])
@pytest.mark.parametrize("size", [1e10, -1e30, 1e5])
@pytest.mark.parametrize(
    ("name", "path"),
    [("fedavg", []), ("fedala", []), ("apple", []), ("fedamp", []), ("fedas", ["base"]), ("fedselect", ["shared"])],
)
def test_weights_of_an_absurd_size_leave_no_trace(name, path, size, bad):
    fit = quiet(quick(name), Spoiled("train", lambda value: told(value, path, _filled(value, path, size)), bad))
    assert fit.absent.keys() == {bad}
    assert fit.absent[bad].startswith(f"step 'train': {'/'.join(['reply', *path])} must be ")
    models = models_of_the_others(fit, bad)
    assert largest_number(models) < 100
    rest = quick(name).fit([client for client in clients() if client.name != bad], classes=10)
    # APPLE's first mixture has room for all initial clients.
    if name != "apple":
        np.testing.assert_allclose(largest_number(models), largest_number(models_of_the_others(rest, bad)), rtol=1e-3)


def _filled(value, path, size):
    for key in path:
        value = value[key]
    spoiled = np.array(value)
    spoiled[-1] = size
    return spoiled


def test_of_two_clients_one_cannot_send_what_no_network_learns_with():
    pair = clients()[:2]
    for size, culprits in {1e10: {"client-0"}, 1e5: set()}.items():  # of two, either may be too large
        lie = Spoiled("train", lambda value, size=size: np.full_like(value, size))
        assert quick("fedavg").fit(pair, classes=10, engine=lie, require=1).absent.keys() == culprits


@pytest.mark.parametrize("name", ["fedavg", "fedala", "afl", "feddisco"])
@pytest.mark.parametrize("field", ["n", "tested"])
def test_more_samples_than_a_client_can_have(name, field):
    fit = quiet(quick(name), Spoiled("hello", lambda hello: hello | {field: 2**40}))
    assert fit.absent == {
        "client-0": f"step 'hello': reply/{field} must be a whole number from 0 to 2147483648, got 1099511627776"
    }


def test_a_client_that_says_it_has_nearly_all_samples_is_warned_of():
    def most(hello):
        return hello | {"n": 10**7}

    with pytest.warns(Doubtful, match="client 'client-3' says that it has 10000000 samples, and the other 3 have"):
        quick("fedavg").fit(clients(), classes=10, engine=Spoiled("hello", most, "client-3"))


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
@pytest.mark.parametrize("name", ["afl", "fedhip", "fedgram", "apfl", "fedacnnl"])
@pytest.mark.parametrize(
    ("factor", "why"), [(1e20, "reply.* must be at most 4.5e"), (1e200, "too large, up to 1e\\+150")]
)
def test_moments_beside_which_all_others_are_lost(name, factor, why):
    def times(value):
        if isinstance(value, fg.Moments):
            return Times(factor).of(value)
        return replace(value, rows=Times(factor).of(value.rows))

    fit = quiet(quick(name), Spoiled("summarize", times))
    assert fit.absent.keys() == {"client-0"}
    assert re.search(why, fit.absent["client-0"])


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_a_gradient_is_bounded_by_the_moments_of_all():
    def lie(value):
        return value | {"gradient": value["gradient"] * 100}

    fit = quiet(quick("fedlogit"), Spoiled("gradient", lie))
    assert fit.lost.keys() == {"client-0"}
    assert re.search(r"reply/gradient/\(\d, \d\) must be at most", fit.lost["client-0"])


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_a_column_in_a_small_unit_is_not_bounded_by_one_in_a_large_unit():
    """A small value in grams is huge for a column in tons: it broke the run, and all clients were blamed."""
    units = np.geomspace(1e6, 1e-3, clients()[0].x.shape[1])
    scaled = [replace(client, x=client.x * units, x_test=client.x_test * units) for client in clients()]

    def lie(value):
        return value | {"gradient": np.full_like(value["gradient"], 1e5)}

    assert not fg.FedLogit(rounds=2).fit(scaled, classes=10).lost
    fit = fg.FedLogit(rounds=2).fit(scaled, classes=10, engine=Spoiled("gradient", lie), require=1)
    assert fit.lost.keys() == {"client-0"}


def sizes(peers, *largest, step="train"):
    """Return which of the replies with these sizes are refused, in their order."""
    failed, replies = {}, []
    for place, size in enumerate(largest):
        question = Question(f"c{place}", None, 0, (0, 1), (3,), "", 5, 5)
        value = np.full(3, size, dtype=np.float32)
        Learnt((3,)).check(value, question, "reply")
        replies.append((Reply(question.client, value), question.sizes))
    passed = [reply.client for reply in peers.passing(step, replies, failed)]
    assert sorted([*passed, *failed]) == [f"c{place}" for place in range(len(largest))]
    return [int(name[1:]) for name in failed]


@pytest.mark.parametrize(
    ("largest", "refused"),
    [
        ([1e8, 1, 1], [0]),
        ([1, 1e8, 1], [1]),
        ([1, 1, 1e8], [2]),
        ([1, 1, 1, 1e8, 1], [3]),
        ([-1e8, 1, 1], [0]),
        ([1e8, 1], []),  # of two, either may be wrong
        ([FAR, 0, 0], []),
        ([1.01 * FAR, 0, 0], [0]),
        ([1e8, 1e8, 1], []),  # most clients are right
        ([1e6, 1e7, 1e8], []),
        ([1, 1, 1e8, 1e8, 1e8, 1e8], [2, 3, 4, 5]),  # late replies are compared with earlier ones
        ([], []),
    ],
)
def test_a_reply_is_compared_with_the_middle_one(largest, refused):
    assert sizes(Peers(), *largest) == refused


def test_replies_of_earlier_rounds_count_and_refused_ones_do_not():
    peers = Peers()
    assert sizes(peers, 1.0) == sizes(peers, 1.0) == sizes(peers, 1.0) == []
    for _ in range(5):
        assert sizes(peers, 1e8) == [0]
    assert sizes(peers, 1e8, step="another") == []


def test_replies_are_passed_on_as_soon_as_they_can_be_compared():
    taken = []

    def coming():
        for place in range(10):
            taken.append(place)
            yield Reply(str(place), place), {"reply": Size(1.0, FAR)}

    peers = Peers()
    for _ in peers.passing("train", coming(), {}):
        break
    assert len(taken) == FEWEST
    for _ in peers.passing("train", coming(), {}):
        break
    assert len(taken) == FEWEST + 1
