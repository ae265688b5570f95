"""Pooled moments, of which methods of one message make their model, and a record of each client's contribution.

The records recognise moments without keeping them.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, UnknownName
from fedgram.data.client import Client
from fedgram.models import Model
from fedgram.moments import solve
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Counts, Moments
from fedgram.moments.targets import Targets
from fedgram.protocol.comparison import Comparison
from fedgram.protocol.transport import Reply

if TYPE_CHECKING:
    from fedgram.inference.table import Coefficients
    from fedgram.studies.study import Study


# Two ways to add up the same samples differ by a few times `solve.rounding_level` at most.
ROUNDING = 8.0


@dataclass(frozen=True, eq=False, slots=True)
class Contribution:
    """The record of one client's moments.

    `digest` is that of `Moments.digest`, "" where clients were in the server's own process and no bytes were received:
    there it would cost a third of a run. `counts` (c,) are the samples of each class. `gram` (d,) and `sums` (c,) are
    the sketch: the Gram matrix and the class sums times a random vector that only the fit knows.
    """

    digest: str
    counts: Counts
    gram: Array
    sums: Array


@wire.register_message
@dataclass(frozen=True, eq=False)
class Contributions:
    """The records of all clients whose moments are in a total, by name, and the random vector of their sketches.

    Moments are recognised by their digest or their sketch: other moments have the same sketch with probability zero.
    Rounding may change a sketch; how much is bounded, feature by feature and class by class:

        |ΔG r|_i ≤ 8 (d + √n) ε √G_ii ‖r∘√diag G‖        |Δs_c·r| ≤ 8 (d + √n) ε √n_c ‖r∘√diag G‖

    with ε = 2⁻⁵². A sample that changed by more than about 4 (d + √n) n ε of its own size is therefore noticed.
    """

    direction: Array
    by_name: Mapping[str, Contribution]

    wire_name: ClassVar[str] = "contributions"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {
        "direction": wire.Field("float64", ("d",)),
        "counts": wire.Field("int64", ("k", "c")),
        "gram": wire.Field("float64", ("k", "d")),
        "sums": wire.Field("float64", ("k", "c")),
    }

    def __repr__(self) -> str:
        return f"Contributions({', '.join(self.by_name)})"  # the direction stays secret

    @classmethod
    def drawn(cls, dimension: int) -> Self:
        """Return no records yet, with a fresh, unpredictable random vector."""
        rng = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
        return cls(rng.standard_normal(dimension), {})

    def plus(self, name: str, moments: Moments) -> Self:
        """Return the records with a client's; refuse moments that are in already."""
        if name in self.by_name:
            raise InvalidData(f"client {name!r} has contributed already: remove its old moments first")
        if (same := self._owner(moments)) is not None:
            raise InvalidData(
                f"the moments of client {name!r} are those that client {same!r} contributed: "
                "the same samples would be counted twice"
            )
        return replace(self, by_name={**self.by_name, name: self.record(moments)})

    def minus(self, name: str, moments: Moments) -> Self:
        """Return the records without a client's, if these are the moments that it contributed."""
        if name not in self.by_name:
            raise UnknownName("contributor", name, self.by_name)
        if len(self.by_name) == 1:
            raise InvalidData(f"client {name!r} is the only contributor: without it there is no fit; delete the fit")
        self.check_same(name, moments)
        return replace(self, by_name={other: kept for other, kept in self.by_name.items() if other != name})

    def check_same(self, name: str, moments: Moments) -> None:
        """Refuse moments that are not those which the client contributed, to rounding, and say why."""
        known = self.by_name[name]
        if known.digest and moments.digest == known.digest:
            return
        if not np.array_equal(moments.counts, known.counts):
            label = moments.classes[int(np.argmax(moments.counts != known.counts))]
            raise InvalidData(
                f"these are not the moments that client {name!r} contributed: {moments.n} samples instead of "
                f"{known.counts.sum()}, unequal in class {label!r}. A run leaves out the samples that were held back "
                "for testing: give the client as it was in the run, with the same split"
            )
        if not self._alike(known, moments):
            owner = self._owner(moments)
            raise InvalidData(
                f"these are not the moments that client {name!r} contributed: "
                + (
                    "samples or labels differ by more than rounding"
                    if owner is None
                    else f"they are those of client {owner!r}"
                )
            )

    def _owner(self, moments: Moments) -> str | None:
        """Return the name of the client that contributed these moments, None if there is none."""
        for name, known in self.by_name.items():
            if np.array_equal(known.counts, moments.counts) and self._alike(known, moments):
                return name
        return None

    def _alike(self, known: Contribution, moments: Moments) -> bool:
        """Return whether sketches are equal to rounding, and counts exactly."""
        gram, sums = moments.sketch(self.direction)
        sizes = np.sqrt(moments.squares)
        noise = ROUNDING * solve.rounding_level(moments.d, moments.n) * np.linalg.norm(sizes * self.direction)
        return bool(
            (np.abs(gram - known.gram) <= noise * sizes).all()
            and (np.abs(sums - known.sums) <= noise * np.sqrt(moments.counts)).all()
        )

    def record(self, moments: Moments, *, digest: bool = True) -> Contribution:
        """Return the record of these moments."""
        # The counts of received moments are part of the whole message, which a view would keep in memory.
        counts = moments.counts.copy()
        return Contribution(moments.digest if digest else "", counts, *moments.sketch(self.direction))

    def to_fields(self) -> dict[str, Any]:
        """Take the records apart for the wire."""
        records = self.by_name.values()
        arrays = {name: np.stack([getattr(known, name) for known in records]) for name in ("counts", "gram", "sums")}
        digests = [known.digest for known in records]
        return {"direction": self.direction, "names": list(self.by_name), "digests": digests} | arrays

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put records together from the wire."""
        names, digests = fields["names"], fields["digests"]
        texts = all(isinstance(text, str) for text in (*names, *digests)) and all(names)
        if not texts or len(set(names)) < len(names):
            raise Mismatch("fields 'names' and 'digests' must be texts, and a name stands for one record")
        if not len(names) == len(digests) == len(fields["counts"]):
            raise Mismatch(f"{len(names)} names and {len(digests)} digests for {len(fields['counts'])} records")
        rows = zip(digests, fields["counts"], fields["gram"], fields["sums"], strict=True)
        return cls(fields["direction"], {name: Contribution(*row) for name, row in zip(names, rows, strict=True)})

    def check(self) -> None:
        """Raise for negative counts."""
        for name, known in self.by_name.items():
            if (known.counts < 0).any():
                raise Mismatch(f"the record of client {name!r} has a negative count")


class Recorder:
    """Records moments as they come, on their way into a sum: O(d) memory for each client."""

    def __init__(self, *, digests: bool) -> None:
        self._digests = digests
        # Moments of another dimension are refused later; until then they have a direction of their own.
        self._drawn: dict[int, Contributions] = {}
        self._by_name: dict[str, Contribution] = {}

    def passing(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """Yield the replies again; those that are moments are recorded."""
        for reply in replies:
            if isinstance(reply.value, Moments):
                self._add(reply.client, reply.value)
            yield reply

    def _add(self, name: str, moments: Moments) -> None:
        if moments.d not in self._drawn:
            self._drawn[moments.d] = Contributions.drawn(moments.d)
        self._by_name[name] = self._drawn[moments.d].record(moments, digest=self._digests)

    def contributions(self, names: Iterable[str]) -> Contributions:
        """Return the records of these clients, whose moments are of one kind."""
        by_name = {name: self._by_name[name] for name in names}
        [dimension] = {len(known.gram) for known in by_name.values()}
        return replace(self._drawn[dimension], by_name=by_name)


@dataclass(frozen=True, eq=False)
class Pool:
    """The moments of all contributors added up, and a record of what each contributed.

    `sent` is what clients sent; with a `study`, methods see other columns, `total`. `targets` are the classes or
    outcomes that models predict.

    `shape` is that of a sample before the method made features of it. A pool is a value: `add` and `remove` return
    another one.
    """

    sent: Moments
    contributors: tuple[str, ...]
    shape: tuple[int, ...]
    targets: Targets
    contributions: Contributions | None = None  # None of secure sums, and in fits that earlier versions saved
    study: "Study | None" = None

    @cached_property
    def basis(self) -> Basis | None:
        """The map from sent columns to those that methods see, None where they are the same."""
        return None if self.study is None else self.study.basis_of(self.sent)

    @cached_property
    def total(self) -> Moments:
        """The pooled moments as methods see them."""
        return self.sent if self.basis is None else self.basis.moments(self.sent)

    @property
    def parties(self) -> int:
        """The number of contributors."""
        return len(self.contributors)

    def add(self, moments: object, name: object) -> Self:
        """Return the pool with a late client's moments in it; refuse moments that are in already."""
        sent, whose, known = self._read(moments, name)
        sent.check()
        return self._with(known.plus(whose, sent), self.sent + sent)

    def remove(self, moments: object, name: object) -> Self:
        """Return the pool without a client's moments; refuse any but those that it contributed."""
        sent, whose, known = self._read(moments, name)
        return self._with(known.minus(whose, sent), self.sent - sent)

    def checked(self, name: str, moments: Moments) -> Moments:
        """Return the moments, if a contributor of this name has contributed these; a newcomer's are as they are."""
        if self.contributions is not None and name in self.contributions.by_name:
            self.sent.schema.check_same(moments.schema)
            self.contributions.check_same(name, moments)
        return moments

    def _read(self, moments: object, name: object) -> tuple[Moments, str, Contributions]:
        """Return these with the records, if they can be a client's moments and its name."""
        if not isinstance(moments, Moments):
            raise InvalidData(
                f"moments such as fit.summarize(client) returns are wanted, got a {type(moments).__name__}"
            )
        if not isinstance(name, str) or not name:
            raise InvalidParameter(f"name must be the client's name, a non-empty text, got {name!r}")
        if self.contributions is None:
            raise InvalidData(
                "this fit has no records of its clients' contributions, so clients cannot join or leave safely: "
                "it was saved by an earlier version, or is of secure sums, which show no single client's; run it again"
            )
        self.sent.schema.check_same(moments.schema)
        return moments, name, self.contributions

    def _with(self, contributions: Contributions, total: Moments) -> Self:
        stayed = [name for name in self.contributors if name in contributions.by_name]
        contributors = (*stayed, *(name for name in contributions.by_name if name not in stayed))
        return replace(self, sent=total, contributors=contributors, contributions=contributions)


