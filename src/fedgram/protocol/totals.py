"""Adding up replies as they come, so that no reply decides over the others, not even the first.

Replies of one form (moments of one kind, arrays of one shape) have a running total of their own. The form that most
clients have is the result; whoever has another is named.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from fedgram.core.errors import FedgramError, InvalidParameter, Mismatch
from fedgram.core.wire import Payload
from fedgram.moments.moments import Moments
from fedgram.moments.total import Total
from fedgram.protocol.transport import Reply

LONGEST_FORM = 200  # characters in an error


@dataclass
class Tally:
    """The replies of one form: who sent them, the first of them, and their total."""

    form: Hashable
    first: Payload
    clients: list[str] = field(default_factory=list)
    weights: float = 0.0
    _total: Any = None

    def add(self, client: str, value: Payload, weight: float | None) -> None:
        """Add a reply, times its weight if there is one."""
        self.clients.append(client)
        if isinstance(value, Moments):
            self._total = self._total or Total()
            self._total.add(value)
            return
        if weight is not None:
            value = combine(lambda leaf: np.multiply(leaf, weight, dtype=np.float64), value)
            self.weights += weight
        self._total = value if self._total is None else combine(lambda one, other: one + other, self._total, value)

    @property
    def total(self) -> Payload:
        """The sum of the replies."""
        return self._total.moments() if isinstance(self._total, Total) else self._total

    @property
    def mean(self) -> Payload:
        """The weighted mean, in the replies' own precision."""
        return combine(lambda leaf, like: (leaf / self.weights).astype(_floating(like)), self._total, self.first)


def tally(
    replies: Iterable[tuple[str, Payload]], weight: Callable[[str], float] | None = None
) -> tuple[Tally | None, dict[str, FedgramError]]:
    """Add up replies of clients; return the total of the form that most have, and why others are not in it."""
    tallies: dict[Hashable, Tally] = {}
    strangers: dict[str, FedgramError] = {}
    for client, value in replies:
        try:
            form = form_of(value)
        except Mismatch as error:
            strangers[client] = error
            continue
        tallies.setdefault(form, Tally(form, value)).add(client, value, None if weight is None else weight(client))
    most = max((len(found.clients) for found in tallies.values()), default=0)
    usual = [found for found in tallies.values() if len(found.clients) == most]
    [chosen] = usual if len(usual) == 1 else [None]
    others = f"most with {_shown(chosen.form)}" if chosen else "and no form is the most frequent"
    for found in tallies.values():
        if found is not chosen:
            strangers |= {client: Mismatch(f"replied with {_shown(found.form)}, {others}") for client in found.clients}
    return chosen, strangers


def telling(replies: Iterable[Reply], heard: Callable[[str, Any], None]) -> Iterator[Reply]:
    """Pass replies on, and tell `heard` of each as it comes."""
    for reply in replies:
        heard(*reply)
        yield reply


def checked_weights(weights: Mapping[str, float], asked: Iterable[str], *, weighted: bool) -> Mapping[str, float]:
    """Return the weights of a mean, if every client that is asked has one that makes sense."""
    if not weighted:
        raise InvalidParameter("give `weights` or `weighted=False`, not both")
    for name in asked:
        if name not in weights:
            raise InvalidParameter(f"weights has none for client {name!r}: give one for every client that is asked")
        if not (isfinite(weights[name]) and weights[name] >= 0):
            raise InvalidParameter(f"the weight of client {name!r} must be a number ≥ 0, got {weights[name]}")
    return weights


def form_of(value: Payload) -> Hashable:
    """Return what two replies must have in common to be added.

    >>> form_of({"w": np.ones((2, 3)), "b": [1.5]})
    (('b', ('number',)), ('w', 'shape (2, 3)'))
    """
    if isinstance(value, Moments):
        return value.kind
    if isinstance(value, dict):
        return tuple((key, form_of(value[key])) for key in sorted(value))
    if isinstance(value, list):
        return tuple(map(form_of, value))
    if isinstance(value, np.ndarray) and value.shape:
        return f"shape {value.shape}"
    if isinstance(value, int | float | np.ndarray | np.generic):
        return "number"
    raise Mismatch(f"replied with a {type(value).__name__}, which cannot be added up")


def combine(operation: Callable[..., Any], *trees: Any) -> Any:
    """Apply an operation to the leaves of equally shaped lists and dicts."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: combine(operation, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list):
        return [combine(operation, *leaves) for leaves in zip(*trees, strict=True)]
    return operation(*trees)


def _shown(form: Hashable) -> str:
    """Return a form as text for people: whoever replies with a million fields does not fill the report with them."""
    text = str(form)
    return text if len(text) <= LONGEST_FORM else f"{text[:LONGEST_FORM]} …"


def _floating(leaf: Any) -> Any:
    dtype = np.asarray(leaf).dtype
    return dtype if dtype.kind == "f" else np.float64
