"""Secure sums: parties send masked numbers once, witnesses send sums of masks, and a coordinator learns the sum.

A `SecureParty` adds masks to its numbers and sends the masks' seeds along, each sealed to the witnesses that may open
it. A `Coordinator` adds up what arrives, and asks the witnesses for the sum of the masks of just these parties. A
`Witness` answers only if no combination of its answers shows a group of fewer parties than the study requires.

Uploads, headers and answers are bytes, so they can cross any wire.

>>> keys, witnesses = {name: PrivateKey.new() for name in "abc"}, [PrivateKey.new(), PrivateKey.new()]
>>> coordinator_key = PrivateKey.new()
>>> public = {name: key.public for name, key in keys.items()}
>>> roster = Roster("walks", coordinator_key.public, public, tuple(key.public for key in witnesses))
>>> coordinator = Coordinator(roster, coordinator_key, [Witness(roster, key) for key in witnesses])
>>> collected = coordinator.collect("summarize", 0, digest="0f" * 32, count=2)
>>> for name, key in keys.items():
...     numbers, party = Fixed.of(np.array([1.0, -0.5]), parties=3), SecureParty(roster, name, key)
...     collected.add(name, party.upload(collected.request, numbers, version="1"))
>>> coordinator.total(collected).floats()
array([ 3. , -1.5])
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, Self

import numpy as np

from fedgram.core import container, wire
from fedgram.core.errors import InvalidParameter, RefusedMessage
from fedgram.core.fixed_point import Fixed
from fedgram.core.hashing import hash_bytes, hash_json
from fedgram.core.schema import Count, Natural, annotations_of, read
from fedgram.secure.masks import masked, new_seed, sum_of_streams
from fedgram.secure.sealing import open_message, seal_message
from fedgram.secure.signing_keys import PrivateKey, PublicKey
from fedgram.secure.witness_ledger import TRAINING, Members, WitnessLedger

MOST_WITNESSES = 5
FEWEST_PARTIES = 3  # with two, each knows the other's part of a sum
UPLOAD, ANSWER, APPROVAL = "upload", "streams", "chain"  # kinds of signed messages


@dataclass(frozen=True)
class Roster:
    """The keys and thresholds of a secure study, which all sides must confirm before anything is masked or answered.

    Parameters
    ----------
    study
        The fingerprint of the sums: columns, classes and thresholds.
    coordinator
        The key to which parties seal their uploads.
    parties
        The parties' keys, by name.
    witnesses
        The witnesses' keys, one to five.
    needed
        How many witnesses must answer, t of the m that there are; None for all.
    minimum_parties
        The fewest parties of a group that sums may show.

    """

    study: str
    coordinator: PublicKey
    parties: Mapping[str, PublicKey]
    witnesses: tuple[PublicKey, ...]
    needed: int | None = None
    minimum_parties: int = FEWEST_PARTIES

    def __post_init__(self) -> None:
        """Raise for numbers with which sums would not be secure."""
        count = len(self.witnesses)
        check_numbers(count, self.needed, self.minimum_parties)
        keys = [self.coordinator, *self.witnesses, *self.parties.values()]
        if len(set(keys)) < len(keys):
            raise InvalidParameter("keys: expected one for each party, witness and coordinator, got the same twice")
        if len(self.parties) < self.minimum_parties:
            raise InvalidParameter(
                f"parties: expected at least {self.minimum_parties}, got {len(self.parties)}; their sum would show a "
                "smaller group than minimum_parties allows: ask more to join"
            )

    @property
    def answers_needed(self) -> int:
        """How many witnesses must answer."""
        return len(self.witnesses) if self.needed is None else self.needed

    @property
    def plotters(self) -> int:
        """How many witnesses may plot with the coordinator without learning more than it alone."""
        return 2 * self.answers_needed - len(self.witnesses) - 1

    @cached_property
    def identity(self) -> str:
        """The digest that masks and signatures are bound to: all but the parties, of which more may join."""
        keys = [self.coordinator.text, *(key.text for key in self.witnesses)]
        return hash_json([self.study, keys, self.answers_needed, self.minimum_parties])

    @cached_property
    def holders(self) -> list[tuple[int, ...]]:
        """The places of the witnesses that open the seed of each stream.

        There is a stream for each set of one witness fewer than needed, and all other witnesses hold its seed. So
        whichever witnesses answer, if they are as many as needed, one of them holds it; one fewer lack one.
        """
        places = range(len(self.witnesses))
        without = combinations(places, self.answers_needed - 1)
        return [tuple(place for place in places if place not in left_out) for left_out in without]


def check_numbers(witnesses: int, needed: int | None, minimum_parties: int) -> None:
    """Raise for numbers of witnesses and parties with which sums would not be secure."""
    if not 1 <= witnesses <= MOST_WITNESSES:
        raise InvalidParameter(f"witnesses: expected 1 to {MOST_WITNESSES}, got {witnesses}")
    if needed is not None and not witnesses / 2 < needed <= witnesses:
        raise InvalidParameter(
            f"needed: expected more than half of the {witnesses} witnesses and at most all, got {needed}; with fewer, "
            "two halves could answer for sums whose difference is a single party"
        )
    if minimum_parties < FEWEST_PARTIES:
        raise InvalidParameter(
            f"minimum_parties: expected at least {FEWEST_PARTIES}, got {minimum_parties}; of a sum of two, each party "
            "knows the other's part"
        )


@dataclass(frozen=True)
class Request:
    """The request that all parties of a sum answer.

    Attributes
    ----------
    run
        The run, a random text.
    number
        The number of the request in the run: steps and rounds may be asked for twice.
    step, round
        The step and the round.
    digest
        SHA-256 of the whole request, in hexadecimal.
    count
        How many numbers each party sends.

    """

    run: str
    number: Natural
    step: str
    round: Natural
    digest: str
    count: Count


class Signed(NamedTuple):
    """A header in JSON, and its signature."""

    header: bytes
    signature: bytes


@dataclass(frozen=True)
class _Header:
    """The header of an upload: what the seeds are bound to, and the sealed seeds."""

    identity: str
    request: Mapping[str, Any]
    party: str
    rows: str
    version: str
    upload: str
    seeds: Sequence[Sequence[str]]

    @classmethod
    def of(cls, signed: Signed, roster: Roster) -> "tuple[Self, Request]":
        """Return the header and its request; raise if it is not signed by its party, or of another study."""
        try:
            table = container.parse(signed.header)
            kinds = annotations_of(_Header)
            found = cls(**{name: read(kind, table[name], name, error=RefusedMessage) for name, kind in kinds.items()})
            kinds = annotations_of(Request)
            about = {name: read(kind, found.request[name], name, error=RefusedMessage) for name, kind in kinds.items()}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RefusedMessage(
                f"header of an upload: expected the fields of an upload, got others ({error})"
            ) from error
        if found.identity != roster.identity:
            raise RefusedMessage(
                f"study of the upload of {found.party!r}: expected {roster.identity[:16]}, got {found.identity[:16]}; "
                "its sender knows other keys or thresholds: compare the fingerprints by another way"
            )
        if found.party not in roster.parties:
            raise RefusedMessage(f"party {found.party!r}: expected one of the study's, got another")
        roster.parties[found.party].verify(UPLOAD, signed.header, signed.signature)
        if [len(sealed) for sealed in found.seeds] != [len(holders) for holders in roster.holders]:
            raise RefusedMessage(f"seeds of {found.party!r}: expected one for each stream and witness, got others")
        return found, Request(**about)

    def context(self, stream: int, receiver: PublicKey) -> bytes:
        """Return the study, run, request, upload and receiver that a seed is bound to: it opens nowhere else."""
        bound = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "seeds"}
        return _json(bound | {"stream": stream, "receiver": receiver.text})


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(numbers: Fixed) -> str:
    return hash_bytes(np.ascontiguousarray(limbs, dtype="<u8").data for limbs in (numbers.high, numbers.low))


def _bytes(array: Any) -> bytes:
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
        raise RefusedMessage("upload: expected a header and a signature as bytes, got something else")
    return array.tobytes()


class SecureParty:
    """A party that masks its numbers before they leave it.

    Parameters
    ----------
    roster
        The study's keys as the party has confirmed them; they decide who can take the masks away.
    name
        The party's name.
    key
        Its private key.

    """

    def __init__(self, roster: Roster, name: str, key: PrivateKey) -> None:
        self._roster, self._name, self._key = roster, name, key
        self._answered: dict[str, int] = {}  # the last request of each run

    def upload(self, request: Request, numbers: Fixed, *, version: str, rows: str = TRAINING) -> bytes:
        """Return the masked numbers with the sealed seeds, signed, and sealed to the coordinator.

        A request that was answered, or is older than one that was, is refused: two answers under different masks could
        be of different numbers.

        Parameters
        ----------
        request
            The request.
        numbers
            The party's numbers, of at least one row: zeros of parties without rows would hide nothing.
        version
            A keyed digest of the rows: the same in all uploads until rows change, and telling nothing about them.
        rows
            The rows that the numbers are of, "training" or "test".

        """
        if request.number <= (last := self._answered.get(request.run, -1)):
            raise RefusedMessage(
                f"number of the request: expected more than {last}, the last one answered, got {request.number}"
            )
        if len(numbers) != request.count:
            raise RefusedMessage(f"count of the request: expected {len(numbers)} numbers, got {request.count}")
        self._answered[request.run] = request.number
        seeds = [new_seed() for _ in self._roster.holders]
        hidden = masked(numbers, seeds)
        bound = self._roster.identity, asdict(request), self._name, rows, version, _digest(hidden)
        header = _Header(*bound, ())
        sealed = [
            [
                seal_message(seed, self._witness(place), header.context(stream, self._witness(place))).hex()
                for place in own
            ]
            for stream, (seed, own) in enumerate(zip(seeds, self._roster.holders, strict=True))
        ]
        text = _json(asdict(header) | {"seeds": sealed})
        parts = {"header": text, "signature": self._key.sign(UPLOAD, text)}
        content = {name: np.frombuffer(part, dtype=np.uint8) for name, part in parts.items()}
        data = wire.encode(content | {"high": hidden.high, "low": hidden.low}, sealed=False)
        return seal_message(data, self._roster.coordinator, _json(asdict(request)))

    def _witness(self, place: int) -> PublicKey:
        return self._roster.witnesses[place]


class Answer(NamedTuple):
    """A witness's answer: a signed header, and the sum of each stream that it holds, by the stream's number."""

    signed: Signed
    streams: Mapping[int, Fixed]


class Witness:
    """A witness, who sums the masks of a set of parties, and sees neither numbers nor uploads.

    Parameters
    ----------
    roster
        The study's keys as the witness has confirmed them.
    key
        Its private key.
    ledger
        The sets that it has answered, a `StoredLedger`; None for a witness of a single run, which keeps them in memory.

    """

    def __init__(self, roster: Roster, key: PrivateKey, ledger: WitnessLedger | None = None) -> None:
        if key.public not in roster.witnesses:
            raise InvalidParameter(f"key: expected one of the study's witnesses, got {key.public}")
        self._roster, self._key = roster, key
        self.place = roster.witnesses.index(key.public)
        self._ledger = ledger or WitnessLedger(roster.minimum_parties)

    def approve(self, chain: Sequence[Members]) -> bytes:
        """Return the signature of a chain of sets, which continues all chains that this witness has signed.

        Where not all witnesses must answer, two of them could be asked for different sets, of which each is harmless.
        So a set is answered only as part of a chain that as many witnesses as are needed have signed. Any two such
        groups share an honest witness, who signs one chain.
        """
        self._ledger.follow(chain)
        return self._key.sign(APPROVAL, _chain(self._roster, chain))

    def answer(
        self,
        headers: Sequence[Signed],
        chain: Sequence[Members] = (),
        approvals: Mapping[int, bytes] | None = None,
    ) -> Answer:
        """Return the sums of the masks of these parties; raise if one header is not in order, or sums would tell more.

        Parameters
        ----------
        headers
            The signed headers of all parties in the sum.
        chain, approvals
            Where not all witnesses must answer, the chain of sets with this one, and the signatures of `approve` by the
            witnesses' places.

        """
        read_headers = [_Header.of(signed, self._roster) for signed in headers]
        if len({_json(asdict(request)) for _, request in read_headers}) != 1:
            raise RefusedMessage("request: expected the same of all parties of a sum, got several, or no party")
        members = _members([header for header, _ in read_headers])
        [request] = {request for _, request in read_headers}
        seeds = {stream: self._opened(stream, [header for header, _ in read_headers]) for stream in self._held()}
        if self._roster.answers_needed < len(self._roster.witnesses):
            self._check_approved(members, chain, approvals or {})
        else:
            self._ledger.admit(members)
        streams = {stream: sum_of_streams(own, request.count) for stream, own in seeds.items()}
        text = _answer_header(self._roster, self.place, headers, streams)
        return Answer(Signed(text, self._key.sign(ANSWER, text)), streams)

    def _held(self) -> list[int]:
        return [stream for stream, own in enumerate(self._roster.holders) if self.place in own]

    def _opened(self, stream: int, headers: Sequence[_Header]) -> list[bytes]:
        """Return the seeds of a stream, of all parties."""
        place = self._roster.holders[stream].index(self.place)
        found = []
        for header in headers:
            try:
                sealed = bytes.fromhex(header.seeds[stream][place])
            except ValueError as error:
                raise RefusedMessage(f"seeds of {header.party!r}: expected hexadecimal digits, got others") from error
            found.append(open_message(sealed, self._key, header.context(stream, self._key.public)))
        return found

    def _check_approved(self, members: Members, chain: Sequence[Members], approvals: Mapping[int, bytes]) -> None:
        if members not in chain:
            raise RefusedMessage("set of parties: expected one of the approved chain, got another")
        known = dict(enumerate(self._roster.witnesses))
        for place, signature in approvals.items():
            if place not in known:
                raise RefusedMessage(f"approvals: expected those of {len(known)} witnesses, got one of witness {place}")
            known[place].verify(APPROVAL, _chain(self._roster, chain), signature)
        if len(approvals) < self._roster.answers_needed:
            raise RefusedMessage(
                f"approvals of the chain: expected {self._roster.answers_needed} witnesses', got {len(approvals)}"
            )
        self._ledger.follow(chain)


def _members(headers: Sequence[_Header]) -> Members:
    if len({header.party for header in headers}) < len(headers):
        raise RefusedMessage("parties of a sum: expected each once, got one twice")
    if len({header.rows for header in headers}) > 1:
        raise RefusedMessage("rows of a sum: expected the training or the test rows of all parties, got both")
    return frozenset((header.party, header.rows, header.version) for header in headers)


def _chain(roster: Roster, chain: Sequence[Members]) -> bytes:
    return _json({"identity": roster.identity, "chain": [sorted(members) for members in chain]})


def _answer_header(roster: Roster, place: int, headers: Sequence[Signed], streams: Mapping[int, Fixed]) -> bytes:
    """Return what a witness signs: its streams belong to these uploads and to no others."""
    uploads = sorted(hash_bytes([signed.header]) for signed in headers)
    digests = {str(stream): _digest(found) for stream, found in streams.items()}
    return _json({"identity": roster.identity, "witness": place, "uploads": uploads, "streams": digests})


class Collected:
    """The uploads of one request, added up as they arrive: memory does not depend on the number of parties.

    Parameters
    ----------
    roster
        The study's keys.
    key
        The coordinator's private key.
    request
        The request.

    """

    def __init__(self, roster: Roster, key: PrivateKey, request: Request) -> None:
        self.request = request
        self.headers: dict[str, Signed] = {}  # by party
        self.members: Members = frozenset()
        self.hidden = Fixed.zeros(request.count)
        self._roster, self._key = roster, key

    def add(self, party: str, upload: bytes) -> None:
        """Add a party's upload; raise if it is not its answer to this request."""
        content = wire.decode(open_message(upload, self._key, _json(asdict(self.request))), sender=party, sealed=False)
        if not isinstance(content, dict) or content.keys() != {"header", "signature", "high", "low"}:
            raise RefusedMessage("upload: expected a header, a signature and numbers, got something else")
        signed = Signed(_bytes(content["header"]), _bytes(content["signature"]))
        header, request = _Header.of(signed, self._roster)
        shape = wire.Field("uint64", (self.request.count,))
        wire.check_arrays("upload", {"high": shape, "low": shape}, content)
        numbers = Fixed(content["high"], content["low"])
        if (header.party, request, header.upload) != (party, self.request, _digest(numbers)):
            raise RefusedMessage(f"upload of {party!r}: expected its answer to this request, got another")
        if party in self.headers:
            raise RefusedMessage(f"upload of {party!r}: expected one, got a second")
        self.headers[party] = signed
        self.members |= {(party, header.rows, header.version)}
        self.hidden = self.hidden.wrapped_sum(numbers)