@runtime_checkable
class Publishes(Protocol):
    """A method whose server publishes a message, from which any client can make its own model."""

    def model_for(
        self,
        published: Any,
        client: Client,
        *,
        member: bool = False,
        basis: Basis | None = None,
        targets: Targets | None = None,
    ) -> Model:
        """Return the model of a client that needs nothing but what was published."""
        ...

    def compare(
        self,
        published: Any,
        client: Client,
        *,
        member: bool = False,
        basis: Basis | None = None,
        targets: Targets | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Comparison:
        """Return the errors of the client's own model and of the global one on its rows, which neither has seen."""
        ...


@runtime_checkable
class Tabulates(Publishes, Protocol):
    """A method whose published message is a regression with a table of its own."""

    def table(self, published: Any, *, study: "Study | None", basis: Basis | None, level: float) -> "Coefficients":
        """Return the table of a published message, with intervals of this level."""
        ...


@runtime_checkable
class Pooling(Publishes, Protocol):
    """A method that makes everything of a pool."""

    finds_columns: ClassVar[bool]

    def publish(self, pool: Pool) -> Any:
        """Return the message to all clients."""
        ...

    def global_model(self, published: Any) -> Model:
        """Return the global model in what was published."""
        ...

    def summary(
        self, client: Client, classes: Classes, columns: Columns = (), *, basis: Basis | None = None
    ) -> Moments:
        """Return the moments that a client would contribute."""
        ...
