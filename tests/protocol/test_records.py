"""A server's records of clients' moments: only contributions can leave, and nothing joins twice."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import InvalidData, RefusedMessage, UnknownName
from fedgram.data import digits
from fedgram.engines.inprocess import InProcess, Room
from fedgram.moments import packing
from fedgram.protocol.session import run
from support.joining import METHODS
from support.problems import as_clients, features, relative_error


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_moments_of_another_client_are_refused(method):
    """20 for each of six methods: 120 of 120 were accepted once."""
    rng = np.random.default_rng(1)
    x, y = features(rng, 150, 6), np.tile([0, 1, 2], 50)
    clients = as_clients(x, y, np.split(np.arange(150), 5))
    fit, refused = method.fit(clients, classes=3), 0
    sent = {client.name: fit.summarize(client) for client in clients}
    for name, other in permutations(sent, 2):
        assert np.array_equal(sent[name].counts, sent[other].counts), "only the sketch tells them apart"
        with pytest.raises(InvalidData, match=f"that client '{name}' contributed: they are those of client '{other}'"):
            fit.remove(sent[other], name=name)
        refused += 1
    assert refused == 20


def test_nothing_but_what_was_contributed_leaves(clients):
    fit, (mine, *_) = fg.AFL().fit(clients, classes=3), clients
    one = int(np.flatnonzero(mine.y != mine.y[0])[0])
    swapped, touched, shifted = mine.y.copy(), mine.x.copy(), mine.x.copy()
    swapped[[0, one]] = mine.y[[one, 0]]
    touched[7] *= 1 + 1e-6
    shifted[7, 3] += 1e-7
    strange = np.random.default_rng(5).normal(size=mine.x.shape)
    for x, y, why in (
        (mine.x[::2], mine.y[::2], "20 samples instead of 40"),
        (mine.x, (mine.y + 1) % 3, "unequal in class"),
        (mine.x, swapped, "differ by more than rounding"),
        (touched, mine.y, "differ by more than rounding"),
        (shifted, mine.y, "differ by more than rounding"),
        (strange, mine.y, "differ by more than rounding"),
        (np.zeros_like(mine.x), mine.y, "differ by more than rounding"),
    ):
        with pytest.raises(InvalidData, match=f"client 'client-0' contributed: .*{why}"):
            fit.remove(fg.Moments.of(x, y, classes=3), name="client-0")
        with pytest.raises(InvalidData, match=why):
            fit.summarize(fg.Client("client-0", x, y))
    gone = fit.remove(fit.summarize(mine), name="client-0")
    with pytest.raises(UnknownName, match="unknown contributor 'client-0'"):
        gone.remove(fit.summarize(mine), name="client-0")
    with pytest.raises(UnknownName, match="unknown contributor 'stranger'"):
        fit.remove(fit.summarize(mine), name="stranger")


def test_nobody_is_counted_twice(clients):
    fit = fg.AFL().fit(clients, classes=3)
    mine, recomputed = fit.summarize(clients[0]), by_another_processor(clients[0], fit)
    assert mine.digest != recomputed.digest
    for moments in (mine, recomputed):
        with pytest.raises(InvalidData, match="'newcomer' are those that client 'client-0' contributed.*twice"):
            fit.add(moments, name="newcomer")
    with pytest.raises(InvalidData, match="'client-0' has contributed already"):
        fit.add(fg.Moments.of(2 * clients[0].x, clients[0].y, classes=3), name="client-0")


def by_another_processor(client, fit):
    """Return the client's moments added up one sample after another, backwards."""
    gram, sums = np.zeros((client.x.shape[1],) * 2), np.zeros((3, client.x.shape[1]))
    for row, label in zip(client.x[::-1], client.y[::-1], strict=True):
        gram += np.outer(row, row)
        sums[label] += row
    counts = np.bincount(client.y, minlength=3)
    return fg.Moments(fit.total.schema, sums=sums[counts > 0], counts=counts, packed=packing.pack(gram))


