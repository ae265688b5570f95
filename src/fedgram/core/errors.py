"""The errors and warnings of fedgram, by name.

Every error tells the field, the expected and the actual value, and the remedy. All of them are `FedgramError`, which is
a `ValueError`, so a caller may catch any of them by its class or all together; the command line prints the message as
one line and exits with code 2.

An error may quote cells, labels and paths, which must not leave their machine. `tell` gives the text
that another party may see: the one set by `telling`, or else no more than the error's kind.
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
        """Return this error with the text that another party may see; without `text`, the whole message."""
        self.told = str(self) if text is None else text
        return self


class InvalidParameter(FedgramError):
    """A hyper-parameter or option has a value that makes no sense."""

    kind = "an option given here cannot be used"


class InvalidData(FedgramError):
    """Features or labels cannot be used: wrong shape, NaN, unknown label, no samples."""

    kind = "the data here cannot be used"


class MissingFile(InvalidData, FileNotFoundError):
    """A file that does not exist; also a `FileNotFoundError`, so that it can be caught as Python's own."""


class BadSamples(InvalidData):
    """Some samples of a file cannot be used; the message says which and why."""


class NumericLabels(InvalidData):
    """Labels that are numbers with fractions: a numeric outcome, which needs a study, not classes."""


class Separated(InvalidData):
    """Columns that predict an outcome perfectly, so that a coefficient is infinite."""


class NotConverged(FedgramError):
    """An iteration that has not reached its end in the rounds that it may take."""


class Withheld(InvalidData):
    """A client's own limits keep it from sending anything; its figures are for itself, the rule may be told."""


class Mismatch(FedgramError):
    """Two objects that should be combined do not fit each other."""


class NotMoments(FedgramError):
    """Arrays that cannot be the moments of any data set."""


class RefusedMessage(FedgramError):
    """Bytes from another party that fail a check; the message names the party, the field and the value."""


class ClientFailed(FedgramError):
    """A client could not perform a step."""


class MissingClients(FedgramError):
    """Fewer clients than required took part."""


class MissingExtra(FedgramError):
    """A feature needs an optional dependency that is not installed."""

    kind = "a package that this needs is not installed here"


class BadImage(InvalidData):
    """A file that is not an image, or is cut short."""


class BadArchive(FedgramError):
    """An archive that cannot be read to its end."""


class CacheError(FedgramError):
    """The cache folder cannot be used: full, or not writable."""


class CannotFetch(FedgramError):
    """A source cannot be reached from this machine now; the message says why."""


class WrongChecksum(FedgramError):
    """A file is not the one that was published."""


class NotAvailable(FedgramError):
    """No source has the data; the message says which file to place where."""


class CannotLoad(FedgramError):
    """A model cannot be fetched or read; the message says which, why, and where else it may come from."""


class CannotExport(FedgramError):
    """A network uses operations that ONNX lacks."""


class FolderInUse(FedgramError):
    """Another process is writing to the folder."""


class StoreError(FedgramError):
    """A store of exchanged files cannot be used; the message says why, and what is lost, if anything."""


class JournalError(FedgramError):
    """A results file that cannot be read or written."""


class UnknownName(FedgramError):
    """A name (of a method, data set, parameter, …) that does not exist, with the nearest one that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "") -> None:
        known = sorted(known)
        hint = f"{did_you_mean(name, known)} ".lstrip()
        what = f"{where} has no {kind}" if where else f"unknown {kind}"
        super().__init__(f"{what} {name!r}: {hint}known: {', '.join(known) or 'none'}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name that is nearest to another; "" if no name is near."""
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else ""


class RankDeficient(UserWarning):
    """The pooled features do not span their space; the minimum-norm solution was taken."""


class LostPrecision(UserWarning):
    """A result is smaller than the rounding errors of its terms: of a subtraction, or of columns far from zero."""


class Revealing(UserWarning):
    """Messages to the clients let one client compute something about another."""


class Doubtful(UserWarning):
    """Data that can be used, but probably hold a mistake."""


class Skipped(UserWarning):
    """Samples that were left out because they cannot be used, by name."""


def tell(error: Exception) -> str:
    """Return the text about an error that another party may see: a rule, at most a column's name, never data or paths.

    >>> tell(InvalidData("column 'id' holds 'W1000'").telling("column 'id' must hold numbers"))
    "column 'id' must hold numbers"
    >>> tell(InvalidData("column 'id' holds 'W1000'")), tell(KeyError("W1000"))
    ('InvalidData: the data here cannot be used', 'KeyError: unexpected')
    """
    link: BaseException | None = error
    while link is not None:  # the cause of a reworded error may have such a text
        if isinstance(link, FedgramError) and link.told is not None:
            return link.told
        link = link.__cause__
    return f"{type(error).__name__}: {error.kind if isinstance(error, FedgramError) else 'unexpected'}"


@contextmanager
def about_the_request() -> Iterator[None]:
    """Let other parties see errors raised inside as they are: these describe only data that the party has sent."""
    try:
        yield
    except FedgramError as error:
        error.telling()
        raise
