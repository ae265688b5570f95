"""How many threads numerical libraries take, where nobody has said so in the program."""

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
