"""Amendments: signed changes of a study's parties and their keys, after the parties have agreed.

The parties agree on a whole study, the genesis. Its rules never change, so that all sums can be added up. What changes
afterwards are its parties and their keys, by amendments: statements that the coordinator signs one by one. Each names
the genesis and the agreement after it, so that a party with the genesis, or with any later state, can follow them.

>>> from fedgram.studies.kinds import Number
>>> coordinator, north, west = PrivateKey.new(), PrivateKey.new(), PrivateKey.new()
>>> study = Study("walks", "y", {"age": Number()}, ("ill", "well"), {"north": north.public.text})
>>> about = {"number": 1, "time": "2026-01-02T03:04:05Z", "genesis": study.agreement}
>>> added = Amendment(what=ADD, party="west", key=west.public.text, **about).signed_by(coordinator, study)
>>> sorted(amended(study, [added], coordinator.public).parties)
['north', 'west']
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from fedgram.core.errors import FedgramError, InvalidData, Mismatch, RefusedMessage
from fedgram.core.filesystem import read_regular
from fedgram.core.hashing import readable, short
from fedgram.exchange.format.fgm import File
from fedgram.exchange.format.header import is_time, party_name
from fedgram.protocol.fit import Fit
from fedgram.secure.signing_keys import PrivateKey, PublicKey
from fedgram.studies.study import Study

ADD, ROTATE, MISTAKE = "add", "rotate", "mistake"
KIND = "amendment"  # the kind of file that an amendment is signed as
NOTE = "amendments"  # name of a publication's note with all amendments
MOST = 100_000  # amendments in a publication
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Rotation:
    """A party's statement that it has a new key, signed with the key before: the file `north.rotation`.

    Attributes
    ----------
    party
        Name of the party.
    former, key
        Public keys before and after.
    signature
        Signature of the former key, in hexadecimal.

    """

    party: str
    former: str
    key: str
    signature: str

    @classmethod
    def new(cls, party: str, former: PrivateKey, key: PublicKey) -> Self:
        """Return the statement of a party that replaces its key."""
        unsigned = cls(party_name(party), former.public.text, key.text, "")
        return replace(unsigned, signature=former.sign("rotation", unsigned._signed).hex())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the statement of a file; raise if it is not signed with the key that it replaces."""
        where = os.fspath(path)
        names = [field.name for field in fields(cls)]
        try:
            found = tomllib.loads(read_regular(path, most=1 << 14).decode())
            if list(found) != names or not all(isinstance(value, str) for value in found.values()):
                raise ValueError
            read = cls(party_name(found["party"]), *(found[name] for name in names[1:]))
            read.check()
        except OSError as error:
            raise InvalidData(f"cannot read the rotation {where}: {error.strerror}") from error
        except FedgramError as error:
            raise InvalidData(f"{where}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidData(
                f"{where} is not a rotation: give the file that `fedgram keys rotate` wrote, or the .pub file if the "
                "former key is lost"
            ) from error
        return read

    @property
    def text(self) -> str:
        """The statement as TOML."""
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in asdict(self).items())

    def check(self) -> None:
        """Raise if the statement is not signed with the key that it replaces."""
        PublicKey(self.key)
        PublicKey(self.former).verify("rotation", self._signed, bytes.fromhex(self.signature))

    @property
    def _signed(self) -> bytes:
        return json.dumps([self.party, self.former, self.key], ensure_ascii=False).encode()


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """A change of a study's parties or keys, signed by the coordinator.

    Attributes
    ----------
    number
        Number of the amendment, from 1.
    what
        "add" for a new party, "rotate" for a new key, "mistake" for a file that was sent under a wrong name.
    party
        Name of the party.
    key, former
        Public key of the party from now on, and before; "" where there is none.
    countersignature
        Signature of the former key by which the party itself states the change (`Rotation`), "" without one.
    contribution
        Digest of the file that was sent by mistake, "" for other amendments.
    time
        Time of the amendment in UTC.
    genesis, agreement
        Agreements of the study at the very beginning and after this amendment; "" without a study.
    signature
        The coordinator's signature in hexadecimal.

    """

    number: int
    what: str
    party: str
    key: str = ""
    former: str = ""
    countersignature: str = ""
    contribution: str = ""
    time: str
    genesis: str
    agreement: str = ""
    signature: str = ""

    @classmethod
    def of_fields(cls, found: Any) -> Self:
        """Return the amendment in plain values; raise if they are not as fedgram writes them."""
        wanted = {field.name: int if field.name == "number" else str for field in fields(cls)}
        if not isinstance(found, Mapping) or {name: type(value) for name, value in found.items()} != wanted:
            raise RefusedMessage(f"an amendment: expected {', '.join(wanted)}, got other fields; ask for it anew")
        read = cls(**found)
        hashes = [each for each in (read.genesis, read.agreement, read.contribution) if each]
        keys = [each for each in (read.key, read.former) if each]
        if (
            read.what not in (ADD, ROTATE, MISTAKE)
            or not is_time(read.time)
            or not all(map(_HASH.fullmatch, hashes))
            or any(PublicKey(key).text != key for key in keys)
            or (read.what == MISTAKE) != (not read.key)
            or (read.what == MISTAKE) != bool(read.contribution)
        ):
            raise RefusedMessage(
                f"amendment {read.number}: expected a change with its time, keys and digests, got {read.what[:20]!r} "
                "with others; ask for it anew"
            )
        party_name(read.party)
        return read

    def plain(self) -> dict[str, Any]:
        """Return the amendment as plain values."""
        return asdict(self)

    @property
    def signed(self) -> bytes:
        """The bytes that the coordinator signs."""
        return json.dumps(asdict(replace(self, signature="")), ensure_ascii=False).encode()

    def signed_by(self, key: PrivateKey, study: Study | None) -> Self:
        """Return the amendment of a study, with the agreement after it and the coordinator's signature."""
        after = self.applied(study)
        made = replace(self, agreement="" if after is None else after.agreement)
        return replace(made, signature=key.sign(KIND, made.signed).hex())

    def check(self, key: PublicKey) -> None:
        """Raise if the amendment, or the consent of a party to its new key, is not signed by the right key."""
        try:
            key.verify(KIND, self.signed, bytes.fromhex(self.signature))
            if self.countersignature:
                Rotation(self.party, self.former, self.key, self.countersignature).check()
        except (FedgramError, ValueError) as error:
            raise RefusedMessage(
                f"amendment {self.number} ({self.line}) is not signed with the coordinator's key {key}, or not "
                f"countersigned as it says: {error}"
            ) from error

    def applied(self, study: Study | None) -> Study | None:
        """Return the study after the amendment; raise if it cannot follow on that study."""
        if study is None or self.what == MISTAKE:
            return study
        known = study.parties.get(self.party)
        if self.what == ADD and (known is not None or not study.parties):
            why = "lists it already" if study.parties else "is open to all"
            raise Mismatch(f"amendment {self.number} adds party {self.party!r}, and study {study.name!r} {why}")
        if self.what == ROTATE and known not in (None, "", self.former):
            raise Mismatch(f"amendment {self.number} replaces another key of {self.party!r} than the study lists")
        if self.what == ROTATE and known is None:
            if study.parties:
                raise Mismatch(f"amendment {self.number}: study {study.name!r} does not list {self.party!r}")
            return study  # open to all: the store keeps the key
        return replace(study, parties={**study.parties, self.party: self.key})

    @property
    def line(self) -> str:
        """The amendment as a text."""
        if self.what == ADD:
            return f"{self.party!r} added on {self.time}, key {self.key}"
        if self.what == MISTAKE:
            return f"contribution {short(self.contribution)} of {self.party!r} withdrawn as a mistake on {self.time}"
        if not self.former:
            return f"{self.party!r} has its first key since {self.time}: {self.key}"
        consent = "countersigned with the key before" if self.countersignature else "NOT countersigned: compare it"
        return f"{self.party!r} has a new key since {self.time}: {self.key} ({consent})"


