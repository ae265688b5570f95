"""Witnesses that are simulated in one process, to try secure sums and to see what a method costs on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgram.core.schema import Count, annotations_of, read

if TYPE_CHECKING:
    from fedgram.secure.secure_sums import Coordinator, SecureParty


@dataclass(frozen=True)
class Witnesses:
    """Witnesses of a run on secure sums, for `Method.fit(..., secure=...)`; in one process they are simulated.

    All sides then hold each other's keys in one process, so this hides nothing from its user. It shows whether a method
    works on sums alone, with what result, and at what cost.

    Parameters
    ----------
    count : int
        The number of witnesses, one to five.
    needed : int or None
        How many of them must answer, more than half; None for all.
    minimum_parties : int
        The fewest clients of a group that sums may show, at least three.

    Examples
    --------
    >>> import fedgram as fg
    >>> data = fg.data.digits()
    >>> clients = fg.make_clients(data, fg.partition.iid(len(data.y), clients=5, seed=0))
    >>> plain, secure = (fg.FedGram().fit(clients, classes=10, secure=s) for s in (None, fg.Witnesses(2)))
    >>> bool(abs(plain.model.weights - secure.model.weights).max() < 1e-9), secure.contributions
    (True, None)

    """

    count: int = 2
    needed: int | None = None
    minimum_parties: int = 3

    def __post_init__(self) -> None:
        """Raise for numbers with which sums would not be secure."""
        from fedgram.secure.secure_sums import check_numbers  # for the few runs that need it

        for name, kind in annotations_of(Witnesses).items():
            read(kind if name == "needed" else Count, getattr(self, name), name)
        check_numbers(self.count, self.needed, self.minimum_parties)

    def begin(self, study: str, parties: Iterable[str]) -> "tuple[Coordinator, dict[str, SecureParty]]":
        """Return the coordinator and the parties of a new run, with fresh keys; the coordinator can ask the witnesses.

        Parameters
        ----------
        study
            The fingerprint of the sums.
        parties
            The parties' names.

        """
        from fedgram.secure.secure_sums import Coordinator, Roster, SecureParty, Witness
        from fedgram.secure.signing_keys import PrivateKey

        keys = {name: PrivateKey.new() for name in parties}
        own, witnesses = PrivateKey.new(), [PrivateKey.new() for _ in range(self.count)]
        public = {name: key.public for name, key in keys.items()}
        roster = Roster(
            study, own.public, public, tuple(key.public for key in witnesses), self.needed, self.minimum_parties
        )
        coordinator = Coordinator(roster, own, [Witness(roster, key) for key in witnesses])
        return coordinator, {name: SecureParty(roster, name, key) for name, key in keys.items()}
