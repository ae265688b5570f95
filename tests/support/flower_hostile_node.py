"""A SuperNode that attacks the receiver of its replies: `python -m support.flower_hostile_node KIND OPTIONS`.

Names are answered honestly, so that the run begins. Then a `silent` node announces a reply and sends no part of it, a
`broken` one sends what Flower cannot read, and a `vast` one an array that names one piece of 5 MB 100,000 times.
"""

import json
import sys

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from fedgram.engines.flower import flower_messages

honest = start_client_internal._push_messages


def made(kind, body, *children):
    """Return an object of Flower's, and its place in a tree."""
    content = f"{kind} {','.join(child.object_id for child in children)} {len(body)}".encode() + b"\x00" + body
    return content, ObjectTree(object_id=get_object_id(content), children=children)


def vast():
    piece, piece_tree = made("ArrayChunk", b"\x00" * 5_000_000)
    told = {"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": [0] * 100_000}
    array, array_tree = made("Array", json.dumps(told).encode(), piece_tree)
    arrays, arrays_tree = made("ArrayRecord", json.dumps({"wire": array_tree.object_id}).encode(), array_tree)
    content, tree = made("RecordDict", json.dumps({"fedgram": arrays_tree.object_id}).encode(), arrays_tree)
    message, whole = made("Message", b"", tree)
    return [piece, array, arrays, content, message], whole


def broken():
    message, whole = made("Message", b"garbage")
    return [message], whole


def push(kind):
    def push_messages(state, object_store, send, push_object):
        def sending(message, tree, elapsed):
            if message.metadata.message_type != flower_messages.STEP:
                return send(message, tree, elapsed)
            if kind == "silent":
                send(message, tree, elapsed)
                return set(), ""
            contents, whole = {"vast": vast, "broken": broken}[kind]()
            message.metadata.__dict__["_message_id"] = whole.object_id
            _, session = send(message, whole, elapsed)
            for content in contents:
                push_object(message.metadata.run_id, session, get_object_id(content), content)
            return set(), ""

        honest(state=state, object_store=object_store, send=sending, push_object=push_object)

    return push_messages


if __name__ == "__main__":
    start_client_internal._push_messages = push(sys.argv.pop(1))
    flower_supernode()
