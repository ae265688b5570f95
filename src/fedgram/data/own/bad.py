"""Samples that cannot be used: reported by name, then refused or skipped as the user chose."""

import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Self, get_args

from fedgram.core.classes import Label
from fedgram.core.errors import BadSamples, Doubtful, InvalidData, InvalidParameter, Skipped

OnBad = Literal["refuse", "skip"]
SHOWN = 5
MEND = "Mend or remove them, or leave them out with --on-bad skip (in Python on_bad='skip')"
MEND_ALL = "Mend them: without them nothing is left"
# A file that claims to hold EXPANSION times its size, and SPARE_BYTES more, is hardly data.
EXPANSION, SPARE_BYTES = 200, 1 << 28


def warn_of_look_alikes(names: Iterable[Label], where: str) -> None:
    """Warn of names that differ only in upper and lower case, in blanks, or in invisible characters."""
    seen: dict[str, str] = {}
    for name in names:
        if isinstance(name, str) and (other := seen.setdefault(_seen_as(name), name)) != name:
            warnings.warn(
                f"{other!a} and {name!a} in {where} differ only in upper and lower case, in blanks or in invisible "
                "characters, but count as two: write them alike if they are one",
                Doubtful,
                stacklevel=4,
            )


def _seen_as(name: str) -> str:
    """Return the form that names which look alike share."""
    shown = "".join(letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) != "Cf")
    return " ".join(shown.split()).casefold()


class Reason(str):
    """The reason why a sample is bad. `rule` gives it without quoting the sample, for other parties."""

    rule: str

    def __new__(cls, text: str, rule: str) -> Self:
        """Return the text, with its rule."""
        reason = super().__new__(cls, text)
        reason.rule = rule
        return reason

    def at(self, place: str) -> "Reason":
        """Return the reason with the sample's place in front of it."""
        return Reason(f"{place}: {self}", self.rule)


def check_on_bad(on_bad: str) -> None:
    """Raise unless `on_bad` is "refuse" or "skip"."""
    if on_bad not in get_args(OnBad):
        raise InvalidParameter(f"on_bad must be one of {', '.join(get_args(OnBad))}; got {on_bad!r}")


def check_expansion(claimed: int, path: Path) -> None:
    """Raise for a file that would become implausibly large in memory for its size, before it is read."""
    size = path.stat().st_size
    if claimed > SPARE_BYTES + EXPANSION * size:
        raise InvalidData(
            f"{path} has {size:,} bytes and claims to hold {claimed:,}: refused; if that is true, save it uncompressed"
        )


def settle(
    bad: Sequence[str], kept: int, where: str, kind: str, on_bad: OnBad, *, total: int | None = None, remedy: str = ""
) -> None:
    """Warn of bad samples, each described as `name: reason`, or raise, as the user chose; raise if no good one is left.

    `total` is the number of bad samples, if `bad` describes only the first `SHOWN`. `remedy` is the advice if leaving
    samples out does not help. Other parties are told the rules of the reasons, and nothing of the samples.
    """
    count = len(bad) if total is None else total
    if count:
        listed = "; ".join(bad[:SHOWN]) + (f"; and {count - SHOWN} more" if count > SHOWN else "")
        found = f"{count} bad {kind}{'s' if count > 1 else ''} in {where}: {listed}"
        # If nothing would be left, an error with the reasons is more useful.
        if on_bad == "refuse" or not kept:
            rules = dict.fromkeys(reason.rule for reason in bad if isinstance(reason, Reason))
            error = BadSamples(f"{found}. {remedy or (MEND if kept else MEND_ALL)}")
            raise error.telling(f"bad {kind}s: {'; '.join(list(rules)[:SHOWN])}") if rules else error
        warnings.warn(f"skipped {found}", Skipped, stacklevel=3)
    if not kept:
        nothing = f"holds no usable {kind}{remedy and f'. {remedy}'}"
        raise InvalidData(f"{where} {nothing}").telling(f"the data hold no usable {kind}")
