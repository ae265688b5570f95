"""Torch draws from a run's generator, without effect outside the run."""

import numpy as np
import torch

from fedgram.nets.factories import seeded


def test_torch_draws_what_the_generator_says():
    with seeded(np.random.default_rng(1)):
        one = torch.rand(5)
    with seeded(np.random.default_rng(1)):
        same = torch.rand(5)
    with seeded(np.random.default_rng(2)):
        other = torch.rand(5)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_generator_gives_other_numbers_each_time():
    rng, drawn = np.random.default_rng(1), []
    for _ in range(2):
        with seeded(rng):
            drawn.append(torch.rand(5))
    assert not torch.equal(*drawn)


def test_torch_goes_on_as_if_nothing_had_been_drawn():
    before = torch.random.get_rng_state()
    with seeded(np.random.default_rng(1)):
        torch.rand(5)
    assert torch.equal(torch.random.get_rng_state(), before)
