"""Threads and workers: the same bits for any number, and no interference with other programs."""

import os
import subprocess
import sys
from threading import Barrier, Thread, get_ident

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import fedgram as fg
from fedgram.core import threads
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.core.threads import Limit, one_thread_each
from fedgram.engines import inprocess
from fedgram.experiments.runner import peak_memory, reset_peak_memory
from fedgram.moments import packing, solve
from support.probe import Probe, clients, fit
from support.threads import blas_threads

pytestmark = pytest.mark.usefixtures("default_threads")


def large_clients(count=6, n=400, d=240):
    """Return clients whose steps BLAS would split among threads without limits."""
    rng = np.random.default_rng(0)
    return [fg.Client(f"c{k}", rng.standard_normal((n, d)), rng.integers(0, 3, n)) for k in range(count)]


@pytest.fixture
def two_threads():
    """Let BLAS have two threads, for any environment."""
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("method", "count"),
    [(fg.AFL(), 6), (fg.FedHiP(), 6), (fg.AFL(), 2), (fg.AFL(), 1)],  # a single client uses BLAS' threads
    ids=lambda value: getattr(value, "name", value),
)
def test_the_same_bits_for_any_number_of_workers(method, count):
    parties = large_clients(count)
    results = [fit(method, parties, classes=3, engine=fg.InProcess(workers=n)) for n in (1, 2, 4, "auto")]
    probe = np.random.default_rng(1).standard_normal((5, 240))
    for result in results[1:]:
        assert np.array_equal(result.total.packed, results[0].total.packed)
        for a, b in zip(result.personal.values(), results[0].personal.values(), strict=True):
            assert np.array_equal(a.scores(probe), b.scores(probe))
        assert np.array_equal(result.model.weights, results[0].model.weights)


def test_clients_compute_the_same_bits_whatever_the_environment_allows():
    program = (
        "import hashlib, numpy as np, fedgram as fg;"
        "x, y = np.random.default_rng(0).standard_normal((1600, 240)), np.arange(1600) % 3;"
        "parts = np.split(np.arange(1600), 4);"
        "clients = [fg.Client(f'c{k}', x[part], y[part]) for k, part in enumerate(parts)];"
        "print(hashlib.sha256(fg.AFL().fit(clients, classes=3).total.packed).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"OPENBLAS_NUM_THREADS": str(count)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for count in (1, 2)
    }
    assert len(digests) == 1


class Watch(Probe):
    """Notes BLAS' threads in every step and on the server, and who performs the steps."""

    def run(self, clients):
        self.seen.clear()
        self.performers.clear()
        for _ in clients.call(self.look):
            pass
        self.seen.append(("server", blas_threads()))

    @fg.step
    def look(self, client):
        self.seen.append(("client", blas_threads()))
        self.performers.add(get_ident())
        if self.work:
            self.work()

    seen: list = []  # noqa: RUF012
    performers: set = set()  # noqa: RUF012
    work = None


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("workers", [1, 2, "auto"])
def test_clients_get_one_thread_each_and_the_server_all(workers):
    before = blas_threads()
    assert set(before) == {2}
    fit(Watch(), clients(4), engine=fg.InProcess(workers=workers))
    assert all(set(found) == {1} for who, found in Watch.seen if who == "client")
    assert Watch.seen[-1] == ("server", before)
    assert blas_threads() == before


@pytest.mark.usefixtures("two_threads")
def test_few_large_clients_get_blas_threads_and_a_number_overrides():
    parties = large_clients(1, n=800)
    fit(Watch(), parties, classes=3)
    assert set(Watch.seen[0][1]) == {2}
    fit(Watch(), parties, classes=3, engine=fg.InProcess(threads=1))
    assert set(Watch.seen[0][1]) == {1}
    fit(Watch(), clients(4), engine=fg.InProcess(threads=2))
    assert set(Watch.seen[0][1]) == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("workers", [1, 2])
def test_threads_are_given_back_after_errors(workers):
    class ServerFails(Watch):
        def run(self, clients):
            for _ in clients.call(self.look):
                raise RuntimeError("in the middle of an exchange")

    class ClientFails(Watch):
        @fg.step
        def look(self, client):
            raise RuntimeError("at a client")

    before = blas_threads()
    with pytest.raises(RuntimeError, match="in the middle") as caught:
        fit(ServerFails(), engine=fg.InProcess(workers=workers))
    assert blas_threads() == before, f"although {caught} keeps the exchange alive"
    with pytest.raises(ClientFailed, match="at a client"):
        fit(ClientFails(), engine=fg.InProcess(workers=workers))
    assert blas_threads() == before
    assert not Limit._held


