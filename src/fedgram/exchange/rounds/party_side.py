"""A party's files: the summary of its table, its answers to rounds, and its personal model."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from fedgram.core.arrays import as_blocks
from fedgram.core.errors import (
    Doubtful,
    FedgramError,
    InvalidData,
    InvalidParameter,
    Mismatch,
    RefusedMessage,
    did_you_mean,
)
from fedgram.core.filesystem import file_name
from fedgram.core.progress_bars import count_bar, spinner
from fedgram.data.client import Client
from fedgram.data.own.bad import OnBad
from fedgram.exchange.format.amendments import amendments_in
from fedgram.exchange.format.coordinator import check_coordinator
from fedgram.exchange.format.fgm import File, encode, is_exchanged, read
from fedgram.exchange.format.header import party_name
from fedgram.exchange.format.key_files import named_by
from fedgram.exchange.format.signing_keys import PrivateKey, PublicKey
from fedgram.exchange.rounds.round_messages import answer
from fedgram.models import Model
from fedgram.protocol.comparison import Comparison
from fedgram.protocol.disclosure import SummedRows, record_path, recording, warn_of_missing
from fedgram.protocol.fit import Fit, load_model
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.registry import registry
from fedgram.studies.encoding import read_client
from fedgram.studies.model import RowsDigest, StudyModel
from fedgram.studies.party_tables import PartySums, sum_up
from fedgram.studies.study import Study

Keep: TypeAlias = Literal["better", "own", "global"]


@dataclass(frozen=True)
class Party:
    """A party that writes files.

    Attributes
    ----------
    name
        Name of the party, as in the study.
    key
        Private key that signs its files; without it their author cannot be verified.

    """

    name: str
    key: PrivateKey | None = None

    @classmethod
    def of(cls, study: Study, key: Path | None, name: str | None = None, *, newcomers: bool = False) -> "Party":
        """Return the party that a key file belongs to: by the study's list, or by the file's name.

        Raises if the study lists the key for another party. Warns if it lists another key for the party, or
        does not list the party (unless `newcomers` are welcome). An amendment may have changed that, and the party's
        own study file does not show amendments.
        """
        private = None if key is None else PrivateKey.load(key)
        keys, own = public_keys(study), None if private is None else private.public
        listed = [party for party, public in keys.items() if public == own]
        if name is None and not listed and key is None:
            raise InvalidParameter(
                "party: expected a name or a key, got neither; name it with --party, or give its private key with --key"
            )
        found = name or (listed[0] if listed else named_by(Path(key or "")))
        if study.parties and not newcomers and found not in study.parties:
            hint = f" ({near})" if (near := did_you_mean(found, study.parties)) else ""
            _note(
                f"party {found!r} is not listed in study {study.name!r}{hint}; the store takes "
                f"its files only after the coordinator's fedgram amend STORE --add {file_name(found)}.pub"
            )
        if listed and found not in listed:
            raise InvalidParameter(
                f"{key} is not the key that study {study.name!r} lists for {found!r}, it is that of {listed[0]!r}: "
                "sign with the right one"
            )
        if own is not None and keys.get(found, own) != own:
            _note(
                f"{key} is not the key that study {study.name!r} lists for {found!r}; the store takes files signed "
                "with it only after the coordinator's fedgram amend STORE --rotate"
            )
        return cls(party_name(found), private)


def _note(text: str) -> None:
    warnings.warn(text, Doubtful, stacklevel=3)


def public_keys(study: Study) -> dict[str, PublicKey]:
    """Return the public keys that the study lists, by party."""
    keys: dict[str, PublicKey] = {}
    for party, text in study.parties.items():
        try:
            keys |= {party: PublicKey(text)} if text else {}
        except InvalidData as error:
            raise InvalidData(f"study {study.name!r}, party {party!r}: {error}") from error
    return keys


def summarize(
    study: Study,
    table: Any,
    party: Party,
    *,
    on_bad: OnBad = "refuse",
    records: Path | None = None,
    told: Callable[[str], None] = warn_of_missing,
) -> bytes:
    """Return a party's summary of its table, the one message that it sends, as bytes of a file.

    The parameters are those of `summary_of`.
    """
    return summary_of(study, table, party, on_bad=on_bad, records=records, told=told)[0]


def summary_of(
    study: Study,
    table: Any,
    party: Party,
    *,
    on_bad: OnBad = "refuse",
    records: Path | None = None,
    told: Callable[[str], None] = warn_of_missing,
    check: Callable[[bytes], None] = lambda _: None,
) -> tuple[bytes, PartySums]:
    """Return a party's summary as bytes of a file, and the party's own counts of rows left out and imputed.

    Raises if the table has fewer samples than the study asks for, or groups that are too small, also in the difference
    to an earlier summary.

    Parameters
    ----------
    study
        The study that all parties agree on.
    table
        A path of a CSV or Parquet file, or any table that `fedgram.studies.read_client` takes.
    party
        Name and key of the party.
    on_bad
        What to do with rows that break a rule of the study: "refuse" the table, or "skip" them.
    records
        The party's folder for the record of what it has sent, which never leaves it. Without it, there is no comparison
        with earlier summaries.
    told
        Function that is called with a message if a new record begins.
    check
        Function that is called with the bytes before the record is written; if it raises, nothing is recorded.

    """
    _check_key(study, party)

    def written(found: PartySums) -> bytes:
        about: dict[str, Any] = {"samples": found.moments.n, "columns": study.sent, **_signing(party)}
        data = encode("summary", found.moments, study=study, dropped=found.dropped(study.smallest_group), **about)
        check(data)
        return data

    if records is None or study.smallest_group < 2:
        found = sum_up(study, party.name, table, on_bad=on_bad)
        return written(found), found
    path = record_path(records, study.features, party.name)
    with recording(path, study.features, party.name, told) as record:
        rows = SummedRows(study, record, path)
        found = sum_up(study, party.name, table, on_bad=on_bad, seen=rows.add)
        rows.admit()
        return written(found), found


def reply(
    study: Study,
    table: Any,
    party: Party,
    request: File,
    *,
    records: Path,
    on_bad: OnBad = "refuse",
    told: Callable[[str], None] = warn_of_missing,
    check: Callable[[bytes], None] = lambda _: None,
) -> bytes:
    """Return a party's answer to a round as bytes of a file.

    Raises if the answer would show too few samples, by itself or by its difference to an earlier answer.

    Parameters
    ----------
    study, table, party, on_bad
        As in `summary_of`; the table must be the same.
    request
        The coordinator's file of the round.
    records
        The party's folder for the record of what it has sent, which never leaves it.
    told
        Function that is called with a message if a new record begins.
    check
        Function that is called with the bytes before the record is written; if it raises, nothing is recorded.

    """
    _check_key(study, party)
    client = _client(study, table, party, on_bad)
    path = record_path(records, study.features, party.name)
    about: dict[str, Any] = {"samples": len(client.y), "columns": study.sent, **_signing(party)}
    with recording(path, study.features, party.name, told) as record:
        with blaming(request):
            said = answer(study, request, client, record)
        data = encode("answer", said, study=study.fingerprint, **about)
        check(data)
        return data


class Kept(NamedTuple):
    """A party's file with the model that it keeps, and the comparison behind the choice."""

    data: bytes
    model: Literal["own", "global"]
    comparison: Comparison


