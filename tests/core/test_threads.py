"""One policy for threads: pure functions of sizes, torch obeys what BLAS obeys, and threads that wait sleep."""

import os
import subprocess
import sys
from threading import Barrier, get_ident

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedgram.core import threads
from fedgram.core.errors import MissingExtra
from fedgram.core.extras import require
from fedgram.core.threads import (
    SMALL,
    WORTH_A_JOB,
    Limit,
    jobs_at_once,
    one_thread_each,
    side_by_side,
    threads_for,
    torch_threads,
    waiting_passively,
)
from support.threads import VARIABLES

torch = pytest.importorskip("torch")
sizes, counts = st.floats(0, 1e15), st.integers(1, 64)


@pytest.fixture
def two_threads():
    """Let BLAS and torch have two threads in any environment."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        yield
    torch.set_num_threads(before)


@given(sizes, counts, counts)
def test_all_threads_or_one(multiplications, allowed, pieces):
    chosen = threads_for(multiplications, allowed, pieces=pieces)
    assert chosen in (1, allowed)
    assert threads_for(2 * multiplications, allowed, pieces=pieces) >= chosen, "more work never gets fewer"
    assert threads_for(multiplications, allowed, pieces=pieces + 1) <= chosen, "more waiting never gets more"
    assert threads_for(multiplications, allowed, pieces=pieces, meanwhile=multiplications) == 1


def test_the_bound_is_a_millisecond_between_two_waits():
    assert threads_for(SMALL, 4) == 1
    assert threads_for(1.01 * SMALL, 4) == 4
    assert threads_for(5 * SMALL, 4, pieces=5) == 1
    assert threads_for(5.1 * SMALL, 4, pieces=5) == 4


@given(st.floats(0, 1e10), st.lists(st.floats(1, 100), min_size=1, max_size=30), counts, counts)
def test_jobs_at_once_are_no_more_than_there_are_or_may_be(multiplications, lengths, allowed, pieces):
    at_once = jobs_at_once(multiplications, lengths, allowed, pieces=pieces)
    assert 1 <= at_once <= min(allowed, len(lengths))
    if multiplications < WORTH_A_JOB * pieces:
        assert at_once == 1
    elif threads_for(multiplications, allowed, pieces=pieces) == 1:
        assert at_once == min(allowed, len(lengths))


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=20), st.integers(1, 5000))
def test_with_one_core_there_is_one_thread_each(lengths, columns):
    assert one_thread_each(lengths, columns, 1)


@pytest.mark.parametrize(("columns", "chosen"), [(1, 1), (512, 1), (513, 2), (4000, 2)])
def test_narrow_tables_are_added_up_by_one_thread(two_threads, columns, chosen):
    with threads.beside_reading(columns) as limit:
        assert limit.threads == chosen


@pytest.mark.usefixtures("two_threads")
def test_wide_symmetric_matrices_get_one_thread_and_others_keep_theirs():
    for columns, wanted in [(1, 2), (12_000, 2), (12_001, 1), (40_000, 1)]:
        with threads.symmetric(columns):
            assert Limit.now() == wanted
    assert Limit.now() == 2


WIDE = """
import numpy as np
from fedgram.moments import packing, solve
packed = np.zeros(packing.size(d := 15_900))
packing.add_gram(packed, np.ones((3, d)))
print(solve.is_positive_semidefinite(packed, d, 1e-3), solve.factor(packed, d, ridge=1.0, n=3).rank)
"""


@pytest.mark.slow
def test_openblas_does_not_end_the_process_for_a_wide_matrix():
    """With two threads, OpenBLAS 0.3.30 writes beyond its buffer for 15,500 columns and more (signal 11)."""
    ended = subprocess.run(
        [sys.executable, "-c", WIDE],
        env=os.environ | dict.fromkeys(VARIABLES, "2"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["True", "15900"])


@pytest.mark.usefixtures("two_threads")
def test_torch_gets_threads_by_size_and_its_own_number_back():
    with torch_threads(SMALL):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with torch_threads(2 * SMALL):
        assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError), torch_threads(0):
        raise RuntimeError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_limits_of_blas_hold_for_torch():
    with Limit(1), torch_threads(1e12):
        assert torch.get_num_threads() == 1
    with threadpool_limits(1, user_api="blas"), torch_threads(1e12):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_jobs_side_by_side_have_one_thread_each():
    meeting = Barrier(2, timeout=60)  # a job alone does not get past it

    def job():
        meeting.wait()
        with torch_threads(1e12):
            return get_ident(), torch.get_num_threads(), Limit.now()

    found = side_by_side([job] * 4, 2)
    assert {(count, now) for _, count, now in found} == {(1, 1)}
    assert len({who for who, *_ in found}) == 2
    assert get_ident() not in {who for who, *_ in found}
    assert (torch.get_num_threads(), Limit.now()) == (2, 2)
    assert "mkl_get_max_threads() : 1" not in torch.__config__.parallel_info(), "MKL's number is that of all threads"


def test_an_error_of_a_job_is_raised_and_what_waits_is_not_begun():
    begun = []

    def fails():
        begun.append(True)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        side_by_side([fails] * 50, 2)
    assert len(begun) < 50


def test_the_environment_is_as_before(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with waiting_passively():
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
        assert os.environ["KMP_BLOCKTIME"] == "0"
    assert dict(os.environ) == before
    missing = "no_such_module"
    with pytest.raises(MissingExtra):
        require(missing, "nets", "this test")
    assert dict(os.environ) == before
    monkeypatch.setenv("GOMP_SPINCOUNT", "10")
    with waiting_passively():
        assert "OMP_WAIT_POLICY" not in os.environ, "who has set one of them knows better"


# Start of each program: notes the environment when torch is imported, and torch's threads afterwards.
WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("loaded with", os.environ.get("OMP_WAIT_POLICY"))

sys.meta_path.insert(0, Watch())
import numpy as np, fedgram as fg
x, y = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32), np.arange(60) % 3
clients = [fg.Client(f"c{k}", x[k::3], y[k::3]) for k in range(3)]
"""
PROGRAMS = {
    "a method": "fg.FedAvg(rounds=1).fit(clients, classes=3)",
    "a factory": "fg.FedAvg(rounds=1, network='own_network:make').fit(clients, classes=3)",
    "a model": "from fedgram.nets.trained_net import TrainedNet\n"
    "TrainedNet('linear', (8,), ('a', 'b'), np.zeros(18, dtype=np.float32)).predict(x)",
    "a module": "from fedgram.nets.trained_net import TrainedNet\n"
    "TrainedNet('linear', (8,), ('a', 'b'), np.zeros(18, dtype=np.float32)).to_torch()",
    "the command line": "import fedgram.cli\n"
    "sys.argv = 'fedgram run --data digits --method fedavg --set rounds=1 --clients 3'.split()\n"
    "fedgram.cli.main()",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_torch_is_loaded_so_that_its_threads_sleep(program, tmp_path):
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n\n\ndef make(shape, classes):\n    return nn.Sequential(nn.Linear(*shape, classes))\n"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", *VARIABLES)}
    path = os.pathsep.join([str(tmp_path), *filter(None, [kept.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", WATCH + program],
        env=kept | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("loaded")] == ["loaded with passive"]


@pytest.mark.parametrize("variable", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_the_documented_switch_holds_for_torch(variable):
    """Each variable alone keeps training and scoring to one thread, however large they are."""
    program = (
        "import numpy as np, torch, fedgram as fg\n"
        "from fedgram.core.threads import Limit, torch_threads\n"
        "with torch_threads(1e15):\n    print(torch.get_num_threads())\n"
    )
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", program], env=kept | {variable: "1"}, check=True, capture_output=True, text=True
    )
    assert done.stdout == "1\n"


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("network", ["lenet5", "mlp:64"])
def test_clients_train_side_by_side_with_the_same_bits(network, monkeypatch):
    import fedgram as fg
    from fedgram.nets import sgd

    rng = np.random.default_rng(0)
    x, y = rng.random((5, 24, 32, 32, 3), dtype=np.float32), rng.integers(0, 3, (5, 24))
    clients = [fg.Client(f"c{k}", x[k], y[k]) for k in range(5)]
    method, chosen = fg.FedAvg(network=network, rounds=2, batch=16), []
    monkeypatch.setattr(sgd, "CHUNK_BYTES", 1)  # a client in each chunk

    def watched(jobs, workers):
        chosen.append(workers)
        return side_by_side(jobs, workers)

    monkeypatch.setattr(sgd, "side_by_side", watched)
    together = method.fit(clients, classes=3).model.vector
    assert set(chosen) == {2}
    alone = method.fit(clients, classes=3, engine=fg.InProcess(threads=1)).model.vector
    assert set(chosen) == {1, 2}
    assert np.array_equal(together, alone)
    assert torch.get_num_threads() == 2
