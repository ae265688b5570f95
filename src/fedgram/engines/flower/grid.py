"""The server's way to the nodes: Flower's grid as a post office, a roll call, and a `Transport`."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from time import monotonic, sleep
from typing import TypeAlias

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from fedgram.core import wire
from fedgram.core.errors import ClientFailed, FedgramError, InvalidData, RefusedMessage
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.flower_messages import LARGEST, SMALL, Upload, arrived, pulled
from fedgram.engines.flower.node_keys import LONGEST_NAME, PublicKey, check_name
from fedgram.protocol.transport import Spent

UNDER_WAY = 64  # requests that nodes may hold at a time
PULLED = 4  # replies taken at a time: the server's memory does not grow with the number of nodes
# Seconds between two looks for replies: few at first, for nodes that answer at once, more while nothing comes.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.5
PROCESSORS = 1024  # the most that a node can say it has worked with
_LONGEST_REASON = 1000  # characters, which are shown to people
GRACE = 60.0  # seconds that Flower keeps a message after our timeout: our error is clearer

Found: TypeAlias = dict[str, int | FedgramError]
Refused: TypeAlias = dict[str, FedgramError]

log = logging.getLogger("flwr")  # Flower's log, so that our lines appear among its own


@dataclass
class _Asked:
    """A node that has not answered yet: its deadline, the most bytes of its answer, and the upload once announced."""

    node: int
    until: float
    most: int
    upload: Upload | None = None


@dataclass
class Post:
    """Post office that sends letters to nodes and hands out the answers, or errors in their place, as they come.

    `bytes_up` and `bytes_down` are Flower's counts of the messages' content.
    """

    grid: Grid
    timeout: float | None = None
    watch: Callable[[], None] = lambda: None  # raises if no node can answer any more
    bytes_up: int = 0
    bytes_down: int = 0
    _waiting: dict[str, "_Asked"] = field(default_factory=dict)  # by message
    _pause: float = SHORTEST_PAUSE

    def __len__(self) -> int:
        """Return the number of letters without an answer so far."""
        return len(self._waiting)

    def send(self, node: int, kind: str, letter: RecordDict, *, most: int = LARGEST) -> FedgramError | None:
        """Send a letter that asks for at most so many bytes; return the error if it could not be sent."""
        message = Message(flower_messages.sealed(letter), node, kind, ttl=self.timeout and self.timeout + GRACE)
        sent = next(iter(self.grid.push_messages([message])), None)
        if sent is None:
            return ClientFailed("Flower cannot send to this node: it is no longer connected")
        self.bytes_down += flower_messages.size(message)
        until = monotonic() + self.timeout if self.timeout else float("inf")
        self._waiting[sent] = _Asked(node, until, most)
        return None

    def collect(self) -> Iterator[tuple[int, Message | FedgramError]]:
        """Yield the replies that have arrived, with their nodes."""
        self.watch()
        for sent, reply in self._arrived():
            asked = self._waiting.pop(sent, None)
            if asked is not None:
                self._pause = 0.0
                yield asked.node, self._counted(reply)
        for sent, asked in list(self._waiting.items()):
            if monotonic() > asked.until:
                del self._waiting[sent]
                yield asked.node, ClientFailed(f"no answer within {self.timeout:g} s")

    def _arrived(self) -> Iterator[tuple[str, Message | FedgramError]]:
        """Yield the replies that have arrived completely, each with the id of the message that it answers."""
        if not isinstance(self.grid, HttpGrid):  # nodes in this process or in those that it has started
            ids = iter(list(self._waiting))
            while some := list(islice(ids, PULLED)):
                yield from ((reply.metadata.reply_to_message_id, reply) for reply in self.grid.pull_messages(some))
            return
        for sent, upload in arrived(self.grid, [sent for sent, asked in self._waiting.items() if asked.upload is None]):
            if sent in self._waiting:
                self._waiting[sent].upload = upload
        for sent, asked in list(self._waiting.items()):
            if asked.upload is not None and (reply := pulled(self.grid, asked.upload, asked.most)) is not None:
                yield sent, reply

    def _counted(self, reply: Message | FedgramError) -> Message | FedgramError:
        """Return a reply after counting its bytes, or its error; a reply that cannot be counted is not fedgram's."""
        if isinstance(reply, FedgramError):
            return reply
        try:
            self.bytes_up += flower_messages.size(reply)
        except FedgramError as error:
            return error
        return _failure(reply) or reply

    def rest(self) -> None:
        """Pause before the next look, not at all if something has just come."""
        sleep(self._pause)
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)

    def forget(self) -> None:
        """Stop waiting for answers."""
        self._waiting.clear()


def _failure(reply: Message) -> FedgramError | None:
    """Return a node's error, or Flower's own about a node that died."""
    if not reply.has_error():
        return None
    reason = "".join(c if c.isprintable() else " " for c in (reply.error.reason or "")[:_LONGEST_REASON])
    return ClientFailed(reason or f"Flower's error {reply.error.code}, without a reason")


@dataclass(frozen=True)
class Expected:
    """The expected clients and the time to wait for them: names, or a number, or with neither all connected nodes.

    With `keys`, a client is the node that has the key listed for the client's name.
    """

    names: Sequence[str] = ()
    number: int = 0
    seconds: float = 300.0
    keys: Mapping[str, PublicKey] = field(default_factory=dict)

    def met_by(self, found: Iterable[str]) -> bool:
        """Return whether all clients are here."""
        names = set(found)
        return names.issuperset(self.names) if self.names else 0 < self.number <= len(names)


