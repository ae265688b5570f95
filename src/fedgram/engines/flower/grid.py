"""The server's way to the nodes: Flower's grid as a post office, a roll call, and a `Transport`."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic, sleep
from typing import TypeAlias

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedgram.core import wire
from fedgram.core.errors import ClientFailed, FedgramError, InvalidData, RefusedMessage
from fedgram.engines.flower import envelope
from fedgram.engines.flower.keys import PublicKey, check_name

UNDER_WAY = 64  # requests that nodes may hold at a time
PULLED = 4  # replies taken at a time: the server's memory does not grow with the number of nodes
# Seconds between two looks for replies: few at first, for nodes that answer at once, more while nothing comes.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.5
_LONGEST_NAME, _LONGEST_REASON = 200, 1000  # characters; both are shown to people
GRACE = 60.0  # seconds that Flower keeps a message longer than we wait: our word on who is late is the clearer one

Found: TypeAlias = dict[str, int | FedgramError]
Refused: TypeAlias = dict[str, FedgramError]

log = logging.getLogger("flwr")  # so that it shows where Flower's own lines do


@dataclass
class Post:
    """Sends letters to nodes and hands out the answers as they come, or why there is none.

    `bytes_up` and `bytes_down` are what Flower counts of the messages' content.
    """

    grid: Grid
    timeout: float | None = None
    watch: Callable[[], None] = lambda: None  # raises if nobody can answer any more
    bytes_up: int = 0
    bytes_down: int = 0
    _waiting: dict[str, tuple[int, float]] = field(default_factory=dict)  # message → node, when to give up
    _pause: float = SHORTEST_PAUSE

    def __len__(self) -> int:
        """Return how many letters are not answered yet."""
        return len(self._waiting)

    def send(self, node: int, kind: str, letter: RecordDict) -> FedgramError | None:
        """Send a letter; return why it could not be sent."""
        message = Message(letter, node, kind, ttl=self.timeout and self.timeout + GRACE)
        sent = next(iter(self.grid.push_messages([message])), None)
        if sent is None:
            return ClientFailed("Flower cannot send to this node: it is no longer connected")
        self.bytes_down += envelope.size(message)
        self._waiting[sent] = node, monotonic() + self.timeout if self.timeout else float("inf")
        return None

    def collect(self) -> Iterator[tuple[int, Message | FedgramError]]:
        """Yield what has come by now, with the node that it came from."""
        self.watch()
        ids = iter(list(self._waiting))
        while some := list(islice(ids, PULLED)):
            for reply in self.grid.pull_messages(some):
                asked = self._waiting.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None:
                    self.bytes_up += envelope.size(reply)
                    self._pause = 0.0
                    yield asked[0], _failure(reply) or reply
        for sent, (node, until) in list(self._waiting.items()):
            if monotonic() > until:
                del self._waiting[sent]
                yield node, ClientFailed(f"no answer within {self.timeout:g} s")

    def rest(self) -> None:
        """Pause before the next look, not at all if something has just come."""
        sleep(self._pause)
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)

    def forget(self) -> None:
        """Wait for no more answers."""
        self._waiting.clear()


def _failure(reply: Message) -> FedgramError | None:
    """Return a node's error, or Flower's own about a node that died."""
    if not reply.has_error():
        return None
    reason = "".join(c if c.isprintable() else " " for c in (reply.error.reason or "")[:_LONGEST_REASON])
    return ClientFailed(reason or f"Flower's error {reply.error.code}, without a reason")


@dataclass(frozen=True)
class Expected:
    """Who should take part: clients by name, or so many, or (neither) whoever is connected; and how long to wait.

    With `keys`, a client is whoever has the key that is listed for its name.
    """

    names: Sequence[str] = ()
    number: int = 0
    seconds: float = 300.0
    keys: Mapping[str, PublicKey] = field(default_factory=dict)

    def met_by(self, found: Iterable[str]) -> bool:
        """Tell whether all clients are here."""
        names = set(found)
        return names.issuperset(self.names) if self.names else 0 < self.number <= len(names)


def roll_call(post: Post, expected: Expected, note: Mapping[str, str] | None = None) -> tuple[Found, Refused]:
    """Ask every node for its name; return each client's node, or why it has none, and the nodes that are no client.

    Ends as soon as all that are expected have answered, or when waiting has been in vain. Nodes without the key of the
    name they give are refused. Where no keys are listed, nobody could tell two nodes of one name apart: neither
    is that client, which counts as failed.
    """
    until = monotonic() + expected.seconds
    asked: dict[int, bytes] = {}  # node → the public key that it came with
    nodes: dict[str, list[int]] = defaultdict(list)
    nameless: Refused = {}
    question = envelope.letter(b"", note=note)
    while not expected.met_by(nodes) and monotonic() < until:
        for node, key in _connected(post.grid, keys=bool(expected.keys)):
            if node not in asked:
                asked[node] = key
                if failed := post.send(node, envelope.NAME, question):
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
    # Nobody knows the names of those who are missing, but they count: two of three is not all. Nor do more count than
    # are expected, or nodes that cannot even say their names would outvote the others.
    missing = expected.number - len(found) if expected.number else len(nameless)
    found |= dict(islice(nameless.items(), missing))
    refused = {node: error for node, error in nameless.items() if node not in found}
    return found | {f"unknown-{k + 1}": absent for k in range(expected.number - len(found))}, refused


def _connected(grid: Grid, *, keys: bool) -> list[tuple[int, bytes]]:
    """Return the nodes that are connected, with the public keys that they came with if these are asked for."""
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
    name = wire.decode(envelope.body(answer), sender="a node")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise RefusedMessage(
            f"a node's name must be a text of at most {_LONGEST_NAME} printable characters, got {repr(name)[:60]}"
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
        self._post, self._nodes, self._note = post, nodes, note
        self._names = {node: name for name, node in nodes.items() if isinstance(node, int)}

    @property
    def carried(self) -> dict[str, int]:
        """Bytes as Flower counts them, evaluation included."""
        return {"up": self._post.bytes_up, "down": self._post.bytes_down}

    def exchange(self, step: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Exception]]:
        """Send requests to their nodes and yield answers as they arrive."""
        waiting = iter(requests)
        last, letter = b"", RecordDict()
        try:
            while True:
                for name, request in islice(waiting, UNDER_WAY - len(self._post)):
                    node = self._nodes[name]
                    if isinstance(node, FedgramError):
                        yield name, node
                        continue
                    if request is not last:  # what is sent to all is packed once
                        last, letter = request, envelope.letter(request, note=self._note)
                    if failed := self._post.send(node, envelope.STEP, letter):
                        yield name, failed
                if not len(self._post):
                    return
                yield from self._answers()
                self._post.rest()
        finally:
            self._post.forget()

    def _answers(self) -> Iterator[tuple[str, bytes | Exception]]:
        for node, answer in self._post.collect():
            try:
                if isinstance(answer, FedgramError):
                    raise answer
                reply = envelope.body(answer)
                self.client_seconds += envelope.seconds(answer)
            except FedgramError as error:
                log.warning("client %r: %s", self._names[node], error)
                yield self._names[node], error
            else:
                yield self._names[node], reply
