"""What server and clients have agreed on before a method begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.labels import Classes
from fedgram.core.wire import Payload
from fedgram.moments.basis import Basis
from fedgram.protocol.recipe import Recipe
from fedgram.protocol.replies import Question


@dataclass(frozen=True)
class Agreement:
    """The kind of data that all clients of a run have, and how much of it each has.

    Before the clients have said hello, nothing is known but the classes, and these only if the caller gave them.
    """

    classes: Classes = ()
    shape: tuple[int, ...] = ()  # of a sample
    features: str = ""  # their fingerprint
    columns: Columns = ()  # their names, in the agreed order
    samples: Mapping[str, int] = field(default_factory=dict)  # for training, by client
    tested: Mapping[str, int] = field(default_factory=dict)  # for testing, by client
    far: bool = False  # whether columns of some client are far from zero
    recipe: Recipe | None = None  # how columns are made of those that clients have, if they are
    basis: Basis | None = None  # that, once pooled sums are known; without a recipe, columns less a centre
    squares: Array | None = field(default=None, compare=False)  # sums over all clients, by column, where they are known

    def __post_init__(self) -> None:
        """Take copies of the counts that nobody can change."""
        for name in ("samples", "tested"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def outcomes(self) -> Columns:
        """The numeric outcomes, last among the columns; () where there are classes."""
        return () if self.recipe is None else self.recipe.targets

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of a sample as methods see it."""
        return self.shape if self.basis is None else (self.basis.of_features.shift.size,)

    @property
    def centre(self) -> Array | None:
        """What is subtracted from the columns before anything is summed, None for nothing."""
        return None if self.basis is None else self.basis.centre

    def question(self, client: str, payload: Payload, round: int) -> Question:
        """Return what a client is asked with this payload; its reply is checked against that."""
        return Question(
            client,
            payload,
            round,
            self.classes,
            self.seen,
            self.features,
            self.samples.get(client, 0),
            self.tested.get(client, 0),
            self.columns if self.basis is None else self.basis.of_features.columns,
            () if self.basis is None else self.outcomes,  # before, they are columns like the others
            () if self.centre is None else tuple(self.centre.tolist()),
            self.squares,
        )
