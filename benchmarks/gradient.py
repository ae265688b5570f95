"""Local training of many clients, against the usual loop of modules and against the leanest loop; and its memory."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import fedgram as fg
from benchmarks.measure import Results, cpu_seconds
from fedgram.experiments.runner import peak_memory, reset_peak_memory

D, CLASSES, LR = 1280, 10, 0.01
# Bounds on the CPU seconds of each method's rounds in multiples of FedAvg's, on LeNet-5 and on features, with
# reasons. One epoch forward and backward is three forward passes. On features FedAvg's gradient is written out, and
# terms need autograd, which takes about twice as long for such small products.
RIVALS: dict[str, tuple[dict[str, Any], float, float, str]] = {
    "fedper": ({"network": "mlp:128"}, 1.15, 1.2, "nothing more"),
    "feddisco": ({}, 1.1, 1.15, "one number more, once"),
    "fedntd": ({}, 1.5, 2.5, "one forward pass more"),
    "moon": ({"network": "mlp:128"}, 2.0, 3.2, "two forward passes more"),
    "fedgen": ({"network": "mlp:128"}, 2.0, 6.0, "two passes of the generator, and its fit at the server"),
    "fedpcl": ({"network": "mlp:128"}, 2.0, 4.0, "(K + 1) c products a sample, and a pass for class means"),
    "fedgh": ({"network": "mlp:128"}, 1.6, 1.7, "a pass for class means"),
    "fedpac": ({"network": "mlp:128"}, 3.2, 3.8, "an epoch of the head, two passes for statistics"),
    "fedas": ({"network": "mlp:128"}, 5.5, 5.5, "a pass, an epoch in batches of 16, two epochs for Fisher"),
    "fedselect": ({"every": 1}, 2.4, 3.5, "two epochs instead of one, a mask on each gradient"),
    "apple": ({}, 1.4, 5.0, "products with K cores in each batch"),
    "pfedhn": ({}, 1.6, 2.0, "100 numbers for each weight at the server"),
    "pfedla": ({}, 1.4, 4.0, "K² products of weights at the server"),
    "fedzo": (
        {"lr": 1e-4, "local_steps": None},
        16.0,
        45.0,
        "21 forward passes in double precision, and drawing directions",
    ),
}


def features(clients: int, n: int) -> list[fg.Client]:
    """Return clients with about n samples of cached features each, all cut from the same array."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2 * n, D), dtype=np.float32), rng.integers(0, CLASSES, 2 * n)
    sizes = rng.integers(round(0.6 * n), round(1.4 * n), clients)
    return [fg.Client(f"client-{k:03d}", x[:size], y[:size]) for k, size in enumerate(sizes)]


def images(clients: int, n: int) -> list[fg.Client]:
    """Return clients with n images of CIFAR-10's size each."""
    rng = np.random.default_rng(0)
    x, y = rng.random((clients, n, 32, 32, 3), dtype=np.float32), rng.integers(0, CLASSES, (clients, n))
    return [fg.Client(f"client-{k:02d}", x[k], y[k]) for k in range(clients)]


def usual_round(make: Callable[[], nn.Module], clients: list[tuple[Any, Any]], size: int) -> None:
    """Train each client with DataLoader, module and optimizer, as the common collections do, and average."""
    world, mean = make(), {}
    total = sum(len(y) for _, y in clients)
    for x, y in clients:
        module = copy.deepcopy(world)
        optimizer, loss = torch.optim.SGD(module.parameters(), lr=LR), nn.CrossEntropyLoss()
        module.train()
        for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True):
            optimizer.zero_grad()
            loss(module(inputs), labels).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            mean[name] = mean.get(name, 0) + value * (len(y) / total)


def as_images(client: fg.Client) -> tuple[Any, Any]:
    """Return a client's images in the memory layout of the quickest convolutions."""
    return torch.from_numpy(client.x).permute(0, 3, 1, 2).mul(2).sub_(1), torch.from_numpy(client.y)


