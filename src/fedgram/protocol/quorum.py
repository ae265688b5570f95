"""The participants of a run: clients that can be asked, clients that are gone and why, and the required number."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from numbers import Integral
from typing import Literal

import numpy as np

from fedgram.core.errors import ClientFailed, FedgramError, InvalidParameter, MissingClients, UnknownName
from fedgram.core.wire import Payload

NO_SAMPLES = "no samples"


class Quorum:
    """The clients of a run by name. `require` is "all", a number of them, or a fraction."""

    def __init__(self, names: Sequence[str], require: str | float = "all") -> None:
        self.everyone = names
        self.heard: set[str] = set()  # clients whose replies have entered the result
        self.gone: dict[str, str] = {}  # clients that cannot be asked any more, each with the reason
        self._require = _checked(require, len(names))

    @property
    def names(self) -> list[str]:
        """Clients that can be asked: they have samples and have not failed."""
        return [name for name in self.everyone if name not in self.gone]

    @property
    def present(self) -> list[str]:
        """Clients that have not failed, those without samples included."""
        return [name for name in self.everyone if self.gone.get(name, NO_SAMPLES) == NO_SAMPLES]

    @property
    def contributors(self) -> list[str]:
        """Clients whose replies have entered the result, in the engine's order."""
        return [name for name in self.everyone if name in self.heard]

    @property
    def absent(self) -> dict[str, str]:
        """Clients that have not contributed and will not, with the reason."""
        return {name: why for name, why in self.gone.items() if name not in self.heard}

    @property
    def lost(self) -> dict[str, str]:
        """Clients that have contributed and then failed, with the reason."""
        return {name: why for name, why in self.gone.items() if name in self.heard}

    def lose(self, failures: Mapping[str, FedgramError], *, during: str) -> None:
        """Go on without some clients, or end the run if too few are left."""
        self.gone.update({name: f"{during}: {error}" for name, error in failures.items()})
        what = "; ".join(f"client {name!r}: {error}" for name, error in failures.items())
        if self._require == "all" and failures:
            raise ClientFailed(f"{during}: {what}") from next(iter(failures.values()))
        left, required = len(self.names), self._required()
        if left < required:
            why = what or "the other clients have no samples"
            raise MissingClients(f"{during}: {left} clients left, {required} required; {why}") from next(
                iter(failures.values()), None
            )

    def unanswered(self, *, during: str) -> MissingClients:
        """Return the error that ends a run in which a step got no reply."""
        gone = "; ".join(f"client {name!r}: {why}" for name, why in self.gone.items() if why != NO_SAMPLES)
        return MissingClients(
            f"{during}: none of the clients that were asked has replied, so there is nothing to go on with; "
            f"ask more of them at once. Lost so far: {gone or 'none'}"
        )

    def leave_out(self, name: str) -> None:
        """Go on without a client that has no samples; it does not count as lost."""
        self.gone[name] = NO_SAMPLES

    def tasks(
        self, payload: Payload, to: Iterable[str] | None, per_client: Mapping[str, Payload] | None
    ) -> list[tuple[str, Payload]]:
        """Return the clients to ask (by default all that can be), each with its payload."""
        if to is not None and per_client is not None:
            raise InvalidParameter("give `to` or `per_client`, not both: the keys of per_client say who is asked")
        if per_client is not None:
            tasks = list(per_client.items())
        else:
            names = self.names if to is None else [to] if isinstance(to, str) else to
            tasks = [(name, payload) for name in names]
        if strangers := {name for name, _ in tasks}.difference(self.everyone):
            raise UnknownName("client", min(strangers), self.everyone)
        return tasks

    def _required(self) -> int:
        """Return the number of clients with samples that must be left; clients without samples do not count."""
        filled = len(self.everyone) - list(self.gone.values()).count(NO_SAMPLES)
        if self._require == "all":
            return filled
        # Rounding must not count: 0.07 of 100 is 7, although the product is a little more.
        return self._require if isinstance(self._require, int) else ceil(self._require * filled - 1e-9)


def _checked(require: object, clients: int) -> Literal["all"] | int | float:
    if require == "all":
        return "all"
    if isinstance(require, Integral) and not isinstance(require, bool) and 1 <= int(require) <= clients:
        return int(require)
    if isinstance(require, float) and 0 < require <= 1:
        return require
    raise InvalidParameter(
        f"require must be 'all', a number of clients from 1 to {clients}, or a fraction such as 0.8, got {require!r}"
    )


def draw_share(names: Sequence[str], rng: np.random.Generator, share: float, up_to: float | None = None) -> list[str]:
    """Return a random share of the names, at least one, the same for any order; `up_to` draws the share, too."""
    if not 0 < share <= (1 if up_to is None else up_to) <= 1:
        raise InvalidParameter(
            f"the share of clients must be more than 0 and at most 1, got {share}"
            + ("" if up_to is None else f" to {up_to}")
        )
    share = share if up_to is None else rng.uniform(share, up_to)
    chosen = set(rng.choice(sorted(names), size=max(1, round(share * len(names))), replace=False).tolist())
    return [name for name in names if name in chosen]
