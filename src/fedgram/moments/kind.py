"""What moments are moments of."""

import re
from dataclasses import dataclass, fields

from fedgram.core.columns import Columns, difference
from fedgram.core.errors import Mismatch
from fedgram.core.hashing import readable
from fedgram.core.labels import Classes

STUDY = "study:"  # how the features of a study's samples begin
_FEATURES = re.compile(rf"{STUDY}(?P<name>.*)@(?P<fingerprint>[0-9a-f]{{64}})", re.DOTALL)


def study_features(name: str, fingerprint: str) -> str:
    """Return what the features of a study are called.

    >>> study_of(study_features("walks", "0f" * 32)), study_of("lite0:96"), study_of("")
    ('walks', '', '')
    """
    return f"{STUDY}{name}@{fingerprint}"


def described(features: str) -> str:
    """Return features for messages: a study by its name and by what people compare of its fingerprint.

    >>> described(study_features("walks", "0f" * 32)), described("lite0:96"), described("")
    ("study 'walks' b4hq-6dyp-b4hq-6dyp-b4hq-6dyp-b4hq-6dyp", "features 'lite0:96'", 'data of no study')
    """
    if found := _FEATURES.fullmatch(features):
        return f"study {found['name']!r} {readable(found['fingerprint'])}"
    return f"features {features!r}" if features else "data of no study"


def study_of(features: str) -> str:
    """Return the name of the study whose features these are, "" if they are of none."""
    return features.removeprefix(STUDY).rpartition("@")[0] if features.startswith(STUDY) else ""


@dataclass(frozen=True)
class Kind:
    """What moments are of: only moments of one kind may be added.

    `features` is a fingerprint of how the features were made (backbone and options). With `bias` they have a column of
    ones at the end, and the dimension counts it. `columns` are the names of the table's columns that the features are,
    or were made from; () where samples came without names. `centre` is what was subtracted from them before anything
    was summed, the same for all whose moments add up; () for nothing.
    """

    classes: Classes
    dimension: int
    features: str = ""
    bias: bool = False
    columns: Columns = ()
    centre: tuple[float, ...] = ()

    @property
    def study(self) -> str:
        """The name of the study that the features are of, "" without one."""
        return study_of(self.features)

    def check_same(self, other: "Kind") -> None:
        """Refuse another kind, naming both sides."""
        if self == other:
            return
        if unlike := difference(other.columns, self.columns):
            raise Mismatch(f"moments of different columns cannot be combined: one {unlike}")
        if self.centre != other.centre:
            raise Mismatch(
                "moments about different centres cannot be combined: columns far from zero were summed less a centre "
                "of their run; make the moments of others with that run's fit.summarize(client)"
            )
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "features" and mine != theirs:
                raise Mismatch(
                    f"moments of different data cannot be combined: {described(mine)} and {described(theirs)}"
                )
            if mine != theirs:
                raise Mismatch(f"moments of different {field.name} cannot be combined: {mine!r} and {theirs!r}")