def lean_round(make: Callable[[], nn.Module], clients: Iterable[tuple[Any, Any]], size: int) -> None:
    """Train each client with as little code around the module as possible: tensors in memory, batches cut by index."""
    module = make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = list(module.parameters())
    world, mean = [p.detach().clone() for p in parameters], [torch.zeros_like(p) for p in parameters]
    for x, y in clients:
        with torch.no_grad():
            for parameter, value in zip(parameters, world, strict=True):
                parameter.copy_(value)
        order = torch.randperm(len(y))
        for start in range(0, len(y), size):
            batch = order[start : start + size]
            gradients = torch.autograd.grad(cross_entropy(module(x[batch]), y[batch]), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=LR)
        for total, parameter in zip(mean, parameters, strict=True):
            total.add_(parameter.detach(), alpha=len(y))


def lenet5() -> nn.Module:
    """Return LeNet-5 with its pooling before ReLU, as ours has it: the same values for less."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


def method(network: str, batch: int = 32) -> fg.FedAvg:
    """Return one round of FedAvg with one local epoch."""
    return fg.FedAvg(network=network, rounds=1, epochs=1, batch=batch, lr=LR, momentum=0.0)


def rivals() -> None:
    """Print each method's rounds against FedAvg's."""
    photos, rows = images(8, 256), features(20, 240)
    results = Results(
        "Three rounds of each method / FedAvg's: LeNet-5, 8 clients of 256 images; 20 clients of 1,280 features"
    )
    for name, (settings, on_images, on_features, why) in RIVALS.items():
        shape = {"rounds": 3, "epochs": 1, "momentum": 0.0, "lr": LR}
        changed = {key: value for key, value in settings.items() if key != "network"}
        for what, parties, network, batch, bound in (
            ("LeNet-5", photos, "lenet5", 64, on_images),
            ("features", rows, settings.get("network", "linear"), 32, on_features),
        ):
            common = shape | {"network": network, "batch": batch}
            methods = fg.registry[name](**common | changed), fg.FedAvg(**common)
            theirs, plain = cpu_seconds(*(partial(one.fit, parties, classes=CLASSES) for one in methods), repeats=3)
            results.at_most(f"{name} on {what} ({why})", theirs / plain, bound)
    results.show()


def peak_of_a_round(clients: int) -> int:
    """Return the process's peak growth of memory in a round with this number of clients."""
    parties = features(clients, 64)
    method("mlp:128").fit(parties[:4], classes=CLASSES)
    reset_peak_memory()
    before = peak_memory()
    method("mlp:128").fit(parties, classes=CLASSES)
    after = peak_memory()
    assert before is not None
    assert after is not None
    return after - before


def main() -> None:
    torch.set_num_threads(1)
    parties = features(100, 480)
    tensors = [(torch.from_numpy(client.x), torch.from_numpy(client.y)) for client in parties]
    results = Results(f"A FedAvg round: 100 clients of about 480 samples, d = {D:,}, linear head, batches of 32")
    ours, usual = cpu_seconds(
        lambda: method("linear").fit(parties, classes=CLASSES),
        lambda: usual_round(lambda: nn.Linear(D, CLASSES), tensors, 32),
        repeats=5,
    )
    results.note("CPU seconds: ours, DataLoader with module and optimizer", f"{ours:.3f}, {usual:.3f}")
    results.at_least("DataLoader, module, optimizer / ours", usual / ours, 5.0)
    results.show()

    photos = images(20, 256)
    results = Results("A FedAvg round: 20 clients of 256 images, LeNet-5, batches of 64")
    ours, lean, usual = cpu_seconds(
        lambda: method("lenet5", 64).fit(photos, classes=CLASSES),
        lambda: lean_round(lenet5, map(as_images, photos), 64),
        lambda: usual_round(lenet5, list(map(as_images, photos)), 64),
        repeats=9,
    )
    results.note("CPU seconds: ours, the leanest loop, DataLoader …", f"{ours:.3f}, {lean:.3f}, {usual:.3f}")
    # Both spend nearly all of the time in the same convolutions; the difference is within that of two runs.
    results.at_most("ours / the leanest loop we can write", ours / lean, 1.05)
    results.show()

    rivals()

    few, many = peak_of_a_round(100), peak_of_a_round(1000)
    results = Results("Memory of a FedAvg round on features, beyond the clients' own samples")
    results.note("peak, 100 and 1,000 clients", f"{few / 2**20:.0f}, {many / 2**20:.0f} MiB")
    results.at_most("1,000 clients / 100 clients", many / max(few, 1), 1.2)
    results.show()
