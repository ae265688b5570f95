"""The coordinator's key, if a study names one: rounds, models and stores are checked by it, and files sealed to it."""

from pathlib import Path

from fedgram.core.errors import InvalidData, InvalidParameter, RefusedMessage, StoreError
from fedgram.exchange.format.amendments import changes_since
from fedgram.exchange.format.fgm import File
from fedgram.secure.signing_keys import PrivateKey, PublicKey
from fedgram.studies.study import Study, named

ABOUT_STORES = ("receipt", "certificate")  # a store's statements on joining and removal
BY_COORDINATOR = ("round", "global", *ABOUT_STORES)


def coordinator_key(study: Study) -> PublicKey | None:
    """Return the coordinator's key in a study, None if the study names no coordinator."""
    try:
        return PublicKey(study.coordinator) if study.coordinator else None
    except InvalidData as error:
        raise InvalidData(f"study {study.name!r}, coordinator: {error}") from error


def receiver_in(study: Study) -> PublicKey:
    """Return the key that parties seal their files to; raise if the study names no coordinator."""
    found = coordinator_key(study)
    if found is None:
        raise InvalidParameter(
            f"seal: expected a study that names its coordinator's key, got {study.name!r}, which names none; have it "
            "entered with `fedgram study keys --coordinator`, or send the file without --seal by a way that is safe"
        )
    return found


def check_coordinator(file: File, study: Study) -> None:
    """Raise if a coordinator's file is not signed with the key that the study names.

    Receipts and certificates may come from the store of a region.
    """
    named = coordinator_key(study)
    if named is None:
        return
    if file.signer is None:
        raise RefusedMessage(
            f"{file.name} is not signed, and study {study.name!r} names its coordinator's key: ask the coordinator for "
            "the signed file"
        )
    if file.signer not in (_store_keys(study, named) if file.header.kind in ABOUT_STORES else {named}):
        raise RefusedMessage(
            f"{file.name} is signed with the key {file.signer}, and study {study.name!r} names {named} as its "
            "coordinator's: someone else wrote it; ask the coordinator for the file"
        )
    file.verify()


def check_agreed(file: File, study: Study) -> list[str]:
    """Return the changes of parties and keys since a study was agreed on, as lines, from a published model.

    Raises if a file is not of the agreed study, or is a coordinator's file with another signer or forged amendments.

    Parameters
    ----------
    file
        A file, as `fgm.read` returns it.
    study
        The study that was agreed on.

    """
    file.check_study(study, remedy="ask its sender for a file of the study that you have agreed on")
    if file.header.kind in BY_COORDINATOR:
        check_coordinator(file, study)
    return changes_since(file, study) if file.header.kind == "global" else []


def signer_line(file: File, study: Study) -> str:
    """Return a line that names the signer of a coordinator's file, as far as the study knows it."""
    what = f"study {named(study)}"
    if file.signer is None:
        return f"{file.name} is not signed; {what} names no coordinator"
    if coordinator_key(study) is None:
        return f"{file.name} is signed by {file.signer}; {what} names no coordinator: ask yours whether it is this key"
    return f"{file.name} is signed by the coordinator of {what}"


def check_store_key(path: Path, study: Study | None, key: PublicKey | None, given: PrivateKey | None = None) -> None:
    """Raise if a store's key is neither the coordinator's nor a region's, where the study names a coordinator.

    `key` is the store's key, None for a new store that would make its own; `given` is the key that the caller wants.
    """
    if given is not None and key not in (None, given.public):
        raise StoreError(f"{path} has the key {key}, and keeps it: leave --key out, or begin a store in another folder")
    named = None if study is None else coordinator_key(study)
    if study is None or named is None:
        return
    key = key if given is None else given.public
    if key not in _store_keys(study, named):
        if key is None:
            raise StoreError(
                f"study {study.name!r} names its coordinator's key, {named}: the first join needs its private key, "
                "--key coordinator.key"
            )
        raise StoreError(
            f"{path} has the key {key}, and study {study.name!r} names {named} as its coordinator's: begin a store in "
            "a new folder, with --key and the private key that belongs to it"
        )


def _store_keys(study: Study, named: PublicKey) -> set[PublicKey]:
    """Return the keys that stores of a study may have: the coordinator's and the regions'."""
    return {named, *(PublicKey(study.parties[name]) for name in study.regions if study.parties.get(name))}
