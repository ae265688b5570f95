"""A summary of summaries: what a region adds up, with the digests of all that is in it. Trees may have any depth."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import Mismatch, RefusedMessage
from fedgram.core.hashing import hash_bytes
from fedgram.exchange.files import File
from fedgram.exchange.header import is_time, party_name
from fedgram.exchange.records import Leaf
from fedgram.exchange.sums import Sum
from fedgram.moments.moments import Moments

_HASH = re.compile("[0-9a-f]{64}")


@wire.register_message
@dataclass(frozen=True, eq=False)
class Combined:
    """A sum in fixed point, and the summaries that it is of. Limbs travel, not floats, so nothing is rounded."""

    total: Sum
    leaves: Sequence[Leaf]

    wire_name: ClassVar[str] = "exchange-combined"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {"leaves": wire.Field("uint8", ("bytes",))}

    def to_fields(self) -> dict[str, Any]:
        """Take it apart for the wire; the list is an array of bytes, since a header has no room for a million names."""
        text = json.dumps([astuple(leaf) for leaf in self.leaves], separators=(",", ":"))
        return {"total": self.total, "leaves": np.frombuffer(text.encode(), dtype=np.uint8)}

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> Self:
        """Put it together from the wire."""
        if not isinstance(found["total"], Sum):
            raise Mismatch("a combined file holds a sum of moments")
        try:
            listed = json.loads(found["leaves"].tobytes())
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list):
            raise RefusedMessage("a combined file must list the summaries in it")
        return cls(found["total"], [_leaf(each) for each in listed])

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


def _leaf(found: Any) -> Leaf:
    wanted = [int if field.name == "samples" else str for field in fields(Leaf)]
    if not isinstance(found, list) or [type(value) for value in found] != wanted:
        raise RefusedMessage(f"a combined file lists {found!r:.80} where a summary should be")
    leaf = Leaf(*found)
    party_name(leaf.party)
    hashes = all(_HASH.fullmatch(text) for text in (leaf.digest, leaf.content))
    if leaf.samples < 0 or not is_time(leaf.created) or not hashes:
        raise RefusedMessage(f"a combined file lists a summary of {leaf.party!r} that cannot be: {found!r:.120}")
    return leaf
