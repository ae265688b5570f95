"""Combined files: the sum of a region's summaries, with their digests. Trees of regions may have any depth."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.container import AnyArray
from fedgram.core.errors import Mismatch, RefusedMessage
from fedgram.core.hashing import hash_bytes
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.format.fgm import File
from fedgram.exchange.format.header import MOST_NAME, party_name, seconds, time_of
from fedgram.exchange.store.index import Leaf
from fedgram.moments.moments import Moments

if TYPE_CHECKING:
    from fedgram.exchange.store.study_store import Store

MOST_LEAVES = 1 << 17  # summaries in a combined file
LEAF_BYTES = 2 * 32 + 2 * 8 + 4 * MOST_NAME + 1  # of the largest leaf
LAST = 253_402_300_799  # the last second of the year 9999


@wire.register_message
@dataclass(frozen=True, eq=False)
class Combined:
    """A sum in fixed point and the summaries in it. Its limbs travel, not floats, so nothing is rounded.

    The summaries travel as arrays with a row for each, so that a file cannot take far more memory than it has bytes.
    """

    total: Sum
    leaves: Sequence[Leaf]

    wire_name: ClassVar[str] = "exchange-combined"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {
        "digests": wire.Field("uint8", ("leaves", 32)),
        "contents": wire.Field("uint8", ("leaves", 32)),
        "samples": wire.Field("int64", ("leaves",)),
        "created": wire.Field("int64", ("leaves",)),
        "parties": wire.Field("uint8", ("bytes",)),
    }

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire; each name ends with a line feed, which names never contain."""
        names = "".join(f"{leaf.party}\n" for leaf in self.leaves)
        times = [round(seconds(leaf.created)) for leaf in self.leaves]
        return {
            "total": self.total,
            "digests": _from_hexadecimal(leaf.digest for leaf in self.leaves),
            "contents": _from_hexadecimal(leaf.content for leaf in self.leaves),
            "samples": np.array([leaf.samples for leaf in self.leaves], dtype=np.int64),
            "created": np.array(times, dtype=np.int64),
            "parties": np.frombuffer(names.encode(), dtype=np.uint8),
        }

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> Self:
        """Return the combined file of these fields from the wire."""
        if not isinstance(found["total"], Sum):
            raise Mismatch(f"field 'total': expected a sum of moments, got a {type(found['total']).__name__}")
        digests, contents = found["digests"], found["contents"]
        samples, created, parties = found["samples"], found["created"], found["parties"]
        count, most = len(samples), min(found["total"].n, MOST_LEAVES)
        if count > most:
            raise RefusedMessage(f"summaries in it: expected at most {most:,}, got {count:,}")
        if len(parties) > LEAF_BYTES * count or int(np.count_nonzero(parties == ord("\n"))) != count:
            raise RefusedMessage(f"names: expected one line for each of {count:,} summaries")
        if count and (samples.min() < 1 or created.min() < 0 or created.max() > LAST):
            raise RefusedMessage("summaries in it: expected samples, and a time of the years 1970 to 9999, of each")
        try:
            names = parties.tobytes().decode().split("\n")[:count]
        except UnicodeDecodeError as error:
            raise RefusedMessage(f"names: expected UTF-8 ({error.reason})") from None
        rows = zip(digests, names, contents, samples.tolist(), created.tolist(), strict=True)
        leaves = [Leaf(d.tobytes().hex(), party_name(p), c.tobytes().hex(), n, time_of(t)) for d, p, c, n, t in rows]
        return cls(found["total"], leaves)

    def check(self) -> None:
        """Raise if the summaries do not add up to the sum's samples, or are listed twice."""
        if sum(leaf.samples for leaf in self.leaves) != self.total.n:
            raise Mismatch(f"its summaries: expected the {self.total.n} samples of the sum, got others")
        for name in ("digest", "party", "content"):
            seen: set[str] = set()
            for leaf in self.leaves:
                if getattr(leaf, name) in seen:
                    raise Mismatch(f"it lists party {leaf.party!r} or its samples twice")
                seen.add(getattr(leaf, name))


def leaves_of(file: File) -> list[Leaf]:
    """Return the parties' summaries in a file: the file itself, or those that a combined file lists."""
    if isinstance(file.payload, Combined):
        return list(file.payload.leaves)
    header, moments = file.header, file.holding(Moments)
    return [Leaf(file.digest, header.party, content_of(moments), moments.n, header.created)]


def part_of(file: File) -> Moments | Sum:
    """Return the part that a file adds to the total."""
    return file.payload.total if isinstance(file.payload, Combined) else file.holding(Moments)


def parts_of(
    store: "Store", progress: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[str, Moments, Mapping[str, int]]]:
    """Yield each contribution's name, its moments, and its rows that were left out by the column that they lack.

    Each file is read once, and `progress` is called with 1 after it. A combined file is one contribution.
    """
    for each in store.contributions():
        file = store.objects.read(each.digest)
        part = part_of(file)
        yield each.party, part if isinstance(part, Moments) else part.moments(), file.dropped
        progress(1)


def sum_of(file: File) -> Sum:
    """Return the part that a file adds to the total, in fixed point."""
    part = part_of(file)
    return part if isinstance(part, Sum) else Sum.of(part)


def content_of(moments: Moments) -> str:
    """Return a hash of the class counts and class sums, by which the same samples are recognised in any file.

    These are few numbers to hash, and other samples hardly have the same to the last bit.
    """
    arrays = moments.counts, moments.cross.T
    return hash_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)


def _from_hexadecimal(hashes: Iterable[str]) -> AnyArray:
    """Return SHA-256 hashes as an array (k, 32)."""
    return np.frombuffer(bytes.fromhex("".join(hashes)), dtype=np.uint8).reshape(-1, 32)