def personalize(
    published: File,
    table: Any,
    party: Party,
    *,
    member: bool | None = None,
    on_bad: OnBad = "refuse",
    keep: Keep = "better",
) -> Kept:
    """Return a party's file with its personal model or with the global one, the better of both on rows left out.

    Ties go to the global model. So does the choice of a party without samples of a class that others have, because its
    own rows cannot tell how well a model finds that class.

    Parameters
    ----------
    published
        The coordinator's file of kind `global`.
    table, party, on_bad
        As in `summary_of`.
    member
        Whether the party's samples are in the published model; by default, whether it is a contributor.
    keep
        The model to keep: the "better", the party's "own" or the "global" one.

    """
    fit, study = fit_of(published)
    client = _client(study, table, party, on_bad)
    asked = fit if member is None else replace(fit, contributors=(party.name,) if member else ())
    with blaming(published):
        with count_bar("comparing the own and the global model", len(client.y), transient=True) as advance:
            compared = asked.compare(client, progress=advance)
        if keep == "own" and not compared.personal:
            raise InvalidParameter(f"{fit.method} makes no models of parties' own: leave out --keep own")
        better: Literal["own", "global"] = "own" if compared.own_is_better else "global"
        kept = better if keep == "better" else keep
        with spinner("personalizing"):
            model = study.model(asked.personalize(client)) if kept == "own" else fit.predictor()
    seen = _digest_of(client, study) if kept == "own" or client.name in asked.contributors else None
    data = encode(
        "personal",
        replace(cast("StudyModel", model), kept=kept, seen=seen),
        study=study.fingerprint,
        samples=len(client.y),
        **_signing(party),
    )
    return Kept(data, kept, compared)