@pytest.mark.usefixtures("two_threads")
def test_runs_at_the_same_time_do_not_lose_threads():
    before = blas_threads()
    runs = [Thread(target=fit, args=(fg.AFL(), clients(20))) for _ in range(6)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert blas_threads() == before


@pytest.mark.usefixtures("two_threads")
def test_limits_within_limits():
    outer, inner = Limit(2), Limit(1)
    assert set(blas_threads()) == {1}
    assert Limit.allowed() == 2
    outer.release()
    outer.release()
    assert set(blas_threads()) == {1}
    inner.release()
    assert set(blas_threads()) == {2}


@pytest.mark.usefixtures("two_threads")
def test_workers_are_used_where_steps_are_worth_it(monkeypatch):
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1.0)  # looking at threads takes milliseconds on a busy machine
    fit(Watch(), clients(30))
    assert len(Watch.performers) == 1, "small steps stay where they are"
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 0.0)
    meeting = Barrier(2, timeout=60)  # a single thread cannot pass it
    monkeypatch.setattr(Watch, "work", lambda self: meeting.wait())
    fit(Watch(), clients(30))
    assert len(Watch.performers - {get_ident()}) == 2


def test_no_more_workers_than_the_environment_allows_threads(monkeypatch):
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 0.0)
    with threadpool_limits(1, user_api="blas"):
        fit(Watch(), clients(30))
    assert Watch.performers == {get_ident()}


def test_batched_steps_are_left_to_their_own_threads(monkeypatch):
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 0.0)
    seen = []

    class Batch(Probe):
        def run(self, clients):
            list(clients.call(self.look))

        @fg.step(batched=True)
        def look(self, clients):
            seen.append((len(clients), get_ident(), blas_threads()))
            return [0 for _ in clients]

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        fit(Batch(), clients(5), engine=fg.InProcess(batch=2))
    assert seen == [(2, get_ident(), before), (2, get_ident(), before), (1, get_ident(), before)]


def test_the_rule_is_about_sizes():
    def many(*lengths):
        return one_thread_each(lengths, 512, 4)

    assert many(10)
    assert not many(1000)
    assert not many(1000, 1000, 1000)
    assert many(1000, 1000, 1000, 1000)
    assert not many(4000, *[500] * 10)
    assert many(*[500] * 10)


@pytest.mark.parametrize("workers", [1, 2, "auto"])
def test_cpu_time_of_clients_counts_once(workers):
    """Client and server times add up to the process's, and clients have at least the time of their steps."""

    class Busy(Watch):
        def work(self):
            for _ in range(3):
                np.ones((300, 300)) @ np.ones((300, 300))

    result = fit(Busy(), clients(10), engine=fg.InProcess(workers=workers))
    assert 0 < result.cpu_seconds["clients"] <= 1.05 * sum(result.cpu_seconds.values())


def test_a_batch_that_fails_is_not_counted_twice(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(inprocess, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(inprocess, "thread_time", lambda: float(next(ticks)))

    class Fails(Probe):
        def run(self, clients):
            before = clients._channel.transport.client_seconds
            with pytest.raises(ClientFailed):
                list(clients.call(self.refuse))
            spent.append(clients._channel.transport.client_seconds - before)

        @fg.step(batched=True)
        def refuse(self, clients):
            raise ValueError("no")

    spent = []
    fit(Fails(), clients(3), require="all")
    assert spent == [1.0]


def test_memory_stays_bounded_with_workers():
    # So many columns that the moments of single clients are not kept, to leave out each in turn.
    parties = large_clients(40, n=320, d=1280)
    fit(fg.AFL(), parties, classes=3)
    peaks = []
    for workers in (1, 2):
        reset_peak_memory()
        before = peak_memory()
        if before is None:
            pytest.skip("peak memory is not known here")
        fit(fg.AFL(), parties, classes=3, engine=fg.InProcess(workers=workers))
        peaks.append(peak_memory() - before)
    assert peaks[1] <= peaks[0] + 2 * 2 * 4 * 8 * packing.size(1280)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": "many"}, {"threads": 0}, {"batch": "auto"}])
def test_impossible_numbers(options):
    [(name, value)] = options.items()
    with pytest.raises(InvalidParameter, match=f"{name} must be at least 1, got {value!r}"):
        fg.InProcess(**options)


def test_without_a_blas_that_can_be_limited(monkeypatch):
    """Apple's BLAS, for example, has no such switch: there are as many workers as processors."""
    from threadpoolctl import ThreadpoolController

    monkeypatch.setattr(threads, "_blas", lambda: ThreadpoolController().select(user_api="no such"))
    assert Limit.allowed() == threads.processors() >= 1
    assert fit(fg.AFL(), clients(4)).contributors == ("c0", "c1", "c2", "c3")


@pytest.mark.usefixtures("two_threads")
def test_few_samples_are_decomposed_by_one_thread(monkeypatch):
    """On a busy machine, two threads that wait for each other took twenty times as long."""
    seen, svd = [], np.linalg.svd

    def watched(*given, **options):
        seen.extend(blas_threads())
        return svd(*given, **options)

    monkeypatch.setattr(np.linalg, "svd", watched)
    x = np.random.default_rng(0).normal(size=(50, 600))
    solve.eigenpairs(packing.pack(x.T @ x), 600, 50)
    assert set(seen) == {1}
    assert set(blas_threads()) == {2}
