"""FedACnnL against the bare BLAS and LAPACK calls that it needs, and slow clients with larger batches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.linalg import blas, lapack

import fedgram as fg
from benchmarks.measure import Results, cpu_seconds, peak_bytes
from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.engines.inprocess import Room
from fedgram.features import load_features
from fedgram.layerwise import Convolution, Network, layer_moments
from fedgram.methods.layerwise.pfedacnnl import own_layer
from fedgram.moments import packing, solve
from fedgram.protocol import session
from fedgram.protocol.transport import Spent

CLASSES, GAMMA, SAMPLES_AT_ONCE, SMALL_BATCH = 10, 100.0, 256, 20
DNN, CONVOLUTIONS = "dnn", "conv:32:5:relu pool:2 conv:64:3:relu pool:3 flatten"


def make_clients(k: int, n: int, shape: tuple[int, ...]) -> list[fg.Client]:
    """Return k equal clients of n samples in all, as float64, so that conversions cost nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, *shape)), rng.integers(0, CLASSES, n)
    return [fg.Client(f"client-{i:04d}", x[part], y[part]) for i, part in enumerate(np.array_split(np.arange(n), k))]


@dataclass
class Round:
    """The matrices of one round, cut and activated beforehand: rows and targets, and the rows of lower layers."""

    blocks: list[tuple[Array, Array]]
    below: list[tuple[Array, Array, Array | None]]


def rounds_of(network: Network, clients: list[fg.Client]) -> list[Round]:
    """Return every round of training, all its rows in memory."""
    rounds: list[Round] = []
    for depth in range(network.depth):
        half, blocks, problem = network.truncate(depth), [], network.problem(depth)
        for client in clients:
            for start in range(0, len(client.x), SAMPLES_AT_ONCE):
                part = slice(start, start + SAMPLES_AT_ONCE)
                rows = half.next_problem.layer.rows(half.forward(client.x[part]))
                blocks.append((rows, problem.targets(client.y[part])))
        below = [
            (rows, network.solutions[i], network.problem(i).mixing)
            for i, known in enumerate(rounds)
            for rows, _ in known.blocks
        ]
        rounds.append(Round(blocks, below))
    return rounds


def bare(rounds: list[Round]) -> list[Array]:
    """Return the layers' solutions with the library calls alone: products, syrk, gemm, potrf, potrs."""
    solutions = []
    for round_ in rounds:
        for rows, solution, encoding in round_.below:
            out = rows @ solution
            if encoding is not None:
                out @ encoding
        d, columns = round_.blocks[0][0].shape[1], round_.blocks[0][1].shape[1]
        gram, cross = np.zeros((d, d), order="F"), np.zeros((d, columns), order="F")
        for rows, targets in round_.blocks:
            blas.dsyrk(1.0, rows.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
            blas.dgemm(1.0, rows.T, targets.T, beta=1.0, c=cross, trans_b=1, overwrite_c=1)
        gram[np.diag_indices(d)] += GAMMA
        lower, _ = lapack.dpotrf(gram, lower=1, overwrite_a=1, clean=0)
        solutions.append(lapack.dpotrs(lower, cross, lower=1)[0])
    return solutions


def compare(title: str, stack: str, clients: list[fg.Client]) -> None:
    """Print the ratio for one network; ours also cuts patches, activates, pools, encodes and decodes messages."""
    method = fg.FedACnnL(network=stack, gamma=GAMMA, adaptive=False)
    network = method.fit(clients, classes=CLASSES).model
    rounds = rounds_of(network, clients)
    for ours, theirs in zip(network.solutions, bare(rounds), strict=True):
        assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-8 * np.abs(theirs).max())
    ours, floor = cpu_seconds(lambda: method.fit(clients, classes=CLASSES), lambda: bare(rounds))
    results = Results(title)
    results.note("CPU seconds: ours, bare", f"{ours:.2f}, {floor:.2f}")
    results.at_most("ours / bare BLAS", ours / floor, 1.3)
    results.show()