def _digest_of(client: Client, study: Study) -> str:
    digest, end = RowsDigest(), 0
    labels = np.asarray(client.y).tolist() if study.classes else [""] * len(client.y)
    for block in as_blocks(client.x):
        digest.add(block, labels[end : end + len(block)])
        end += len(block)
    return digest.text


@contextmanager
def blaming(file: File) -> Iterator[None]:
    """Turn errors of a computation with a file's values into a refusal of the file."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, FedgramError):
            raise
        raise RefusedMessage(
            f"{file.name} refused: expected values that can be computed with, got {type(error).__name__} from them; "
            "ask its sender for another file"
        ) from error


def received(path: Path) -> File:
    """Return a file from another author; raise if its signature does not fit, and warn if it has none.

    The expected key stands in the study, if it names its coordinator; otherwise a person must know it.
    """
    file = read(path)
    if file.signer is None:
        warnings.warn(f"{path} is not signed: its author cannot be verified", Doubtful, stacklevel=2)
    else:
        file.verify()
    return file


def fit_of(published: File) -> tuple[Fit, Study]:
    """Return the fit and the study of a file of kind `global`."""
    fit = published.of_kind("global").holding(Fit)
    study = published.study
    if study is None:
        raise Mismatch(
            f"{published.name}: expected a fit with its study, got none; ask the coordinator for its publication"
        )
    check_coordinator(published, study)
    amendments_in(published)  # raises for forged ones
    # A file must not choose any method: settings of others may name code to be imported.
    if not issubclass(registry[fit.method], Publishing):
        raise Mismatch(f"{published.name}: expected a fit of a method that publishes by files, got {fit.method}")
    return fit, study


def _client(study: Study, table: Any, party: Party, on_bad: OnBad) -> Client:
    return read_client(study, party.name, table, on_bad=on_bad)


def _check_key(study: Study, party: Party) -> None:
    """Raise if the study lists keys and the party has none: its file would be refused by the coordinator."""
    if party.key is None and any(study.parties.values()):
        raise InvalidParameter(
            f"key: expected the private key of {party.name!r}, since study {study.name!r} lists keys, got none; sign "
            "with --key"
        )


def _signing(party: Party) -> dict[str, Any]:
    return {"party": party.name, "key": party.key}


def model_of(path: str | os.PathLike[str], client: str | None = None) -> Model:
    """Return the model of an `.fgm` file of kind global or personal, or of any file that `load_model` reads.

    The signature of an exchanged file must fit; an unsigned file gives a warning.
    """
    if not is_exchanged(path):
        return load_model(path, client)
    if client is not None:
        raise InvalidParameter(f"{os.fspath(path)} holds one model: leave out the client {client!r}")
    found = loaded(path)
    return found if isinstance(found, StudyModel) else found.predictor()


def loaded(path: str | os.PathLike[str]) -> Fit | StudyModel:
    """Return the fit in an `.fgm` file of kind global, or the model in one of kind personal.

    The signature must fit; an unsigned file gives a warning.
    """
    file = received(Path(path)).of_kind("global", "personal")
    return file.holding(StudyModel) if file.header.kind == "personal" else fit_of(file)[0]
