"""The pooled moments: what methods of one message make their model of, and what clients join and leave."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.labels import Classes
from fedgram.data.client import Client
from fedgram.models import Model
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.protocol.contributions import Contributions
from fedgram.protocol.recipe import Recipe, basis_of


@dataclass(frozen=True, eq=False)
class Pool:
    """The moments of all contributors added up, and a record of what each contributed.

    `sent` is what clients sent; with a `recipe`, methods see other columns, `total`. The last `outcomes` columns of
    both are numeric outcomes; 0 where there are classes.

    `shape` is that of a sample before the method made features of it. A pool is a value: `add` and `remove` return
    another one.
    """

    sent: Moments
    contributors: tuple[str, ...]
    shape: tuple[int, ...]
    contributions: Contributions | None = None  # None in fits that earlier versions saved
    recipe: Recipe | None = None
    outcomes: int = 0

    @cached_property
    def basis(self) -> Basis | None:
        """How the columns that methods see are made of what was sent, None where they are the same."""
        return None if self.recipe is None else basis_of(self.recipe, self.sent)

    @cached_property
    def total(self) -> Moments:
        """The pooled moments as methods see them."""
        return self.sent if self.basis is None else self.basis.moments(self.sent)

    @property
    def parties(self) -> int:
        """How many contributed."""
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
            self.sent.kind.check_same(moments.kind)
            self.contributions.check_same(name, moments)
        return moments

    def _read(self, moments: object, name: object) -> tuple[Moments, str, Contributions]:
        """Return these with the records, if they can be a client's moments and its name."""
        if not isinstance(moments, Moments):
            raise InvalidData(
                f"moments such as fit.summarize(client) returns are wanted, got a {type(moments).__name__}"
            )
        if not isinstance(name, str) or not name:
            raise InvalidParameter(f"name must say whose moments these are, as a non-empty text, got {name!r}")
        if self.contributions is None:
            raise InvalidData(
                "this fit has no records of what its clients contributed, so nobody can join or leave safely: "
                "it was saved by an earlier version; run it again"
            )
        self.sent.kind.check_same(moments.kind)
        return moments, name, self.contributions

    def _with(self, contributions: Contributions, total: Moments) -> Self:
        stayed = [name for name in self.contributors if name in contributions.by_name]
        contributors = (*stayed, *(name for name in contributions.by_name if name not in stayed))
        return replace(self, sent=total, contributors=contributors, contributions=contributions)


@runtime_checkable
class Publishes(Protocol):
    """A method whose server publishes a message, from which any client can make its own model."""

    def model_for(self, published: Any, client: Client, *, member: bool = False, basis: Basis | None = None) -> Model:
        """Return the model of a client that needs nothing but what was published."""
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
        """Return what a client would contribute."""
        ...
