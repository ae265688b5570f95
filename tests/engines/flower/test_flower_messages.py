"""A SuperLink's messages are bounded: the replies that a server pulls, and the requests to a node.

Flower's own HTTP grid is given a SuperLink that answers in this process.
"""

import json
import zipfile
from inspect import signature
from io import BytesIO
from time import monotonic
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree as pull_and_inflate_theirs,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedgram.core.errors import FedgramError, RefusedMessage
from fedgram.engines.flower import flower_messages, grid, supernode
from fedgram.engines.flower.config import App
from fedgram.engines.flower.grid import GridTransport, Post

RUN = 7


class SuperLink:
    """Keeps a node's messages: replies as Flower has them, with the trees of their objects, and the objects."""

    def __init__(self):
        self.objects, self.replies, self.confirmed = {}, [], []

    def PullMessages(self, request):  # noqa: N802
        response = PullAppMessagesResponse()
        for asked in request.message_ids:
            for proto, tree, objects in self.replies:
                if proto.metadata.reply_to_message_id == asked:
                    response.messages_list.append(proto)
                    response.message_object_trees.append(tree)
                    self.objects |= objects
        self.replies = []
        return response

    def PullObject(self, request):  # noqa: N802
        content = self.objects.get(request.object_id)
        if isinstance(content, Exception):
            raise content
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def lab():
    """A store of messages, and a function with which node 1 sends a spoilt message and returns the outcome."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1  # as in a process of Flower's
    link, http = SuperLink(), HttpGrid(token="t")
    http._client = link
    http.set_run(Run.create_empty(RUN))
    post = Post(http, timeout=5.0)

    def send(reply, *, spoil=lambda objects, tree: None, to=None):
        request = Message(flower_messages.letter(b"?"), 1, flower_messages.STEP)
        request.metadata.__dict__.update(_message_id="f" * 64, _run_id=RUN, _src_node_id=1)
        post._waiting["f" * 64] = grid._Asked(1, monotonic() + 5, flower_messages.LARGEST)
        message = reply(request)
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        spoil(objects, tree)
        proto = message_to_proto(remove_content_from_message(message))
        proto.metadata.reply_to_message_id = to or proto.metadata.reply_to_message_id
        link.replies.append((proto, tree, objects))
        return list(post.collect())

    return SimpleNamespace(link=link, post=post, send=send)


def honest(request):
    return Message(flower_messages.letter(b"an answer"), reply_to=request)


def replaced(objects, tree, name, content):
    """Replace an object's content, with its right hash, as a forger would; return the new id."""
    new = get_object_id(content)
    del objects[name]
    objects[new] = content
    for each in iterate_object_tree(tree):
        if each.object_id == name:
            each.object_id = new
    for holder, holding in list(objects.items()):
        if name.encode() in holding:
            replaced(objects, tree, holder, holding.replace(name.encode(), new.encode()))
    return new


def of_kind(objects, kind):
    return next(name for name, content in objects.items() if content.startswith(kind.encode() + b" "))


def repeated(objects, tree):
    """An array that names its one piece a million times: nine bytes become nine million, or five MB five terabytes."""
    name = of_kind(objects, "Array")
    head, _, body = objects[name].partition(b"\x00")
    told = json.loads(body) | {"arraychunk_ids": [0] * 10**5}
    new = json.dumps(told).encode()
    replaced(objects, tree, name, head.rpartition(b" ")[0] + b" %d" % len(new) + b"\x00" + new)


def broken(objects, tree):
    name = of_kind(objects, "MetricRecord")
    replaced(objects, tree, name, b"MetricRecord  7\x00garbage")


def verbose(objects, tree):
    name = of_kind(objects, "MetricRecord")
    replaced(objects, tree, name, b"MetricRecord  %d\x00" % (2 << 20) + b" " * (2 << 20))


def many(objects, tree):
    tree.children.extend(ObjectTree(object_id=f"{k:064x}") for k in range(5000))


def test_an_honest_reply_arrives(lab):
    [(node, reply)] = lab.send(honest)
    assert (node, flower_messages.body(reply)) == (1, b"an answer")
    assert len(lab.link.confirmed) == 1
    assert not len(lab.post)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (broken, "a message that Flower cannot read"),
        (repeated, "a message of 2300000 bytes or more"),
        (verbose, "bytes or more: expected at most"),
        (many, "parts: expected at most 4096"),
    ],
)
def test_a_reply_that_cannot_be_read_or_is_too_large_is_its_nodes_failure(lab, spoil, told, monkeypatch):
    """Flower raises an error of its own, which ended the run for all, or takes memory without end."""
    monkeypatch.setattr(flower_messages, "LARGEST", 500_000)
    [(node, refused)] = lab.send(honest, spoil=spoil)
    assert node == 1
    assert isinstance(refused, RefusedMessage)
    assert told in str(refused)
    assert not len(lab.post)
    assert len(lab.link.confirmed) == 1, "the SuperLink need not keep it"


def test_much_beside_the_arrays_is_refused(lab):
    [(_, refused)] = lab.send(honest, spoil=verbose)
    assert "a message with more than 1048576 bytes beside its arrays" in str(refused)


