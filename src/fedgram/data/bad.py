"""Samples that cannot be used: reported by name, then refused or skipped as the user chose."""

import warnings
from collections.abc import Sequence
from typing import Literal, Self, get_args

from fedgram.errors import InvalidData, InvalidParameter

OnBad = Literal["refuse", "skip"]
_SHOWN = 5


class Skipped(UserWarning):
    """Samples that were left out because they cannot be used, by name."""


class Reason(str):
    """Why a sample is bad. `rule` says it without quoting the sample, for those who may not see it."""

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
    """Refuse anything but "refuse" and "skip"."""
    if on_bad not in get_args(OnBad):
        raise InvalidParameter(f"on_bad must be one of {', '.join(get_args(OnBad))}; got {on_bad!r}")


def settle(bad: Sequence[str], kept: int, where: str, kind: str, on_bad: OnBad) -> None:
    """Do as the user chose about the bad samples, each described as `name: reason`; also refuse if none is left.

    Other parties are told the rules of those reasons that have one, and nothing of the samples.
    """
    if bad:
        listed = "; ".join(bad[:_SHOWN]) + (f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
        found = f"{len(bad)} bad {kind}{'s' if len(bad) > 1 else ''} in {where}: {listed}"
        if on_bad == "refuse":
            rules = dict.fromkeys(reason.rule for reason in bad if isinstance(reason, Reason))
            error = InvalidData(f"{found}. Mend or remove them, or leave them out with on-bad 'skip'")
            raise error.telling(f"bad {kind}s: {'; '.join(list(rules)[:_SHOWN])}") if rules else error
        warnings.warn(f"skipped {found}", Skipped, stacklevel=3)
    if not kept:
        raise InvalidData(f"{where} holds no usable {kind}").telling(f"the data hold no usable {kind}")
