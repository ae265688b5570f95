"""Networks of users: functions (shape, classes) -> torch.nn.Module, which every side can import."""

from functools import partial

import torch
from torch import nn

HERE = "support.networks"


def _resnet(shape, classes, *, width, groups=None):
    """Return the ResNet-18 of transformers, for small images, with batch normalisation or groups."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_channels=shape[0],
        embedding_size=width,
        hidden_sizes=[width, 2 * width, 4 * width, 8 * width],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=classes,
    )
    module = ResNetForImageClassification(config)
    if groups:
        for owner in list(module.modules()):
            for name, norm in list(owner.named_children()):
                if isinstance(norm, nn.BatchNorm2d):
                    setattr(owner, name, nn.GroupNorm(groups, norm.num_features))
    return module


def resnet18(shape, classes):
    return _resnet(shape, classes, width=64)


def narrow_resnet18(shape, classes):
    return _resnet(shape, classes, width=4)


def narrow_resnet18_groups(shape, classes):
    return _resnet(shape, classes, width=4, groups=2)


class Tied(nn.Module):
    """Two layers share their weights, and so do the head and a layer beside it; some numbers are frozen."""

    def __init__(self, shape, classes):
        super().__init__()
        (width,) = shape
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.beside, self.last = nn.Linear(width, classes, bias=False), nn.Linear(width, classes)
        self.last.weight = self.beside.weight
        self.shift = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x):
        z = torch.tanh(self.second(torch.tanh(self.first(x)))) + self.shift
        return self.last(z) + self.beside(x)


TRAINED = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU())
MODULE = nn.Linear(12, 10)


def of_trained_parts(shape, classes):
    """Return a new head on a body that was trained before and is always the same."""
    return nn.Sequential(TRAINED, nn.Linear(8, classes))


def of_the_batch(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, classes))


class Transformer(nn.Module):
    """A user's small vision transformer: patches, dropout, a head that is registered first."""

    head = "scores"

    def __init__(self, shape, classes, width=16, patch=8, dropout=0.1):
        super().__init__()
        channels, height, width_of_image = shape
        self.scores = nn.Linear(width, classes)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        tokens = (height // patch) * (width_of_image // patch)
        self.places = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.scores(self.encoder(tokens).mean(1))


class Counting(nn.Module):
    """A network with all kinds of parameters that a vector must handle; not a realistic network."""

    def __init__(self, shape, classes):
        super().__init__()
        (d,) = shape
        self.first = nn.Linear(d, 6)
        self.norm = nn.BatchNorm1d(6, momentum=None)  # a mean over all batches, which needs their number
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.last = nn.Linear(6, classes, bias=False)
        self.register_buffer("table", torch.linspace(0, 1, 6), persistent=False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1  # replaced, not written to
        return self.last(self.norm(self.first(x)).relu() * self.frozen + self.table)


def dropping(shape, classes):
    """Return a perceptron that drops half of its features."""
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes))


def lenet5(shape, classes):
    """Return LeNet-5 in the usual form."""
    channels, size, _ = shape
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * ((size - 12) // 4) ** 2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, classes),
    )


def cnn(shape, classes):
    channels, size, _ = shape
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * ((size - 6) // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, classes)),
    )


def mlp(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, classes))


# One fault each.
def failing(shape, classes):
    raise RuntimeError("no weights here")


def no_module(shape, classes):
    return "resnet18"


def too_wide(shape, classes):
    return nn.Linear(shape[0], classes + 1)


def headless(shape, classes):
    return nn.Sequential(nn.Conv1d(shape[0], classes, 1))


def misnamed(shape, classes):
    module = Counting(shape, classes)
    del module.first
    module.head = "classifier"
    return module


def frozen(shape, classes):
    module = Counting(shape, classes)
    module.last.requires_grad_(False)
    return module


def many_columns(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes), nn.ZeroPad1d((0, 2)))


def wrong_shape(shape, classes):
    return nn.Sequential(nn.Linear(shape[0] + 1, classes))


def many_tokens(shape, classes):
    return nn.Sequential(nn.Unflatten(1, (2, -1)), nn.Linear(shape[0] // 2, classes), nn.Flatten(1), nn.AvgPool1d(2))


mlp_of_part = partial(mlp)
NUMBER = 3
