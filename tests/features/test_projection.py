"""Random features, against torch's activations and the law they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InvalidParameter, Mismatch, UnknownName
from fedgram.features import ACTIVATIONS, RandomFeatures

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "identity"])
def test_activation_equals_torch(name, dtype):
    x = np.concatenate([np.linspace(-12, 12, 4001), [-1000, -100, -0.0, 0.0, 100, 1000]]).astype(dtype)
    # In double precision: on some processors torch's own gelu is further off in single precision than ours.
    theirs = getattr(torch.nn.functional, name)(torch.from_numpy(x.astype(np.float64))).numpy()
    mine = ACTIVATIONS[name](x)
    assert mine is x
    np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=3e-7)


def test_there_are_eight_activations_and_the_identity():
    assert set(ACTIVATIONS) == {
        "relu", "leaky_relu", "gelu", "hardswish", "tanh", "sigmoid", "elu", "softplus", "identity"
    }  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_extreme_values_stay_finite_without_warnings(name):
    x = np.array([-1e30, -1e4, 1e4, 1e15], dtype=np.float32)
    assert np.isfinite(ACTIVATIONS[name](x)).all()


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 30), st.integers(1, 50))
def test_blocks_are_the_rows_of_the_product(seed, d, out, rows):
    x = np.random.default_rng(seed).standard_normal((57, d))
    features = RandomFeatures(d, out, "identity", seed)
    whole = np.concatenate([block.copy() for _, block in features.blocks(x, rows)])
    np.testing.assert_allclose(whole, x @ features.matrix, atol=1e-12)
    np.testing.assert_allclose(features(x), whole, atol=1e-12)


def test_entries_follow_the_stated_law():
    matrix = RandomFeatures(400, 1000, seed=3).matrix
    assert matrix.std() == pytest.approx(1 / 20, rel=0.01)
    assert abs(matrix.mean()) < 5 / 20 / np.sqrt(matrix.size)
    kurtosis = ((matrix / matrix.std()) ** 4).mean()
    assert kurtosis == pytest.approx(3, abs=0.05)
    np.testing.assert_allclose(RandomFeatures(400, 1000, seed=3, scale=1.0).matrix, matrix * 20)


def test_a_seed_is_a_projection_on_every_machine():
    # The first numbers of NumPy's PCG64 stream for seed 0, over √4.
    np.testing.assert_allclose(
        RandomFeatures(4, 2, seed=0).matrix[:2].ravel(),
        np.array([0.12573022, -0.13210486, 0.64042265, 0.10490012]) / 2,
        atol=1e-8,
    )
    assert not np.array_equal(RandomFeatures(4, 2, seed=0).matrix, RandomFeatures(4, 2, seed=1).matrix)


def test_type_of_the_features_is_kept_and_the_input_untouched():
    x = np.full((3, 4), -1, dtype=np.float32)
    out = RandomFeatures(4, 5, "relu")(x)
    assert out.dtype == np.float32
    assert (out >= 0).all()
    assert (x == -1).all()
    assert RandomFeatures(4, 5)(np.ones((2, 4), dtype=np.int64)).dtype == np.float64
    assert RandomFeatures(4, 5)(np.ones((0, 4))).shape == (0, 5)


def test_nonsense_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'relu'"):
        RandomFeatures(4, 5, "rellu")
    with pytest.raises(InvalidParameter, match="from 0 to 5"):
        RandomFeatures(0, 5)
    with pytest.raises(InvalidParameter, match="scale"):
        RandomFeatures(4, 5, scale=-1.0)
    with pytest.raises(InvalidParameter, match="seed"):
        RandomFeatures(4, 5, seed=-1)
    with pytest.raises(Mismatch, match=r"\(n, 4\)"):
        RandomFeatures(4, 5)(np.ones((2, 3)))
