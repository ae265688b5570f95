"""How well a model of the other parties predicts each one, from the moments that they have sent anyway."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from fedgram.core.arrays import Array
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.moments.validation import MOST_SITES, SiteError, SiteValidation, validate_sites
from fedgram.protocol.transport import Reply
from fedgram.regressors import Outcomes

# Parties times the cube of the columns: leaving each party out then takes seconds, and their moments less than 100 MB.
MOST_WORK = 1e10


@dataclass(frozen=True, eq=False)
class Sites:
    """The moments of each party, as long as it is cheap to keep them and to leave each party out; `why_not` says so.

    `made` says that their columns are those which methods see, not those that clients have. `basis` makes the ones of
    the others. `outcomes` are the numeric ones.
    """

    moments: Mapping[str, Moments]
    made: bool = True
    why_not: str = ""
    basis: Basis | None = None
    outcomes: Outcomes | None = None

    def in_basis(self, basis: Basis | None) -> Self:
        """Return the same with the basis that was agreed on."""
        outcomes = None if basis is None else basis.outcomes
        return replace(self, basis=None if self.made else basis, outcomes=outcomes)

    @cached_property
    def validation(self) -> dict[str, SiteValidation]:
        """Errors of least squares with an intercept at each party, by name; none if there is nobody to leave out.

        Those of numeric outcomes are in the outcomes' own units.
        """
        if sum(part.n > 0 for part in self.moments.values()) < 2:
            return {}
        seen = {name: part if self.basis is None else self.basis.moments(part) for name, part in self.moments.items()}
        found = validate_sites(seen, outcomes=0 if self.outcomes is None else len(self.outcomes))
        if self.outcomes is None:
            return found
        unit = self.outcomes.unit
        return {
            name: SiteValidation(*(_scaled(error, unit) for error in (site.left_out, site.pooled, site.own)))
            for name, site in found.items()
        }


def _scaled(error: SiteError, unit: Array) -> SiteError:
    squared, about = error.squared_errors * unit**2, error.squares_about_mean * unit**2
    return replace(error, squared_errors=squared, squares_about_mean=about)


class SiteKeeper:
    """Keeps moments as they come, on their way into a sum."""

    def __init__(self, *, made: bool) -> None:
        self._moments: dict[str, Moments] = {}
        self._made, self._why_not = made, ""

    def passing(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """Yield the replies again; moments among them are kept until there are too many."""
        for reply in replies:
            if isinstance(reply.value, Moments) and not self._why_not:
                self._keep(reply.client, reply.value)
            yield reply

    def _keep(self, name: str, moments: Moments) -> None:
        self._moments[name] = moments
        count = len(self._moments)
        if count > MOST_SITES:
            self._why_not = f"there are more than {MOST_SITES} parties"
        elif count * float(moments.d) ** 3 > MOST_WORK:
            self._why_not = f"{moments.d:,} columns are too many to leave out each of {count} or more parties in turn"
        if self._why_not:
            self._moments.clear()

    def sites(self, names: Iterable[str]) -> Sites:
        """Return what was kept of these parties."""
        kept = {name: self._moments[name] for name in names if name in self._moments}
        return Sites(kept, self._made, self._why_not)
