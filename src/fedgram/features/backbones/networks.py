"""The torch modules behind the named backbones. Imports torch: import this module on use only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgram.core.errors import CannotLoad, InvalidParameter
from fedgram.core.extras import require
from fedgram.features.backbones.backbone import opened, pooled

LAST = -1


class Pooled(nn.Module):
    """A module whose output is made one row of features per sample."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, d)."""
        features: Tensor = pooled(self.module(images))
        return features


class LiteFeatures(nn.Module):
    """EfficientNet-Lite up to its last convolution, and any of its blocks, averaged over positions."""

    def __init__(self, version: str, weights: Path, size: int, layers: Sequence[int]) -> None:
        super().__init__()
        package = require("efficientnet_lite_pytorch", "vision", f"the {version} backbone")
        # The size decides how the strided convolutions are padded.
        net = package.EfficientNet.from_name(f"efficientnet-{version}", image_size=size)
        net.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.stem = nn.Sequential(net._conv_stem, net._bn0, net._swish)
        self.blocks = net._blocks
        self.head = nn.Sequential(net._conv_head, net._bn1, net._swish)
        self.layers = check_layers(layers, len(net._blocks))

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, d), the layers' channels one after the other."""
        x = self.stem(images)
        found = {}
        for number, block in enumerate(self.blocks):
            x = block(x)
            found[number] = x
        found[LAST] = self.head(x)
        return torch.cat([pooled(found[layer]) for layer in self.layers], dim=1)


class HubFeatures(nn.Module):
    """A model of the hub without its head: averaged maps, the class token, or averaged patch tokens.

    A masked autoencoder gets every patch, in order: its usual random masking would make the features random.
    """

    def __init__(self, folder: Path, size: int, layers: Sequence[int], pool: str) -> None:
        super().__init__()
        self.model = _pretrained(folder, "hub")
        config = self.model.config
        self.has_class_token = any(name.endswith("cls_token") for name, _ in self.model.named_parameters())
        self.masked = config.model_type == "vit_mae"
        if self.masked:
            config.mask_ratio = 0.0
            self.order = nn.Buffer(torch.arange((size // config.patch_size) ** 2, dtype=torch.float32))
        if pool == "auto":
            pool = "class" if self.has_class_token and not self.masked else "mean"
        if pool == "class" and not self.has_class_token:
            raise InvalidParameter(f"a {config.model_type} model has no class token: pool by 'mean'")
        self.pool = pool
        self.layers = check_layers(
            layers, getattr(config, "num_hidden_layers", 0) or len(getattr(config, "depths", ()))
        )
        self.resized = self.has_class_token and size != config.image_size

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, d), the layers' features one after the other."""
        options: dict[str, Any] = {"output_hidden_states": self.layers != (LAST,)}
        if self.masked:
            options["noise"] = self.order.expand(images.shape[0], -1)
        if self.resized:
            options["interpolate_pos_encoding"] = True
        out = self.model(images, **options)
        # hidden_states[0] is the embedding before the first layer.
        chosen = (out.last_hidden_state if k == LAST else out.hidden_states[k + 1] for k in self.layers)
        return torch.cat([self._row(x) for x in chosen], dim=1)

    def _row(self, x: Tensor) -> Tensor:
        if x.ndim == 3 and self.has_class_token:
            x = x[:, :1] if self.pool == "class" else x[:, 1:]
        row: Tensor = pooled(x)
        return row


class SentenceFeatures(nn.Module):
    """A sentence encoder: token vectors averaged over the text, then scaled to length one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = _pretrained(folder, "text")

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return (n, d) of tokens (n, t) where mask (n, t) is 1 for tokens and 0 for padding."""
        states = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def check_layers(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the layers if each is 0 … count - 1 or LAST, and none twice."""
    for layer in layers:
        if layer != LAST and not 0 <= layer < count:
            raise InvalidParameter(f"layer {layer} does not exist: give 0 … {count - 1}, or -1 for the last features")
    if not layers or len(set(layers)) != len(layers):
        raise InvalidParameter(f"layers {tuple(layers)}: give at least one, each once")
    return tuple(layers)


def _pretrained(folder: Path, extra: str) -> Any:
    """Load a model in the hub's layout, without its head, and refuse one whose weights are not all there."""
    transformers = require("transformers", extra, f"the model in {folder.name}")
    log = transformers.utils.logging
    verbosity = log.get_verbosity()
    log.set_verbosity_error()  # its report on the head's weights, which are not used
    log.disable_progress_bar()
    try:
        model, report = opened(
            f"the model in {folder.name}",
            lambda: transformers.AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,  # otherwise a folder with its own code asks, and a "yes" runs it
                output_loading_info=True,
            ),
            (OSError, ValueError, KeyError, RuntimeError),
        )
    finally:
        log.set_verbosity(verbosity)
        log.enable_progress_bar()
    # Weights that are missing are drawn at random. A pooler is part of the head and not used here.
    if missing := sorted(key for key in report["missing_keys"] if "pooler" not in key):
        raise CannotLoad(f"the model in {folder.name} lacks {len(missing)} weights, such as {missing[0]}")
    return model