class Coordinator:
    """The coordinator's side of secure sums in one run.

    Parameters
    ----------
    roster
        The study's keys.
    key
        The coordinator's private key.
    witnesses
        The witnesses that can be asked, at least as many as are needed.

    """

    def __init__(self, roster: Roster, key: PrivateKey, witnesses: Sequence[Witness]) -> None:
        self.roster = roster
        self._key, self._witnesses = key, witnesses
        self._run, self._asked = secrets.token_hex(16), 0
        self._chain: list[Members] = []
        self._approvals: dict[int, bytes] = {}

    @property
    def upcoming(self) -> dict[str, Any]:
        """The run and the number of the next request, which the parties must know."""
        return {"run": self._run, "number": self._asked}

    def collect(self, step: str, round: int, *, digest: str, count: int) -> Collected:
        """Return an empty collection of uploads for a new request."""
        request = Request(self._run, self._asked, step, round, digest, count)
        self._asked += 1
        return Collected(self.roster, self._key, request)

    def total(self, collected: Collected) -> Fixed:
        """Return the sum of the numbers of all parties whose uploads have arrived."""
        if len(self._witnesses) < self.roster.answers_needed:
            raise RefusedMessage(
                f"witnesses: expected answers of {self.roster.answers_needed}, got those of {len(self._witnesses)}"
            )
        headers = [collected.headers[party] for party in sorted(collected.headers)]
        if self.roster.answers_needed < len(self.roster.witnesses) and collected.members not in self._chain:
            chain = [*self._chain, collected.members]
            self._approvals = {witness.place: witness.approve(chain) for witness in self._witnesses}
            self._chain = chain
        total, found = collected.hidden, dict[int, tuple[int, Fixed]]()
        for witness in self._witnesses:
            answer = self._checked(witness.place, witness.answer(headers, self._chain, self._approvals), headers)
            for stream, numbers in answer.streams.items():
                if stream not in found:
                    found[stream] = witness.place, numbers
                    total = total - numbers
                elif found[stream][1] != numbers:
                    raise RefusedMessage(
                        f"stream {stream}: expected the same sum of all its holders, got different ones of witnesses "
                        f"{found[stream][0]} and {witness.place}; one of them, or a party, is at fault"
                    )
        return total

    def _checked(self, place: int, answer: Answer, headers: Sequence[Signed]) -> Answer:
        """Return a witness's answer; raise if it is not signed, or not of these uploads and all its streams."""
        self.roster.witnesses[place].verify(ANSWER, *answer.signed)
        held = {stream for stream, own in enumerate(self.roster.holders) if place in own}
        if answer.signed.header != _answer_header(self.roster, place, headers, answer.streams):
            raise RefusedMessage(f"answer of witness {place}: expected one to this set of uploads, got another")
        if answer.streams.keys() != held:
            raise RefusedMessage(f"answer of witness {place}: expected its {len(held)} streams, got others")
        return answer
