"""A summary of summaries: what a region adds up, with the digests of all that is in it. Trees may have any depth."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import Mismatch, RefusedMessage
from fedgram.core.hashing import hash_bytes
from fedgram.core.wire.container import AnyArray
from fedgram.exchange.files import File
from fedgram.exchange.header import MOST_NAME, party_name, seconds, time_of
from fedgram.exchange.records import Leaf
from fedgram.exchange.sums import Sum
from fedgram.moments.moments import Moments

MOST_LEAVES = 1 << 17  # summaries in a combined file
LEAF_BYTES = 2 * 32 + 2 * 8 + 4 * MOST_NAME + 1  # of the largest
LAST = 253_402_300_799  # the last second of the year 9999


@wire.register_message
@dataclass(frozen=True, eq=False)
class Combined:
    """A sum in fixed point, and the summaries that it is of. Limbs travel, not floats, so nothing is rounded.

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
        """Take it apart for the wire; names end with a line, since no party's name has more than one."""
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
        """Put it together from the wire."""
        if not isinstance(found["total"], Sum):
            raise Mismatch("a combined file holds a sum of moments")
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
        """Refuse leaves that do not make up the sum, or are named twice."""
        if sum(leaf.samples for leaf in self.leaves) != self.total.n:
            raise Mismatch(f"its summaries do not have the {self.total.n} samples of the sum")
        for name in ("digest", "party", "content"):
            seen: set[str] = set()
            for leaf in self.leaves:
                if getattr(leaf, name) in seen:
                    raise Mismatch(f"it lists party {leaf.party!r} or its samples twice")
                seen.add(getattr(leaf, name))


def leaves_of(file: File) -> list[Leaf]:
    """Return the parties' own summaries in a file, itself or those that a combined file lists."""
    if isinstance(file.payload, Combined):
        return list(file.payload.leaves)
    header, moments = file.header, file.holding(Moments)
    return [Leaf(file.digest, header.party, content_of(moments), moments.n, header.created)]


def part_of(file: File) -> Moments | Sum:
    """Return what a file adds to the total."""
    return file.payload.total if isinstance(file.payload, Combined) else file.holding(Moments)


def sum_of(file: File) -> Sum:
    """Return what a file adds to the total, in fixed point."""
    part = part_of(file)
    return part if isinstance(part, Sum) else Sum.of(part)


def content_of(moments: Moments) -> str:
    """Return what samples are known again by, whoever sends them: a hash of the class counts and class sums.

    These are few numbers to hash, and other samples hardly have the same ones to the last bit.
    """
    arrays = moments.counts, moments.cross.T
    return hash_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)


def _from_hexadecimal(hashes: Iterable[str]) -> AnyArray:
    """Return SHA-256 hashes as an array (k, 32)."""
    return np.frombuffer(bytes.fromhex("".join(hashes)), dtype=np.uint8).reshape(-1, 32)