def wide_convolution(n: int, side: int, channels: int, size: int = 3) -> None:
    """Print the time for a Gram matrix of overlapping windows: without cutting them out, and by `syrk`."""
    shape, rng = (side, side, channels), np.random.default_rng(0)
    layer, x = Convolution(1, size), rng.standard_normal((n, *shape))
    d = layer.fan_in(shape)
    matrix = np.zeros((d, d), order="F")

    def ours() -> Array:
        gram = layer.gram(shape, n)
        gram.add(x)
        return gram.packed()

    def of_patches() -> Array:
        for rows in layer.blocks(x):
            blas.dsyrk(1.0, rows.T, beta=1.0, c=matrix, lower=1, overwrite_c=1)
        return matrix

    assert np.allclose(np.tril(packing.unpack(ours(), d)), np.tril(of_patches()), rtol=1e-9, atol=1e-9 * n)
    least, bare = cpu_seconds(ours, of_patches, repeats=3)
    results = Results(
        f"A convolution's Gram matrix, {n} images of {side} × {side} × {channels}, windows of {size} × {size}"
    )
    results.note("CPU seconds: ours, patches and bare syrk", f"{least:.2f}, {bare:.2f}")
    results.at_most("ours / patches and bare syrk", least / bare, 0.65)
    results.show()


def own_convolution(n: int = 16, side: int = 4, channels: int = 512) -> None:
    """Print the time for a client's own convolution by its few patches, and by all its weights."""
    network = Network("conv:8:3 flatten", (side, side, channels), tuple(range(CLASSES)), 0)
    rng, problem = np.random.default_rng(0), network.next_problem
    x, y = rng.standard_normal((n, side, side, channels)), rng.integers(0, CLASSES, n)
    towards = rng.standard_normal((problem.d, problem.columns))

    def of_weights() -> Array:
        moments = layer_moments(network, x, y, batch=256)
        factor = solve.factor(moments.rows.packed, problem.d, ridge=2500.0, n=moments.rows.n)
        return factor.solve(moments.right_side(problem) + 2500.0 * towards)

    def ours() -> Array:
        return own_layer(network, x, y, batch=256, folds=1).solution(towards, 2500.0)

    assert np.allclose(ours(), of_weights(), rtol=1e-9, atol=1e-9)
    least, whole = cpu_seconds(ours, of_weights, repeats=3)
    results = Results(f"A client's own convolution, {n} images of {side} × {side} × {channels}")
    results.note("CPU seconds: ours, all weights", f"{least:.3f}, {whole:.2f}")
    results.at_least("all weights / ours", whole / least, 100)
    results.show()


def memory() -> None:
    """Print a client's memory for many images against few."""
    network = Network(CONVOLUTIONS, (32, 32, 3), tuple(range(CLASSES)), 0)
    few, many = (
        peak_bytes(lambda client=client: layer_moments(network, client.x, client.y, batch=256))
        for n in (256, 2048)
        for client in make_clients(1, n, (32, 32, 3))
    )
    results = Results("A convolution's memory beyond the data, patches of 32 × 32 images")
    results.note("peak bytes with 256 and 2,048 images", f"{few:,}, {many:,}")
    results.note("bytes of all patches of 2,048 images", f"{2048 * 784 * 75 * 8:,}")
    results.at_most("2,048 images / 256 images", many / few, 1.1)
    results.show()


@dataclass(frozen=True, kw_only=True)
class AsPrinted(fg.FedACnnL):
    """(7) to the letter: batches also shrink back."""

    def _batch(self, before: int, slowness: float, most: int) -> int:
        return super()._batch(1, slowness, most)


