"""A party's files: the summary of its table, its answer to a round, and the model of its own from a published one."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgram.core.errors import (
    Doubtful,
    FedgramError,
    InvalidData,
    InvalidParameter,
    Mismatch,
    RefusedMessage,
    UnknownName,
)
from fedgram.core.progress import spinner
from fedgram.data.client import Client
from fedgram.data.own.bad import OnBad
from fedgram.exchange.coordinator import check_coordinator
from fedgram.exchange.files import File, encode, read
from fedgram.exchange.header import party_name
from fedgram.exchange.keys import PrivateKey, PublicKey
from fedgram.exchange.pairs import named_by
from fedgram.exchange.rounds import answer
from fedgram.protocol.disclosure import record_path, recording, warn_of_missing
from fedgram.protocol.fit import Fit
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.registry import registry
from fedgram.studies.encoding import read_client
from fedgram.studies.study import Study
from fedgram.studies.summaries import summarize as moments_of


@dataclass(frozen=True)
class Party:
    """Who speaks: a name, and the key that it signs with; without one, nobody can tell whether it was really them."""

    name: str
    key: PrivateKey | None = None

    @classmethod
    def of(cls, study: Study, key: Path | None, name: str | None = None, *, newcomers: bool = False) -> "Party":
        """Return the party that a key file belongs to: by the study's list, or by the file's name.

        A name that the study does not list is refused, unless `newcomers` are welcome, and a key that is not the listed
        one.
        """
        private = None if key is None else PrivateKey.load(key)
        keys, own = public_keys(study), None if private is None else private.public
        listed = [party for party, public in keys.items() if public == own]
        if name is None and not listed and key is None:
            raise InvalidParameter("whose table is it? name the party with --party, or give its private key with --key")
        found = name or (listed[0] if listed else named_by(Path(key or "")))
        if study.parties and not newcomers and found not in study.parties:
            raise UnknownName(f"party of study {study.name!r}", found, study.parties)
        if own is not None and keys.get(found, own) != own:
            raise InvalidParameter(
                f"{key} is not the key that study {study.name!r} lists for {found!r}: sign with that one, or have the "
                "study changed by all"
            )
        return cls(party_name(found), private)


def public_keys(study: Study) -> dict[str, PublicKey]:
    """Return the keys of those parties whose keys the study lists."""
    keys: dict[str, PublicKey] = {}
    for party, text in study.parties.items():
        try:
            keys |= {party: PublicKey(text)} if text else {}
        except InvalidData as error:
            raise InvalidData(f"study {study.name!r}, party {party!r}: {error}") from error
    return keys


def summarize(study: Study, table: Any, party: Party, *, on_bad: OnBad = "refuse") -> bytes:
    """Return a party's summary of its table as a file's bytes: the one message that it sends.

    Nothing is sent of fewer samples than the study asks for.
    """
    moments = moments_of(study, party.name, table, on_bad=on_bad)
    return encode("summary", moments, study=study, samples=moments.n, columns=study.sent, **_signing(party))


def reply(
    study: Study,
    table: Any,
    party: Party,
    request: File,
    *,
    records: Path,
    on_bad: OnBad = "refuse",
    told: Callable[[str], None] = warn_of_missing,
) -> bytes:
    """Return a party's answer to a round as a file's bytes.

    `records` is the party's folder for the record of its answers, which never leaves it: an answer whose difference to
    an earlier one would show too few samples is refused. `told` hears of a record that is missing, and begun.
    """
    client = _client(study, table, party, on_bad)
    path = record_path(records, study.features, party.name)
    with recording(path, study.features, party.name, told) as record, blaming(request):
        said = answer(study, request, client, record)
    return encode("answer", said, study=study.fingerprint, samples=len(client.y), columns=study.sent, **_signing(party))


def personalize(
    published: File, table: Any, party: Party, *, member: bool | None = None, on_bad: OnBad = "refuse"
) -> bytes:
    """Return a party's own model, made of what was published and its own table, as a file's bytes.

    A `member` has its samples in what was published; by default that is whoever is listed as a contributor.
    """
    fit, study = fit_of(published)
    client = _client(study, table, party, on_bad)
    if member is not None:
        fit = replace(fit, contributors=(party.name,) if member else ())
    with spinner("personalizing"), blaming(published):
        model = study.model(fit.personalize(client))
    return encode("personal", model, study=study.fingerprint, samples=len(client.y), **_signing(party))


@contextmanager
def blaming(file: File) -> Iterator[None]:
    """Turn any error of a computation with what a file holds into its refusal: the values are the file's fault."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, FedgramError):
            raise
        raise RefusedMessage(
            f"{file.name} refused: expected values that can be computed with, got {type(error).__name__} from them; "
            "ask its sender for another one"
        ) from error


def received(path: Path) -> File:
    """Return a file that someone else may have written; a signature must fit, and a missing one is warned of.

    Whose key it should be, the study says, if it names its coordinator; else a person must know it.
    """
    file = read(path)
    if file.signer is None:
        warnings.warn(f"{path} is not signed: nobody can tell who wrote it", Doubtful, stacklevel=2)
    else:
        file.verify()
    return file


def fit_of(published: File) -> tuple[Fit, Study]:
    """Return what a file of kind `global` holds: the fit, and its study."""
    fit = published.of_kind("global").holding(Fit)
    study = published.study
    if study is None:
        raise Mismatch(f"{published.name} holds a fit without a study: ask the coordinator for what it published")
    check_coordinator(published, study)
    # A file must not choose what is set up here: settings of other methods may name code to be imported.
    if not issubclass(registry[fit.method], Publishing):
        raise Mismatch(f"{published.name} holds a fit of {fit.method}, which is never published by files")
    return fit, study


def _client(study: Study, table: Any, party: Party, on_bad: OnBad) -> Client:
    return read_client(study, party.name, table, on_bad=on_bad)


def _signing(party: Party) -> dict[str, Any]:
    return {"party": party.name, "key": party.key}