def test_something_else_than_a_message_is_refused(lab):
    content = flower_messages.letter(b"an answer")
    objects = {name: each.deflate() for name, each in get_all_nested_objects(content).items()}
    with pytest.raises(RefusedMessage, match="expected a Message, got a RecordDict"):
        flower_messages.inflated(content.object_id, objects, flower_messages.LARGEST, Message)


def test_a_node_that_never_sends_the_rest_keeps_nobody_waiting(lab):
    """Flower's grid waited for it, up to two hours, and for nothing else."""
    begun, kept = monotonic(), {}

    def half(objects, tree):
        kept.update(objects)
        for name in objects:
            objects[name] = b""

    assert lab.send(honest, spoil=half) == []
    assert len(lab.post) == 1
    assert monotonic() - begun < 1
    last = next(iter(kept))
    lab.link.objects |= kept | {last: b""}
    assert list(lab.post.collect()) == []
    lab.link.objects |= kept
    [(_, reply)] = lab.post.collect()
    assert flower_messages.body(reply) == b"an answer"


def test_the_rest_is_waited_for_as_long_as_an_answer(lab):
    def half(objects, tree):
        objects[of_kind(objects, "ArrayChunk")] = b""

    assert lab.send(honest, spoil=half) == []
    [asked] = lab.post._waiting.values()
    asked.until = monotonic() - 1
    [(node, error)] = lab.post.collect()
    assert (node, str(error)) == (1, "no answer within 5 s")


def test_a_superlink_that_cannot_be_reached_is_no_nodes_failure(lab):
    def gone(objects, tree):
        objects[of_kind(objects, "ArrayChunk")] = httpx.ConnectError("gone")

    with pytest.raises(httpx.ConnectError):
        lab.send(honest, spoil=gone)


def test_an_error_arrives(lab):
    [(_, error)] = lab.send(lambda request: Message(Error(code=2, reason="minimum-cell: …"), reply_to=request))
    assert str(error) == "minimum-cell: …"


def test_what_a_reply_says_it_is_a_reply_to_does_not_count(lab):
    """The SuperLink has compared the sender with the addressee; the content of a reply is the node's."""
    lab.post._waiting["e" * 64] = grid._Asked(2, monotonic() + 5, flower_messages.LARGEST)

    def forged(request):
        message = honest(request)
        message.metadata.__dict__["_reply_to_message_id"] = "e" * 64
        return message

    [(node, _)] = lab.send(forged, to="f" * 64)
    assert node == 1
    assert list(lab.post._waiting) == ["e" * 64]


def test_ids_of_messages_cannot_be_worked_out():
    """A node may know all about a message to another node except its id, and cannot answer it."""
    letter = flower_messages.letter(b"the same for all")
    one, two = flower_messages.sealed(letter), flower_messages.sealed(letter)
    assert one.object_id != two.object_id
    assert one["fedgram"] is two["fedgram"], "packed once"


def test_of_small_answers_little_is_read(lab, monkeypatch):
    """Names and first replies are small, so larger ones are refused."""
    asked = []
    monkeypatch.setattr(Post, "send", lambda self, node, kind, letter, *, most: asked.append(most))
    monkeypatch.setattr(Post, "__len__", lambda self: 0)
    for step in ("hello", "summarize"):
        list(GridTransport(lab.post, {"a": 1}, engine="flower").exchange(step, [("a", b"")]))
    assert asked == [flower_messages.SMALL, flower_messages.LARGEST]


def bundle(text, name="pyproject.toml"):
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, text)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"not a bundle", bundle("x"), bundle("", name="other"), bundle("[tool.flwr.app]\n"), bundle(b"#" * (1 << 25))],
    ids=["no zip", "no TOML", "no file", "no app", "too long"],
)
def test_a_bundle_that_cannot_be_read_does_not_end_the_node(content, caplog):
    config = supernode._run_config(content, Run.create_empty(RUN))
    with pytest.raises(FedgramError, match="unknown name in app configuration 'a configuration that this node cannot"):
        App.read(config)
    assert "the configuration of run 7 cannot be read" in caplog.text


def test_a_request_to_a_node_is_bounded(lab, monkeypatch):
    monkeypatch.setattr(flower_messages, "LARGEST", 500_000)
    message = Message(flower_messages.letter(b"a request"), 1, flower_messages.STEP)
    objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    tree = get_object_tree(message)
    confirmed = []
    found = flower_messages.pull_and_inflate(tree, objects.__getitem__, confirmed.append, return_type=Message)
    assert flower_messages.body(found) == b"a request"
    assert confirmed == [tree.object_id]
    repeated(objects, tree)
    with pytest.raises(RefusedMessage, match="a message of 2300000 bytes or more"):
        flower_messages.pull_and_inflate(tree, objects.__getitem__, confirmed.append, return_type=Message)
    with pytest.raises(RefusedMessage, match="bytes or more"):
        flower_messages.pull_bounded(["a", "b"], pull_object_fn=lambda name: b"x" * 300_000)


def test_what_takes_the_place_of_flowers_functions_is_called_as_they_are():
    for ours, theirs in (
        (flower_messages.pull_bounded, pull_objects),
        (flower_messages.pull_and_inflate, pull_and_inflate_theirs),
    ):
        named, given = signature(ours).parameters, signature(theirs).parameters
        assert [name for name in named if name != "options"] == list(given)[: len(named) - 1]