class UnevenRoom(Room):
    """Clients one to four times as slow as the quickest: a batch costs seconds, and each of its samples costs some.

    `per_batch` is the share of the fixed cost of batches in a client's first round. Clients do not compute longer: the
    server sees these emulated times, the same in every run.
    """

    per_batch = 1.0

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Pass requests and replies on, and report the emulated time of each reply."""
        asked: dict[str, int] = {}

        def noted() -> Iterator[tuple[str, bytes]]:
            for name, request in requests:
                if step == "summarize":
                    asked[name] = int(wire.decode(request)["payload"]["batch"])
                yield name, request

        for name, answer in super().exchange(step, noted()):
            if name in asked:
                slowness, n = 1 + int(name.rpartition("-")[2]) % 4, self.sides[name].n
                batches = ceil(n / asked[name]) / ceil(n / SMALL_BATCH)
                seconds = slowness * (self.per_batch * batches + 1 - self.per_batch)
                self.spent[name] = Spent(seconds, seconds)
            yield name, answer


def idle_seconds(method: fg.FedACnnL, clients: list[fg.Client], per_batch: float) -> float:
    """Return the total time that uneven clients wait for the slowest."""
    with UnevenRoom(method, clients, fg.InProcess()) as room:
        room.per_batch = per_batch
        fit = session.run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    return sum(account["idle"] for account in fit.timing.values())


def cost_of_batches(d: int, n: int, size: int) -> float:
    """Return the share of a client's time on this machine, with a batch size, that a single batch would save."""
    [client] = make_clients(1, n, (d,))
    network = Network(DNN, (d,), tuple(range(CLASSES)), 0)
    small, whole = cpu_seconds(
        *(lambda batch=batch: layer_moments(network, client.x, client.y, batch=batch) for batch in (size, n))
    )
    return max(0.0, 1 - whole / small)


def stragglers() -> None:
    """Print the waiting time for the slowest client, with equal batches and with (7), by the cost of a batch."""
    clients = make_clients(12, 12 * 1000, (60,))
    results = Results(f"Idle time of 12 clients, one to four times as slow, batches of {SMALL_BATCH}: less with (7)")
    usual = fg.FedACnnL(batch=SMALL_BATCH, adaptive=False)
    saved = {}
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        without = idle_seconds(usual, clients, share)
        printed, ours = (
            1 - idle_seconds(method, clients, share) / without
            for method in (AsPrinted(batch=SMALL_BATCH), fg.FedACnnL(batch=SMALL_BATCH))
        )
        saved[share] = ours
        results.note(
            f"{share:.0%} of the time is by batch: as printed, never shrinking", f"{printed:.0%} less, {ours:.0%} less"
        )
    for d, n in ((784, 700), (60, 200)):
        parts = [f"{cost_of_batches(d, n, size):.0%}" for size in (SMALL_BATCH, min(n, fg.FedACnnL().batch))]
        results.note(f"by batch on this machine, {n} samples of {d}: batches of 20, of 256 or all", ", ".join(parts))
    results.at_least("less by (7), all time by batch", saved[1.0], 0.6)
    results.at_most("less by (7), all time by sample", saved[0.0], 0.01)
    results.show()


def against_fedavg(most_rounds: int = 60) -> None:
    """Print the CPU time to train a network layer by layer, and by FedAvg until it is as good on test samples."""
    data = load_features("mnist", backbone="images")
    clients = fg.make_clients(data, fg.partition.dirichlet(data.y, clients=100, alpha=0.1, seed=0))
    ours = fg.FedACnnL(network=DNN).fit(clients, classes=data.classes)
    theirs = fg.FedAvg(network="mlp:128:64", rounds=most_rounds).fit(clients, classes=data.classes)
    reached = [i for i, one in enumerate(theirs.rounds, start=1) if one.pooled >= ours.evaluation.pooled]
    rounds = reached[0] if reached else most_rounds
    spent = sum(theirs.cpu_seconds.values()) * rounds / most_rounds
    results = Results("MNIST, 100 clients, Dirichlet(0.1), DNN [128, 64]: as good as FedACnnL")
    results.note(
        "FedACnnL: pooled accuracy, CPU seconds", f"{ours.evaluation.pooled:.4f}, {sum(ours.cpu_seconds.values()):.1f}"
    )
    told = f"round {rounds}" if reached else f"not within {most_rounds} rounds ({theirs.rounds[-1].pooled:.4f})"
    results.note("FedAvg: as good in, CPU seconds until then", f"{told}, {spent:.1f}")
    results.at_least("share of the time saved", 1 - sum(ours.cpu_seconds.values()) / spent, 0.83)
    results.show()


def main() -> None:
    compare("FedACnnL, DNN [128, 64], 50 clients, d = 784, 50,000 samples", DNN, make_clients(50, 50_000, (784,)))
    compare("FedACnnL, two convolutions, 5 clients, 500 images", CONVOLUTIONS, make_clients(5, 500, (32, 32, 3)))
    wide_convolution(64, 14, 512)
    wide_convolution(256, 6, 1024)
    own_convolution()
    memory()
    stragglers()
    against_fedavg()
