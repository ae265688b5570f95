"""Columns that are made of what clients have, once pooled sums are known: a study is such a recipe."""

from typing import Any, Protocol, runtime_checkable

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.data.client import Client
from fedgram.models import LinearModel, Model
from fedgram.moments.basis import Basis, InBasis
from fedgram.moments.kind import Kind
from fedgram.moments.moments import Moments
from fedgram.regressors import Regressor


@runtime_checkable
class Recipe(Protocol):
    """What says how the columns that a model sees are made of those that clients have. It is a message, too."""

    @property
    def features(self) -> str:
        """The fingerprint of what clients have; whoever has another is in another study."""
        ...

    @property
    def kind(self) -> Kind:
        """What moments of clients' data are moments of: the agreed classes and columns, in their order."""
        ...

    @property
    def minimum_cell(self) -> int:
        """Of how few samples of a class, or of a range of confidence, a client may send sums."""
        ...

    @property
    def targets(self) -> Columns:
        """The numeric outcomes, last among the columns that clients have; () where the outcome has classes."""
        ...

    def admit(self, client: Client, used: int) -> None:
        """Refuse, at the client, to send anything of too few samples; `used` is of how few a reply may be made."""
        ...

    def basis(self, sums: Array, squares: Array, n: float) -> Basis:
        """Return the columns that a model sees, given the pooled sums of what clients have, and of its squares."""
        ...

    def check_basis(self, basis: Basis) -> None:
        """Refuse columns that the recipe cannot make from any pooled sums."""
        ...

    def model(self, model: Model) -> Model:
        """Return a model of what clients have as one of their data before they were encoded."""
        ...


def basis_of(recipe: Recipe, total: Moments) -> Basis:
    """Return the columns that a model sees, given the pooled moments of what clients have."""
    return recipe.basis(total.cross.sum(axis=1), total.squares, total.n)


def in_source(model: Any, basis: Basis | None, columns: Columns) -> Any:
    """Return a model of the columns that clients have, from one of the columns that are made of them."""
    if basis is None or not isinstance(model, Model):
        return model
    if basis.outcomes is not None:
        of_features = in_source(model, basis.of_features, columns[: -len(basis.outcomes)])
        return Regressor(of_features, basis.outcomes)
    return basis.back(model, columns) if isinstance(model, LinearModel) else InBasis(model, basis, columns)