def numbered(amendments: Iterable[Amendment]) -> tuple[str, ...]:
    """Return amendments as texts with their numbers."""
    return tuple(f"{each.number}: {each.line}" for each in amendments)


def amended(genesis: Study | None, amendments: Sequence[Amendment], key: PublicKey) -> Study | None:
    """Return the study after all amendments; raise if one is not the coordinator's, or does not follow on the last.

    Parameters
    ----------
    genesis
        The study that the parties agreed on, None for a store without a study.
    amendments
        The amendments from the first to the last.
    key
        The coordinator's public key.

    """
    _check_chain(amendments, key)
    began = "" if genesis is None else genesis.agreement
    if amendments and amendments[0].genesis != began:
        got = readable(amendments[0].genesis)
        raise Mismatch(f"amendments of another study: expected those of {readable(began)}, got those of {got}")
    return _after(genesis, amendments)


def _check_chain(amendments: Sequence[Amendment], key: PublicKey) -> None:
    for place, each in enumerate(amendments, start=1):
        if each.number != place or each.genesis != amendments[0].genesis:
            raise Mismatch(f"amendment {place} is missing, or of another study: ask the coordinator for all of them")
        each.check(key)


def _after(study: Study | None, amendments: Iterable[Amendment]) -> Study | None:
    for each in amendments:
        study = each.applied(study)
        if each.agreement != ("" if study is None else study.agreement):
            raise Mismatch(f"amendment {each.number} does not give the study that it says: ask the coordinator")
    return study