def roll_call(post: Post, expected: Expected, note: Mapping[str, str] | None = None) -> tuple[Found, Refused]:
    """Return each client's node or error, and the errors of other nodes; each node is asked for its name.

    Ends as soon as all expected clients have answered, or when the time is up. Nodes without the key of the name they
    give are refused. Without listed keys, two nodes with the same name cannot be told apart: neither takes part, and
    the client counts as failed.
    """
    until = monotonic() + expected.seconds
    asked: dict[int, bytes] = {}  # node → the public key that it came with
    nodes: dict[str, list[int]] = defaultdict(list)
    nameless: Refused = {}
    question = flower_messages.letter(b"", note=note)
    while not expected.met_by(nodes) and monotonic() < until:
        for node, key in _connected(post.grid, keys=bool(expected.keys)):
            if node not in asked:
                asked[node] = key
                if failed := post.send(node, flower_messages.NAME, question, most=SMALL):
                    nameless[f"node {node}"] = failed
        for node, answer in post.collect():
            try:
                name = _name(answer)
                if expected.keys:
                    check_name(name, asked[node], expected.keys)
                nodes[name].append(node)
            except FedgramError as error:
                log.warning("node %d takes no part: %s", node, error)
                nameless[f"node {node}"] = error
        if asked and not len(post) and not (expected.names or expected.number):
            break
        post.rest()
    post.forget()
    found: Found = {
        name: node if not twins else _twins(name, node, *twins) for name, [node, *twins] in sorted(nodes.items())
    }
    absent = ClientFailed(f"not connected within {expected.seconds:g} s")
    if expected.names:
        for name in set(found).difference(expected.names):
            log.warning("node %r is connected but not one of this run's clients: left alone", name)
        return {name: found.get(name, absent) for name in expected.names}, nameless
    if expected.met_by(found):
        return found, nameless
    # The names of missing clients are unknown, but these clients count as failed: if all three are required, two are
    # too few. Failed clients are added up to the number of missing ones, even if more nodes without a name connected.
    missing = expected.number - len(found) if expected.number else len(nameless)
    apart = {node: error for node, error in nameless.items() if node not in found}  # a client may have such a name
    lost = dict(islice(apart.items(), missing))
    refused = {node: error for node, error in nameless.items() if node not in lost}
    unused = (name for name in map("unknown-{}".format, count(1)) if name not in found)
    return found | lost | dict.fromkeys(islice(unused, max(0, missing - len(lost))), absent), refused


def _connected(grid: Grid, *, keys: bool) -> list[tuple[int, bytes]]:
    """Return the connected nodes, with the public keys of their connections if `keys`, else ""."""
    return (
        [(node.node_id, node.public_key) for node in grid.get_nodes()]
        if keys
        else [(k, b"") for k in grid.get_node_ids()]
    )


def _twins(name: str, *nodes: int) -> InvalidData:
    log.warning("%d nodes are named %r: none of them takes part", len(nodes), name)
    return InvalidData(
        f"{len(nodes)} nodes are named {name!r}: give each a name of its own in its --node-config, or list the keys of "
        "the clients in the app"
    )


def _name(answer: Message | FedgramError) -> str:
    if isinstance(answer, FedgramError):
        raise answer
    name = wire.decode(flower_messages.body(answer), sender="a node")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise RefusedMessage(
            f"a node's name must be a text of at most {LONGEST_NAME} printable characters, got {repr(name)[:60]}"
        )
    return name


class GridTransport:
    """Carries requests to the nodes of a run. Nothing that comes back is trusted."""

    trusted = False

    def __init__(
        self, post: Post, nodes: Mapping[str, int | FedgramError], *, engine: str, note: Mapping[str, str] | None = None
    ) -> None:
        self.engine = engine
        self.names: Sequence[str] = list(nodes)
        self.client_seconds = 0.0
        self.spent: dict[str, Spent] = {}
        self._sent: dict[str, float] = {}  # when each client was asked
        self._post, self._nodes, self._note = post, nodes, note
        self._names = {node: name for name, node in nodes.items() if isinstance(node, int)}

    @property
    def carried(self) -> dict[str, int]:
        """Bytes as Flower counts them, evaluation included."""
        return {"up": self._post.bytes_up, "down": self._post.bytes_down}

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Send requests to their nodes and yield answers as they arrive."""
        self.spent, waiting = {}, iter(requests)
        last, letter = b"", RecordDict()
        most = SMALL if step == "hello" else LARGEST
        try:
            while True:
                for name, request in islice(waiting, UNDER_WAY - len(self._post)):
                    node = self._nodes[name]
                    if isinstance(node, FedgramError):
                        yield name, node
                        continue
                    if request is not last:  # a request that goes to all is packed once
                        last, letter = request, flower_messages.letter(request, note=self._note)
                    self._sent[name] = monotonic()
                    if failed := self._post.send(node, flower_messages.STEP, letter, most=most):
                        yield name, failed
                if not len(self._post):
                    return
                yield from self._answers()
                self._post.rest()
        finally:
            self._post.forget()

    def _answers(self) -> Iterator[tuple[str, bytes | Exception]]:
        for node, answer in self._post.collect():
            name = self._names[node]
            try:
                if isinstance(answer, FedgramError):
                    raise answer
                reply = flower_messages.body(answer)
                elapsed = monotonic() - self._sent[name]
                # A node says itself how long it worked: no longer than all of a large machine since it was asked.
                self.client_seconds += min(flower_messages.cost(answer, "seconds"), PROCESSORS * elapsed)
                self.spent[name] = Spent(min(flower_messages.cost(answer, "wall"), elapsed), elapsed)
            except FedgramError as error:
                log.warning("client %r: %s", name, error)
                yield name, error
            else:
                yield name, reply
