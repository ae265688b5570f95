"""How many threads compute: those of BLAS inside a client's step, and workers for clients side by side.

BLAS' own threads pay off where a few clients have much to do each. For many clients, one BLAS thread each and as many
clients at once is quicker, and for small steps anything but one thread is a loss. A limit is never above what the
environment (`OPENBLAS_NUM_THREADS` and the like) allows unless a number is asked for.
"""

import math
from collections.abc import Sequence

from fedgram.data.client import Client

# Multiplications below which a step takes about a millisecond: more threads would not make it shorter.
SMALL = 2e7


def many_small_enough(clients: Sequence[Client], threads: int) -> bool:
    """Say whether one BLAS thread per client serves best, by the clients' sizes alone.

    So it is where steps are small, and where no client has more than the fair share of one of `threads` workers.
    """
    sizes = [len(client.x) for client in clients]
    largest, d = max(sizes), max(math.prod(client.x.shape[1:]) for client in clients)
    return largest * d * min(largest, d) <= SMALL or largest * threads <= sum(sizes)
