"""Messages as Flower carries them: bytes of `wire` in Flower's records, pulled piece by piece and within bounds.

The bytes travel as one array, because Flower sends arrays in pieces and a message may be larger than a piece.

A message consists of objects that name others by their hashes. Flower checks that an object is what its hash says, and
believes the rest: how large a message is, how often an array repeats a piece, and that the parts of a message ever
arrive. Here all three are bounded, for the replies that a server pulls and for the requests that a node receives.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from secrets import token_hex
from typing import Any, Literal, TypeVar

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedgram.core.errors import FedgramError, RefusedMessage

NAME = "query.name"  # asks for the name of a node
STEP = "query.step"  # asks a node to perform a step
_BODY, _NOTE, _COST, _SEAL = "fedgram", "note", "cost", "seal"
LARGEST = 1 << 31  # bytes of a message: Flower has no room for more
SMALL = 1 << 24  # bytes of an answer with a node's name, or with a description of its data
_DESCRIPTIONS = 1 << 20  # bytes of a message beside the pieces of its arrays; ours have a few hundred
_OBJECTS = 4096  # in a message; a piece of an array has 5 MB
T = TypeVar("T", bound=InflatableObject)
Fetch = Callable[[str], bytes]


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


def sealed(content: RecordDict) -> RecordDict:
    """Return the content with random bytes, so that no two messages are equal.

    Flower's ids of messages are hashes of them, and a node may send a reply to any message whose id it knows. Without
    something random a node could work out the ids of messages to other nodes, and answer in their place.
    """
    return RecordDict({**content, _SEAL: ConfigRecord({"random": token_hex(16)})})


def body(message: Message) -> bytes:
    """Return the bytes of a message; raise for a message that fedgram never sends."""
    try:
        return unpack(message.content.array_records[_BODY])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RefusedMessage(f"a message that is not fedgram's: {error!r}") from error


def note(message: Message) -> dict[str, str]:
    """Return the note of a message."""
    return {key: str(value) for key, value in message.content.config_records[_NOTE].items()}


def cost(message: Message, which: Literal["seconds", "wall"]) -> float:
    """Return the CPU time or wall-clock time of the answer, as the node states it; 0 if it is not a time."""
    costs = message.content.metric_records.get(_COST)
    value = None if costs is None else costs.get(which)
    return value if isinstance(value, float) and 0 <= value < inf else 0.0


def size(message: Message) -> int:
    """Return the bytes of a message as Flower counts them, as in its `message_size_mod`; raise if it has no size."""
    try:
        return sum(record.count_bytes() for record in message.content.values()) if message.has_content() else 0
    except (ValueError, TypeError, IndexError, AttributeError) as error:  # Flower cannot count empty texts and lists
        raise RefusedMessage(f"a message that is not fedgram's: {error!r}") from error


@dataclass
class Upload:
    """A reply that its node has announced, with the ids of its objects: all are at the SuperLink, or on their way."""

    message: str
    objects: list[str]
    missing: str = ""  # the object that was not there at the last look

    def pull(self, fetch: Fetch, most: int) -> Message | None:
        """Return the message, None while a part of it is on its way; refuse a message that is too large or broken."""
        if len(self.objects) > _OBJECTS:
            raise RefusedMessage(f"a message of {len(self.objects)} parts: expected at most {_OBJECTS}")
        contents, size = dict[str, bytes](), 0
        try:
            if self.missing:
                fetch(self.missing)
            for name in reversed(self.objects):  # a node sends the message itself last
                self.missing = name
                contents[name] = fetch(name)
                size += len(contents[name])
                _check_size(size, most)
        except ObjectUnavailableError:
            return None
        return inflated(self.message, contents, most, Message)


def arrived(grid: HttpGrid, sent: list[str]) -> Iterator[tuple[str, Upload]]:
    """Yield the replies that have been announced since the last call, with the messages that they reply to.

    The SuperLink names the message that a reply answers, and has compared it with the node that was asked. The reply
    itself could name any message.
    """
    response = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=sent))
    for reply, tree in zip(response.messages_list, response.message_object_trees, strict=True):
        yield reply.metadata.reply_to_message_id, Upload(reply.metadata.message_id, _objects(tree))


def pulled(grid: HttpGrid, upload: Upload, most: int) -> Message | FedgramError | None:
    """Return a reply of at most so many bytes, or the error in its place; None while a part of it is on its way."""
    run, client = grid.run.run_id, grid._runtime_client
    found: Message | FedgramError | None
    try:
        found = upload.pull(make_pull_object_fn_protobuf(client.PullObject, grid.node, run), most)
    except httpx.HTTPError:  # the SuperLink cannot be reached: that is not the node's failure
        raise
    except FedgramError as error:
        found = error
    except Exception as error:
        found = RefusedMessage(f"a message that Flower cannot read: {type(error).__name__}")
    if found is not None:
        received = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=upload.message)
        client.ConfirmMessageReceived(received)
    return found


def pull_bounded(object_ids: list[str], pull_object_fn: Fetch, **options: Any) -> dict[str, bytes]:
    """Return the result of Flower's `pull_objects` with the same parameters; raise beyond the size of a message."""
    size = 0

    def counted(name: str) -> bytes:
        nonlocal size
        content = pull_object_fn(name)
        size += len(content)
        _check_size(size, LARGEST)
        return content

    return pull_objects(object_ids, counted, **options)


def pull_and_inflate(
    object_tree: ObjectTree,
    pull_object_fn: Fetch,
    confirm_object_received_fn: Callable[[str], None],
    *,
    return_type: type[T],
    **options: Any,
) -> T:
    """Return the result of Flower's `pull_and_inflate_object_from_tree`, for a message within bounds."""
    contents = pull_bounded(_objects(object_tree), pull_object_fn, **options)
    confirm_object_received_fn(object_tree.object_id)
    return inflated(object_tree.object_id, contents, LARGEST, return_type)


def inflated(name: str, contents: dict[str, bytes], most: int, kind: type[T]) -> T:
    """Return an object that is made of contents; refuse contents that would grow beyond so many bytes."""
    _check_size(_inflated_size(contents), most)
    found = inflate_object_from_contents(name, contents)
    if not isinstance(found, kind):
        raise RefusedMessage(f"expected a {kind.__name__}, got a {type(found).__name__}")
    return found


def _objects(tree: ObjectTree) -> list[str]:
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def _inflated_size(contents: Mapping[str, bytes]) -> int:
    """Return the bytes of all arrays that contents make: an array may name the same piece many times."""
    descriptions, size = 0, 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == ArrayChunk.__qualname__:
            continue
        descriptions += len(content)
        if descriptions > _DESCRIPTIONS:
            raise RefusedMessage(f"a message with more than {_DESCRIPTIONS} bytes beside its arrays")
        if kind == Array.__qualname__:
            pieces = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            size += sum(len(contents[children[piece]]) for piece in pieces)
    return size


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise RefusedMessage(f"a message of {size} bytes or more: expected at most {most}")
