"""The coordinator's key, where a study names it: whose rounds and models a party takes, and who may keep a store."""

from pathlib import Path

from fedgram.core.errors import InvalidData, RefusedMessage, StoreError
from fedgram.exchange.files import File
from fedgram.exchange.keys import PrivateKey, PublicKey
from fedgram.studies.identity import named
from fedgram.studies.study import Study

ABOUT_STORES = ("receipt", "certificate")  # what a store says of what was joined and removed
BY_COORDINATOR = ("round", "global", *ABOUT_STORES)


def coordinator_key(study: Study) -> PublicKey | None:
    """Return the key that the study names as its coordinator's, None if it names none."""
    try:
        return PublicKey(study.coordinator) if study.coordinator else None
    except InvalidData as error:
        raise InvalidData(f"study {study.name!r}, coordinator: {error}") from error


def check_coordinator(file: File, study: Study) -> None:
    """Refuse a coordinator's file that is signed with another key than the study names, or not at all.

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


def check_agreed(file: File, study: Study) -> None:
    """Refuse a file of another study than the one that was agreed on, or of someone else than its coordinator."""
    file.check_study(study, remedy="ask its sender for a file of the study that you have agreed on")
    if file.header.kind in BY_COORDINATOR:
        check_coordinator(file, study)


def signer_line(file: File, study: Study) -> str:
    """Say in one line who signed a coordinator's file, as far as the study tells."""
    what = f"study {named(study)}"
    if file.signer is None:
        return f"{file.name} is not signed; {what} names no coordinator"
    if coordinator_key(study) is None:
        return f"{file.name} is signed by {file.signer}; {what} names no coordinator: ask yours whether it is this key"
    return f"{file.name} is signed by the coordinator of {what}"


def check_store_key(path: Path, study: Study | None, key: PublicKey | None, given: PrivateKey | None = None) -> None:
    """Refuse a store whose key is not the coordinator's, where the study names one; regions have keys of their own.

    `key` is the store's, None for a new one that would make its own; `given` is the one that the caller wants.
    """
    if given is not None and key not in (None, given.public):
        raise StoreError(f"{path} has the key {key}, and keeps it: leave --key out, or begin a store in another folder")
    named = None if study is None else coordinator_key(study)
    if study is None or named is None:
        return
    key = key if given is None else given.public
    if key not in _store_keys(study, named):
        has = f"a store at {path} would make a key of its own" if key is None else f"{path} has the key {key}"
        raise StoreError(
            f"{has}, and study {study.name!r} names {named} as its coordinator's: begin a store in a new folder with "
            "--key and the private key that belongs to it"
        )


def _store_keys(study: Study, named: PublicKey) -> set[PublicKey]:
    """Return the keys that stores of a study may have: the coordinator's, and those of its regions."""
    return {named, *(PublicKey(study.parties[name]) for name in study.regions if study.parties.get(name))}
