"""The number of threads that numerical libraries use by default."""

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def blas_threads():
    """Return how many threads each BLAS library of this process may use."""
    from threadpoolctl import threadpool_info  # after the environment has been set

    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
