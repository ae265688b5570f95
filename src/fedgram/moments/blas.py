"""BLAS and LAPACK calls that release the interpreter's lock, so that clients can work side by side.

SciPy's own wrappers hold the lock while they compute. Here the same routines, from SciPy's interface for Cython, are
called through ctypes, which releases it. If SciPy declares a routine in an unknown way, its wrapper is used instead:
the numbers are the same, but one client computes at a time. NumPy's own functions, such as `x.T @ x` (which is `syrk`)
and `numpy.linalg.eigh`, release the lock by themselves.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import blas, cython_blas, cython_lapack, lapack

from fedgram.core.arrays import Array

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.argtypes, _capsule_name.restype = [ctypes.py_object], ctypes.c_char_p
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def add_gram(packed: Array, rows: Array, *, by_columns: bool = False) -> None:
    """Add rowsᵀ rows to `packed`, d(d + 1)/2 numbers as `packing` packs them, in place.

    `rows` is (m, d) in C order, or in Fortran's with `by_columns`: the last bits of the result depend on it.
    """
    m, d = rows.shape
    if packed.shape != (d * (d + 1) // 2,):
        raise ValueError(f"{packed.shape} numbers cannot hold a packed matrix of {d} dimensions")
    if by_columns:
        given, way, leading = np.asfortranarray(rows, dtype=np.float64), b"T", m
    else:  # a C-ordered (m, d) is a Fortran-ordered (d, m)
        given, way, leading = np.ascontiguousarray(rows, dtype=np.float64).T, b"N", d
    if not _call("dsfrk", b"N", b"L", way, d, m, 1.0, given, leading, 1.0, packed):
        lapack.dsfrk(d, m, 1.0, given, 1.0, packed, trans=way.decode(), uplo="L", overwrite_c=1)


def add_product(total: Array, left: Array, right: Array) -> None:
    """Add leftᵀ right to `total` (c, c), in Fortran order, in place; both are (m, c) in C order.

    >>> total = np.ones((2, 2), order="F")
    >>> add_product(total, np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
    >>> total
    array([[4., 5.],
           [7., 9.]])
    """
    m, c = left.shape
    if right.shape != (m, c) or total.shape != (c, c):
        raise ValueError(f"{left.shape} and {right.shape} cannot be multiplied and added to {total.shape}")
    if not (left.flags.c_contiguous and right.flags.c_contiguous and total.flags.f_contiguous):
        raise ValueError("factors must be contiguous in C order, and their sum in Fortran order")
    if not _call("dgemm", b"N", b"T", c, c, m, 1.0, left.T, c, right.T, c, 1.0, total, c):
        total += left.T @ right


def solve_triangular(lower: Array, rhs: Array, *, transposed: bool = False) -> Array:
    """Return L⁻¹ rhs, or L⁻ᵀ rhs, for L (d, d) in the lower triangle of `lower` and rhs (d, c).

    >>> solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[2.0], [3.0]]))
    array([[1.],
           [2.]])
    """
    lower, solution = np.asfortranarray(lower), np.array(rhs, dtype=np.float64, order="F")
    d, c = _fitting(lower, solution)
    way = b"T" if transposed else b"N"
    if not _call("dtrsm", b"L", b"L", way, b"N", d, c, 1.0, lower, d, solution, d):
        return np.asarray(blas.dtrsm(1.0, lower, rhs, lower=1, trans_a=int(transposed)))
    return solution


def solve_positive_definite(system: Array, rhs: Array) -> Array:
    """Return A⁻¹ rhs for a symmetric positive definite A (d, d), which is overwritten, and rhs (d, c).

    >>> solve_positive_definite(np.array([[2.0, 1.0], [1.0, 1.0]]), np.array([[3.0], [2.0]]))
    array([[1.],
           [1.]])
    """
    left = system.T if system.flags.c_contiguous else np.asfortranarray(system)  # symmetric: either order will do
    solution = np.array(rhs, dtype=np.float64, order="F")
    d, c = _fitting(left, solution)
    info = ctypes.c_int()
    if _call("dposv", b"L", d, c, left, d, solution, d, info):
        failed = info.value
    else:
        _, solution, failed = lapack.dposv(left, rhs, lower=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return np.asarray(solution)


def _fitting(matrix: Array, rhs: Array) -> tuple[int, int]:
    d, c = rhs.shape
    if matrix.shape != (d, d):
        raise ValueError(f"a matrix {matrix.shape} does not fit right-hand sides {rhs.shape}")
    return d, c


def _call(name: str, *arguments: Any) -> bool:
    """Return whether a routine could be called with Fortran's arguments."""
    routine = _routine(name)
    if routine is None:
        return False
    routine(*map(_by_reference, arguments))
    return True


def _by_reference(argument: Any) -> Any:
    match argument:
        case np.ndarray():
            if argument.dtype != np.float64 or not argument.flags.forc:
                raise TypeError(f"BLAS gets contiguous arrays of float64, not {argument.dtype}")
            return argument.ctypes.data
        case int():
            return ctypes.byref(ctypes.c_int(argument))
        case float():
            return ctypes.byref(ctypes.c_double(argument))
        case ctypes.c_int():
            return ctypes.byref(argument)
    return argument


@cache
def _routine(name: str) -> Callable[..., None] | None:
    """Return a routine of double precision, None if SciPy declares it with other types than these calls pass."""
    for module in (cython_lapack, cython_blas):
        capsule = module.__pyx_capi__.get(name)
        if capsule is not None:
            signature = _capsule_name(capsule)
            types = signature.decode().removeprefix("void (").removesuffix(")").split(", ")
            if all(kind in ("char *", "int *") or kind.endswith("_d *") for kind in types):
                prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(types))
                return prototype(_capsule_pointer(capsule, signature))
    return None
