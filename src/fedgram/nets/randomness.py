"""Torch's random numbers, drawn from a run's own generators."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

# Torch has one stream of random numbers, and a module whose numbers are replaced for a call one set of them.
ONE_AT_A_TIME = RLock()


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[None]:
    """Let torch draw from a seed that the generator gives; afterwards torch goes on as if nothing had been drawn.

    Other threads that want to draw wait meanwhile.
    """
    import torch

    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        yield
