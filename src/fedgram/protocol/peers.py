"""Comparison of the clients' replies to a step by size: a reply that is far larger than most is refused.

A server cannot say how large the weights of a trained network may be: that depends on samples that it does not see. But
clients that begin at the same weights and train in the same way end with numbers of about the same size. So a reply is
refused whose largest number is more than `FAR` times that of the middle reply. Numbers up to 1 count as 1.

The first three replies to a step are held back until they can be compared. Later ones are compared at once, with those
before them in this round and in earlier ones, so the server never has to keep them. A client that sends too much can
tip the scales only with others like it; fewer than three replies are not compared.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from statistics import median_low
from typing import TypeAlias

from fedgram.core.errors import FedgramError, RefusedMessage
from fedgram.protocol.replies import Size
from fedgram.protocol.transport import Reply

FEWEST = 3  # replies of which one is in the middle
LAST = 99  # replies that are remembered, as sizes

Sized: TypeAlias = tuple[Reply, Mapping[str, Size]]  # a reply, and the sizes of its parts


class Peers:
    """The sizes of the latest replies of a run, by step and part."""

    def __init__(self) -> None:
        self._latest: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=LAST))

    def passing(self, step: str, replies: Iterable[Sized], failed: dict[str, FedgramError]) -> Iterator[Reply]:
        """Pass replies to a step on, without those that are far larger than most; these are entered into `failed`."""
        held: list[Sized] = []
        for reply, sizes in replies:
            held.append((reply, sizes))
            for where, size in sizes.items():
                self._latest[step, where].append(size.largest)
            if all(len(self._latest[step, where]) >= FEWEST for where in sizes):
                yield from self._compared(step, held, failed)
                held = []
        yield from self._compared(step, held, failed)

    def _compared(self, step: str, held: Iterable[Sized], failed: dict[str, FedgramError]) -> Iterator[Reply]:
        """Yield the replies that are not too large, and forget the sizes of the others."""
        passed, refused = [], []
        for reply, sizes in held:
            errors = [error for where, size in sizes.items() if (error := self._error(step, where, size)) is not None]
            if errors:
                failed[reply.client] = errors[0]
                refused.append(sizes)
            else:
                passed.append(reply)
        for sizes in refused:
            for where, size in sizes.items():
                with suppress(ValueError):  # it may be among the latest no more
                    self._latest[step, where].remove(size.largest)
        yield from passed

    def _error(self, step: str, where: str, size: Size) -> RefusedMessage | None:
        latest = self._latest[step, where]
        usual = max(median_low(latest), 1.0)
        if len(latest) < FEWEST or size.largest <= size.times * usual:
            return None
        return RefusedMessage(
            f"{where} must be at most {size.times:.3g} times as large as most clients' replies to this step, "
            f"got {size.largest / usual:.3g} times; its samples may have other units, or its training has diverged"
        )
