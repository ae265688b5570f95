"""What moments are moments of."""

from dataclasses import dataclass, fields

from fedgram.core.columns import Columns, difference
from fedgram.core.errors import Mismatch
from fedgram.core.labels import Classes


@dataclass(frozen=True)
class Kind:
    """What moments are of: only moments of one kind may be added.

    `features` is a fingerprint of how the features were made (backbone and options). With `bias` they have a column of
    ones at the end, and the dimension counts it. `columns` are the names of the table's columns that the features are,
    or were made from; () where samples came without names.
    """

    classes: Classes
    dimension: int
    features: str = ""
    bias: bool = False
    columns: Columns = ()

    def check_same(self, other: "Kind") -> None:
        """Refuse another kind, naming both sides."""
        if self == other:
            return
        if unlike := difference(other.columns, self.columns):
            raise Mismatch(f"moments of different columns cannot be combined: one {unlike}")
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                raise Mismatch(f"moments of different {field.name} cannot be combined: {mine!r} and {theirs!r}")
