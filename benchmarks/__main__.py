"""Run the benchmarks named on the command line, or all: `python -m benchmarks [afl partition …]`."""

import os
import sys
from importlib import import_module

# Ratios of CPU time are comparable with one thread only; BLAS reads this when it is loaded.
for library in ("OPENBLAS", "OMP", "MKL", "VECLIB", "BLIS"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

ALL = (
    "afl",
    "threads",
    "personal",
    "choices",
    "layerwise",
    "gradient",
    "estimates",
    "partition",
    "scale",
    "tables",
    "large_tables",
    "estimators",
    "unbalanced",
    "exchange",
    "summarize",
    "extraction",
    "flower",
)

for name in sys.argv[1:] or ALL:
    import_module(f"benchmarks.{name}").main()
