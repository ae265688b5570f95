"""Payloads ↔ bytes: safetensors for the arrays, JSON in its header for the rest, never pickle.

A payload is None, a bool, number, string or array, a list or dict of payloads, or a message type. A dataclass becomes
one by `@message` (see `derive`), anything else by `register_message`. Arrays of a message declare dtype and shape;
schema version, dtype and shape are checked on every decoding. What another party sent
(`decode(..., sender="hospital-3")`) is also checked for finite values, and by the type's own `check`; a failure names
the sender, the field and the value.

Bytes that leave this process are sealed with a SHA-256 digest of everything else in them, so that no bit can change
unnoticed. What decoding costs is bounded by a small multiple of the message's own size: every array is a view of the
message, stands in it once and is referred to once, and an array without elements cannot claim to be large.

`container` has the bytes, `tree` what stands in their header, `messages` and `derive` the types.

>>> import numpy as np
>>> data = encode({"step": 3, "w": np.eye(2)})
>>> decode(data)["w"]
array([[1., 0.],
       [0., 1.]])
"""

from fedgram.core.errors import FedgramError, RefusedMessage
from fedgram.core.wire import container
from fedgram.core.wire.container import AnyArray
from fedgram.core.wire.derive import Later, Shape, message
from fedgram.core.wire.messages import Field, Message, Payload, register_message, when_unknown
from fedgram.core.wire.tree import Reader, to_tree

__all__ = [
    "Field",
    "Later",
    "Message",
    "Payload",
    "Shape",
    "decode",
    "encode",
    "message",
    "register_message",
    "when_unknown",
]


def encode(payload: Payload, *, sealed: bool = True) -> bytes:
    """Return the payload as bytes, with their digest in the header.

    Bytes that never leave this process need none: `sealed=False` saves the time, and they are as long.
    """
    arrays: dict[str, AnyArray] = {}
    return container.write(to_tree(payload, "", arrays), arrays, sealed=sealed)


def decode(data: bytes, *, sender: str | None = None, finite: bool = False, sealed: bool = True) -> Payload:
    """Return the payload of `data`.

    With a `sender` the bytes come from another party: digest and contents are checked too, and an error names the
    sender. With `finite` values that are not finite are refused from anybody. `sealed=False` is for bytes whose
    digest is elsewhere and has been checked.
    """
    try:
        if sender is not None and sealed:
            container.check_digest(data)
        tree, arrays = container.read(data)
        payload = Reader(arrays, suspicious=sender is not None, finite=finite or sender is not None).read(tree, None)
        if arrays:
            raise RefusedMessage(f"array {next(iter(arrays))[:60]!r} belongs to no field")
        return payload
    except Exception as error:
        if sender is None and not isinstance(error, FedgramError):
            raise
        # Whatever another party's message makes go wrong, running out of memory included, is that message's fault.
        why = str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"
        raise RefusedMessage(f"message from {sender!r} refused: {why}" if sender else why) from error
