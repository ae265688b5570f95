"""What can go wrong, by name.

Every error says what was wrong, the value it got and the remedy. All of them are `FedgramError`, which is a
`ValueError`, so a caller may catch as narrowly or as widely as it likes; the command line prints the message
as one line and exits with code 2.

An error may quote cells, labels and paths, which must not leave the machine that they are on. `tell` gives what another
party may know: what the error was told to say (`telling`), or else no more than its kind.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import ClassVar, Self


class FedgramError(ValueError):
    """Base of all errors that a user of fedgram can cause or cure."""

    kind: ClassVar[str] = "this step cannot be performed here"
    told: str | None = None

    def telling(self, text: str | None = None) -> Self:
        """Return this error with what another party may know of it; without `text`, all of it."""
        self.told = str(self) if text is None else text
        return self


class InvalidParameter(FedgramError):
    """A hyper-parameter or option has a value that makes no sense."""

    kind = "an option given here cannot be used"


class InvalidData(FedgramError):
    """Features or labels cannot be used: wrong shape, NaN, unknown label, nothing there."""

    kind = "the data here cannot be used"


class BadSamples(InvalidData):
    """Some samples of a file cannot be used: says which and why."""


class NumericLabels(InvalidData):
    """Labels that are numbers with fractions: a numeric outcome, which needs a study, not classes."""


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

    kind = "a package that this needs is not installed here"


class BadImage(InvalidData):
    """A file that is not an image, or not a whole one."""


class BadArchive(FedgramError):
    """An archive that cannot be read to its end."""


class CacheError(FedgramError):
    """The cache folder cannot be used: full, or not writable."""


class CannotFetch(FedgramError):
    """A source cannot be reached from this machine now; says why."""


class WrongChecksum(FedgramError):
    """A file is not the one that was published."""


class NotAvailable(FedgramError):
    """No source has the data; says what to place where."""


class CannotLoad(FedgramError):
    """A model cannot be had or read: says which, why, and where else it may come from."""


class CannotExport(FedgramError):
    """A network uses what ONNX does not have."""


class FolderInUse(FedgramError):
    """Another process is writing to the folder."""


class StoreError(FedgramError):
    """A store of exchanged files cannot be used: says why, and what is lost, if anything."""


class JournalError(FedgramError):
    """A results file that cannot be read or written."""


class UnknownName(FedgramError):
    """A name (of a method, data set, parameter, …) that does not exist, with the nearest one that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known: {', '.join(known) or 'none'}")


class RankDeficient(UserWarning):
    """The pooled features do not span their space; the minimum-norm solution was taken."""


class LostPrecision(UserWarning):
    """What was computed is smaller than rounding errors of what it was made of: of a subtraction, or of columns that
    are far from zero.
    """


class Revealing(UserWarning):
    """What is sent to the clients lets one of them compute something of another."""


class Doubtful(UserWarning):
    """Something in the data that can be used, but is probably not meant so."""


class Skipped(UserWarning):
    """Samples that were left out because they cannot be used, by name."""


def tell(error: Exception) -> str:
    """Return what another party may know of an error: a rule, at most a column's name, never data or paths.

    >>> tell(InvalidData("column 'id' holds 'W1000'").telling("column 'id' must hold numbers"))
    "column 'id' must hold numbers"
    >>> tell(InvalidData("column 'id' holds 'W1000'")), tell(KeyError("W1000"))
    ('InvalidData: the data here cannot be used', 'KeyError: unexpected')
    """
    link: BaseException | None = error
    while link is not None:  # an error that was put into other words may still know what to tell
        if isinstance(link, FedgramError) and link.told is not None:
            return link.told
        link = link.__cause__
    return f"{type(error).__name__}: {error.kind if isinstance(error, FedgramError) else 'unexpected'}"


@contextmanager
def about_the_request() -> Iterator[None]:
    """Let errors raised inside be told as they are: they speak only of what the other party has sent."""
    try:
        yield
    except FedgramError as error:
        error.telling()
        raise