@pytest.mark.parametrize(("n", "d"), [(50, 6), (400, 6), (60, 3), (300, 64), (40, 200)])
@pytest.mark.parametrize("kind", ["centred", "positive", "units", "sparse"])
def test_rounding_is_forgiven_and_nothing_more(n, d, kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    x = {
        "centred": x,
        "positive": np.abs(x) + 1,
        "units": x * 10 ** rng.uniform(-6, 6, d),
        "sparse": x * (rng.random((n, d)) < 0.1),
    }[kind]
    clients = as_clients(x, rng.integers(0, 3, n), np.split(np.arange(n), [n // 2]))
    fit = fg.FedGram().fit(clients, classes=3)
    moments = by_another_processor(clients[0], fit)
    left, want = fit.remove(moments, name="client-0"), fg.FedGram().fit(clients[1:], classes=3)
    assert left.contributors == ("client-1",)
    np.testing.assert_allclose(left.total.cross, want.total.cross, rtol=1e-9, atol=1e-9 * np.abs(x).sum(axis=0).max())
    rows = clients[0].x.copy()
    rows[3] *= 1 + 1e-6
    if rows[3].any():
        with pytest.raises(InvalidData, match="more than rounding"):
            fit.remove(fg.Moments.of(rows, clients[0].y, classes=3), name="client-0")


def test_a_removal_needs_the_split_of_the_run():
    """Samples that were held back for testing never were in the total."""
    data, options = digits(), {"test_fraction": 0.2, "seed": 4}
    parts = fg.partition.iid(300, clients=3, seed=0)
    clients = fg.make_clients(data, parts, **options)
    fit = fg.FedGram().fit(clients, classes=10)
    own = fg.Dataset("own", data.x[parts[1]], data.y[parts[1]], data.classes, "own")
    everything = fg.Client("client-1", own.x, own.y)
    for attempt in (
        fit.summarize,
        lambda whole: fit.remove(fg.Moments.of(whole.x, whole.y, classes=10), name="client-1"),
    ):
        with pytest.raises(InvalidData, match=r"100 samples instead of 80.*held back.*with the same split"):
            attempt(everything)
    # The split follows from seed, name and number of samples: a client can repeat it from its own rows.
    [again] = fg.make_clients(own, [np.arange(100)], names=["client-1"], **options)
    left = fit.remove(fit.summarize(again), name="client-1")
    want = fg.FedGram().fit([clients[0], clients[2]], classes=10)
    assert relative_error(left.model.scores(data.x[:50]), want.model.scores(data.x[:50])) < 1e-9


def test_a_fit_without_records_says_what_to_do(clients, tmp_path):
    fit = fg.AFL().fit(clients[:2], classes=3)
    old = {name: value for name, value in fit.to_fields().items() if name not in ("contributions", "message")}
    earlier = fg.Fit.from_fields(old)
    assert earlier.contributions is None
    earlier.save(tmp_path / "fit")
    earlier = fg.load(tmp_path / "fit")
    mine = fit.summarize(clients[0])
    np.testing.assert_array_equal(earlier.summarize(clients[0]).gram, mine.gram)
    for change in (lambda: earlier.remove(mine, name="client-0"), lambda: earlier.add(mine, name="client-9")):
        with pytest.raises(InvalidData, match="saved by an earlier version, or is of secure sums"):
            change()


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        ("names", lambda names: names[:1], "1 names"),
        ("names", lambda names: [names[0]] * 2, "stands for one record"),
        ("names", lambda names: [5, 6], "must be texts"),
        ("names", lambda names: ["a", "b"], "of other clients"),
        ("digests", lambda digests: [None, None], "must be texts"),
        ("counts", lambda counts: counts.astype(np.int32), "must be int64"),
        ("counts", lambda counts: counts + 1, "or samples than"),
        ("counts", lambda counts: counts - 100, "negative count"),
        ("gram", lambda gram: gram[:, 1:], "must have shape"),
        ("gram", lambda gram: gram * np.nan, "nan"),
        ("sums", lambda sums: sums[:1], "must have shape"),
        ("direction", list, "must be float64"),
    ],
)
def test_spoiled_records_are_refused_when_loaded(field, change, words, clients, tmp_path):
    fit = fg.AFL().fit(clients[:2], classes=3)
    fields = fit.contributions.to_fields()

    class Spoiled(type(fit.contributions)):
        def to_fields(self):
            return fields | {field: change(fields[field])}

    wire.registered["contributions"] = Spoiled  # to be encoded
    try:
        spoiled = Spoiled(fit.contributions.direction, fit.contributions.by_name)
        data = wire.encode(replace(fit, contributions=spoiled))
    finally:
        wire.registered["contributions"] = type(fit.contributions)
    (tmp_path / "fit").write_bytes(data)
    with pytest.raises(RefusedMessage, match=words):
        fg.load(tmp_path / "fit")


def test_records_of_the_wrong_type_are_refused_when_loaded(clients, tmp_path):
    fit = fg.AFL().fit(clients[:2], classes=3)
    for wrong in (5, fit.model, {"names": []}):
        replace(fit, contributions=wrong).save(tmp_path / "fit")
        with pytest.raises(RefusedMessage, match="'contributions' must be records"):
            fg.load(tmp_path / "fit")


def test_the_random_vector_is_fresh_and_stays_with_the_fit(clients, monkeypatch, tmp_path):
    sent, encode = [], wire.encode

    def recorded(payload, **options):
        sent.append(encode(payload, **options))
        return sent[-1]

    monkeypatch.setattr("fedgram.protocol.channel.wire.encode", recorded)
    one, other = (fg.FedHiP().fit(clients, classes=3, seed=7).contributions for _ in range(2))
    assert not np.isclose(one.direction, other.direction).any()
    assert len(sent) > 2
    assert not any(known.direction.tobytes() in message for known in (one, other) for message in sent)
    fit = fg.FedHiP().fit(clients, classes=3)
    assert str(fit.contributions.direction[0]) not in repr(fit)
    fit.save(tmp_path / "fit")
    loaded = fg.load(tmp_path / "fit").contributions
    assert np.array_equal(loaded.direction, fit.contributions.direction)
    assert list(loaded.by_name) == list(fit.contributions.by_name)


def test_a_record_is_what_the_docs_say(clients):
    fit = fg.AFL().fit(clients, classes=3)
    for client in clients:
        moments, record = fit.summarize(client), fit.contributions.by_name[client.name]
        assert np.array_equal(record.counts, np.bincount(client.y, minlength=3))
        np.testing.assert_allclose(record.gram, moments.gram @ fit.contributions.direction)
        np.testing.assert_allclose(record.sums, fit.contributions.direction @ moments.cross)
        assert not record.digest, "nothing was sent"


def test_bytes_that_were_sent_are_known_by_their_digest(clients):
    *early, late = clients
    before = fg.AFL().fit(early, classes=3)
    sent = before.summarize(late)
    fit = before.add(fg.Moments.from_bytes(sent.to_bytes()), name=late.name)
    record = fit.contributions.by_name[late.name]
    assert record.digest == sent.digest
    record.gram[:] = record.sums[:] = 0.0  # the digest alone is enough
    assert fit.remove(sent, name=late.name).contributors == before.contributors

    class Elsewhere(Room):
        """Clients whose bytes are another party's, and sealed."""

        trusted = False

        def exchange(self, step, requests):
            for name, answer in super().exchange(step, requests):
                yield name, wire.encode(wire.decode(answer))

    room = Elsewhere(fg.AFL(), clients, InProcess())
    fit = run(fg.AFL(), room, classes=3, seed=0, require="all", progress=None)
    assert {name: known.digest for name, known in fit.contributions.by_name.items()} == {
        client.name: fit.summarize(client).digest for client in clients
    }


def test_records_do_not_keep_the_messages_in_memory():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 100)), rng.integers(0, 3, 600)
    fit = fg.FedGram().fit(as_clients(x, y, np.split(np.arange(600), 6)), classes=3)
    for known in fit.contributions.by_name.values():
        for array in (known.counts, known.gram, known.sums):
            assert array.base is None or array.base.nbytes <= 2 * array.nbytes


def test_a_digest_is_one_for_one_content(clients):
    x, y = clients[0].x, clients[0].y
    moments = fg.Moments.of(x, y, classes=3)
    assert len(moments.digest) == 64
    assert fg.Moments.from_bytes(moments.to_bytes()).digest == moments.digest
    assert wire.decode(wire.encode([1, {"a": moments}]))[1]["a"].digest == moments.digest
    others = [
        fg.Moments.of(x, y, classes=4),
        fg.Moments.of(x, y, classes=3, features="lite0"),
        fg.Moments.of(x, y, classes=3, bias=True),
        fg.Moments.of(x[1:], y[1:], classes=3),
        fg.Moments.of(np.nextafter(x, 9), y, classes=3),
        fg.Moments.of(x[:1], y[:1], classes=3),
    ]
    assert len({moments.digest, *(other.digest for other in others)}) == 7
