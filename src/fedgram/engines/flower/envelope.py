"""Bytes of `wire` ↔ Flower's records.

The bytes travel as one array, because Flower sends arrays in pieces and a message may be larger than a piece.
"""

from collections.abc import Mapping
from math import inf

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedgram.core.errors import RefusedMessage

NAME = "query.name"  # who are you?
STEP = "query.step"  # perform this step
_BODY, _NOTE, _COST = "fedgram", "note", "cost"


def action(kind: str) -> str:
    """Return the name of the handler of a kind of message."""
    return kind.partition(".")[2]


def pack(data: bytes) -> ArrayRecord:
    """Return bytes as a record."""
    return ArrayRecord({"wire": Array(dtype="uint8", shape=(len(data),), stype="fedgram.core.wire", data=data)})


def unpack(record: ArrayRecord) -> bytes:
    """Return the bytes of a record."""
    return record["wire"].data


def letter(
    data: bytes, *, note: Mapping[str, str] | None = None, seconds: float = 0.0, wall: float = 0.0
) -> RecordDict:
    """Return the content of a message: the bytes, a note for the node, CPU and wall time that the answer took."""
    content = RecordDict({_BODY: pack(data)})
    content[_NOTE] = ConfigRecord(dict(note or {}))
    content[_COST] = MetricRecord({"seconds": seconds, "wall": wall})
    return content


def body(message: Message) -> bytes:
    """Return the bytes of a message; refuse what we never send."""
    try:
        return unpack(message.content.array_records[_BODY])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RefusedMessage(f"a message that is not fedgram's: {error!r}") from error


def note(message: Message) -> dict[str, str]:
    """Return the note of a message."""
    return {key: str(value) for key, value in message.content.config_records[_NOTE].items()}


def seconds(message: Message) -> float:
    """Return the CPU time that the answer took; what a stranger sends in its place counts as none."""
    return _cost(message, "seconds")


def wall(message: Message) -> float:
    """Return the time on the wall that the answer took, as the node says."""
    return _cost(message, "wall")


def _cost(message: Message, which: str) -> float:
    cost = message.content.metric_records.get(_COST)
    value = None if cost is None else cost.get(which)
    return value if isinstance(value, float) and 0 <= value < inf else 0.0


def size(message: Message) -> int:
    """Return the bytes of a message as Flower counts them, as in its `message_size_mod`."""
    return sum(record.count_bytes() for record in message.content.values()) if message.has_content() else 0
