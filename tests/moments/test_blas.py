"""BLAS and LAPACK routines, called so that other threads go on meanwhile: the same results as SciPy's own wrappers."""

from threading import Thread
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedgram.moments import blas, packing, solve
from support.problems import seeds

pytestmark = pytest.mark.usefixtures("default_threads")
sizes = st.integers(1, 30)


@pytest.fixture
def without_routines(monkeypatch):
    """Pretend that SciPy declares its routines in another way."""
    monkeypatch.setattr(blas, "_routine", lambda name: None)


@given(seeds, sizes, sizes)
def test_gram_is_packed_exactly_as_scipy_does(seed, m, d):
    rows = np.random.default_rng(seed).normal(size=(m, d))
    packed, want = np.ones(packing.size(d)), np.ones(packing.size(d))
    blas.add_gram(packed, rows)
    solve.lapack.dsfrk(d, m, 1.0, rows.T, 1.0, want, trans="N", uplo="L", overwrite_c=1)
    assert np.array_equal(packed, want)
    full = packing.unpack(packed - 1, d)
    assert np.array_equal(full, full.T)
    np.testing.assert_allclose(full, rows.T @ rows, atol=1e-12)


def _solutions(seed, d, c):
    rng = np.random.default_rng(seed)
    lower, rhs = np.tril(rng.normal(size=(d, d))) + 4 * d * np.eye(d), rng.normal(size=(d, c))
    system = lower @ lower.T
    return [
        (blas.solve_triangular(lower, rhs), np.linalg.solve(lower, rhs)),
        (blas.solve_triangular(np.asfortranarray(lower), rhs, transposed=True), np.linalg.solve(lower.T, rhs)),
        (blas.solve_positive_definite(system.copy(), rhs), np.linalg.solve(system, rhs)),
        (blas.solve_positive_definite(system.copy("F"), rhs.T.copy().T), np.linalg.solve(system, rhs)),
    ]


@given(seeds, sizes, st.integers(1, 4))
def test_solutions(seed, d, c):
    for solution, want in _solutions(seed, d, c):
        np.testing.assert_allclose(solution, want, rtol=1e-9, atol=1e-12)


def test_a_matrix_that_is_not_positive_definite_is_refused(request):
    for fixture in (None, "without_routines"):
        if fixture:
            request.getfixturevalue(fixture)
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            blas.solve_positive_definite(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((2, 1)))


@pytest.mark.usefixtures("without_routines")
def test_scipys_own_wrappers_step_in_where_its_declarations_are_not_known():
    for solution, want in _solutions(0, 7, 2):
        np.testing.assert_allclose(solution, want, rtol=1e-9)
    packed = np.zeros(6)
    blas.add_gram(packed, np.eye(3))
    assert np.array_equal(packing.unpack(packed, 3), np.eye(3))
    total, (left, right) = np.ones((2, 2), order="F"), np.arange(12.0).reshape(2, 3, 2)
    blas.add_product(total, left, right)
    assert np.array_equal(total, 1 + left.T @ right)


@given(seeds, sizes, sizes)
def test_products_are_added(seed, m, c):
    left, right, total = (np.random.default_rng(seed + i).normal(size=(rows, c)) for i, rows in enumerate((m, m, c)))
    got = total.copy(order="F")
    blas.add_product(got, left, right)
    np.testing.assert_allclose(got, total + left.T @ right, atol=1e-12)


def test_scipys_routines_are_known_here():
    assert all(blas._routine(name) for name in ("dsfrk", "dgemm", "dtrsm", "dposv"))
    assert blas._routine("no such routine") is None


def test_arguments_that_would_corrupt_memory_are_refused():
    with pytest.raises(ValueError, match="cannot hold a packed matrix of 3"):
        blas.add_gram(np.zeros(5), np.eye(3))
    with pytest.raises(TypeError, match="not float32"):
        blas.add_gram(np.zeros(6, dtype=np.float32), np.eye(3))
    with pytest.raises(TypeError, match="contiguous"):
        blas.add_gram(np.zeros(12)[::2], np.eye(3))
    with pytest.raises(ValueError, match="does not fit"):
        blas.solve_triangular(np.eye(3), np.ones((2, 1)))
    for total, left in ((np.zeros((3, 3)), np.eye(2)), (np.zeros((2, 2), order="F"), np.ones((3, 2)))):
        with pytest.raises(ValueError, match="cannot be multiplied and added"):
            blas.add_product(total, left, np.eye(2))
    ordered, other = np.ones((3, 2)), np.ones((3, 2), order="F")
    for left, right, order in ((other, ordered, "F"), (ordered, other, "F"), (ordered, ordered, "C")):
        with pytest.raises(ValueError, match="contiguous in C order"):
            blas.add_product(np.zeros((2, 2), order=order), left, right)
    with pytest.raises(ValueError, match="does not fit"):
        blas.solve_positive_definite(np.eye(3), np.ones((2, 1)))


def _python_runs_during(work):
    """Return whether this thread can run during another's work; a held lock stops it."""
    times, moments = [], []

    def run():
        times.append(perf_counter())
        work()
        times.append(perf_counter())

    thread = Thread(target=run)
    thread.start()
    while thread.is_alive():
        moments.append(perf_counter())
    started, ended = times
    return any(0.3 < (moment - started) / (ended - started) < 0.7 for moment in moments)


def test_the_interpreter_is_free_while_blas_works():
    rows, square = np.ones((2000, 700)), np.eye(700)
    packed = np.zeros(packing.size(700))
    total = np.zeros((700, 700), order="F")
    works = {
        "sfrk": lambda: packing.add_gram(packed, rows),
        "gemm": lambda: blas.add_product(total, rows, rows),
        "trsm": lambda: blas.solve_triangular(square, rows.T),
        "posv": lambda: blas.solve_positive_definite(np.eye(700), rows.T),
    }
    with threadpool_limits(1, user_api="blas"):
        free = {name: sum(_python_runs_during(work) for _ in range(5)) for name, work in works.items()}
    assert min(free.values()) >= 3, free  # a busy machine disturbs some of the five