def amendments_in(published: File) -> tuple[Amendment, ...]:
    """Return the amendments in a publication; raise if they are not its signer's, or do not end with its study."""
    told = published.payload.notes.get(NOTE, []) if isinstance(published.payload, Fit) else []
    if not isinstance(told, list | tuple) or len(told) > MOST:
        raise RefusedMessage(f"{published.name}: expected a list of amendments, got something else")
    if not told:
        return ()
    try:
        found = tuple(map(Amendment.of_fields, told))
        if published.signer is None:
            raise RefusedMessage("amendments without a signature: ask the coordinator for the signed file")
        _check_chain(found, published.signer)
        if found[-1].agreement != ("" if published.study is None else published.study.agreement):
            raise Mismatch("its study is not the one that its amendments end with")
    except FedgramError as error:
        raise RefusedMessage(f"{published.name} refused: {error}") from error
    return found


def changes_since(published: File, own: Study) -> list[str]:
    """Return lines on how a publication's study has come from a party's own study file, in parties and keys.

    These are all amendments since the own file, also those that another one has undone: a key that was replaced and
    came back may have signed in between. Raises if the amendments in the publication do not lead from the own file to
    the publication's study.
    """
    amendments, study = amendments_in(published), published.study
    if study is None:
        return []
    states = [amendments[0].genesis, *(each.agreement for each in amendments)] if amendments else []
    if own.agreement in states:
        since = amendments[states.index(own.agreement) :]
        try:
            after = _after(own, since)
        except FedgramError as error:
            raise RefusedMessage(f"{published.name} refused: {error}") from error
        if after != study:
            raise RefusedMessage(f"{published.name} refused: its amendments do not lead to its study")
        return [f"amendment {text}" for text in numbered(since)]
    return [] if study == own else [f"not an amendment of your study file: {text}" for text in differences(own, study)]


def differences(one: Study, other: Study) -> list[str]:
    """Return the differences of two studies with the same rules, as seen from the first."""
    found = [f"{name!r} is listed" for name in other.parties if name not in one.parties]
    found += [f"{name!r} is not listed" for name in one.parties if name not in other.parties]
    both = [name for name in one.parties if name in other.parties]
    found += [f"{name!r} has another key" for name in both if one.parties[name] != other.parties[name]]
    for what in ("coordinator", "regions", "method"):
        if getattr(one, what) != getattr(other, what):
            found.append(f"{what} is {getattr(other, what)!r}, not {getattr(one, what)!r}")
    return found or ["parties stand in another order"]
