"""What can go wrong, by name.

Every error says what was wrong, the value it got and the remedy. All of them are `FedgramError`, which is a
`ValueError`, so a caller may catch as narrowly or as widely as it likes; the command line prints the message
as one line and exits with code 2.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedgramError(ValueError):
    """Base of all errors that a user of fedgram can cause or cure."""


class InvalidParameter(FedgramError):
    """A hyper-parameter or option has a value that makes no sense."""


class InvalidData(FedgramError):
    """Features or labels cannot be used: wrong shape, NaN, unknown label, nothing there."""


class Mismatch(FedgramError):
    """Two things that were to be combined are not of the same kind."""


class NotMoments(FedgramError):
    """Arrays that cannot be the moments of any data set."""


class RefusedMessage(FedgramError):
    """Bytes from another party that fail a check; says whose, which field and which value."""


class ClientFailed(FedgramError):
    """A client could not perform a step."""


class MissingClients(FedgramError):
    """Fewer clients than required took part."""


class MissingExtra(FedgramError):
    """A feature needs an optional dependency that is not installed."""


class RankDeficient(UserWarning):
    """The pooled features do not span their space; the minimum-norm solution was taken."""


class LostPrecision(UserWarning):
    """What is left after a subtraction was smaller than the rounding errors of what it was taken from."""


class UnknownName(FedgramError):
    """A name (of a method, data set, parameter, …) that does not exist, with the nearest one that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known: {', '.join(known) or 'none'}")
