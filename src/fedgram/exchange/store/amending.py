"""Amendments of a store's study: a late party, a new key, a file that was sent under a wrong name.

Each is an amendment that the store's key signs, in an entry of the ledger. The study's rules stay as they are, so no
contribution changes and no party summarizes again.
"""

from fedgram.core.errors import InvalidData, Mismatch, UnknownName
from fedgram.exchange.format.amendments import ADD, MISTAKE, ROTATE, Amendment, Rotation
from fedgram.exchange.format.header import party_name
from fedgram.exchange.store import ledger
from fedgram.exchange.store.study_store import Store
from fedgram.secure.signing_keys import PublicKey

FEWEST_DIGITS = 8  # of a contribution's digest


def add(store: Store, party: str, key: PublicKey) -> Amendment:
    """Return the signed amendment by which the study lists another party with its key.

    Parameters
    ----------
    store
        The coordinator's store.
    party, key
        Name and public key of the party.

    """
    with store.changing():
        study = store.terms.study
        if study is None or not study.parties:
            raise InvalidData(f"{store.path} has a study without a list of parties: any party may join, do not add it")
        if party in study.parties:
            raise InvalidData(f"{party!r} is listed in study {study.name!r} already: for a new key give --rotate")
        _check_free(store, party, key)
        return _signed(store, ADD, party, key=key.text)


def rotate(store: Store, party: str, key: PublicKey, rotation: Rotation | None = None) -> Amendment:
    """Return the signed amendment by which a party has another key.

    Files that are signed with the former key are refused from then on; the party's contribution stays.

    Parameters
    ----------
    store
        The coordinator's store.
    party, key
        Name and new public key of the party.
    rotation
        The party's statement of it, signed with the former key. Without it, as when that key is lost, all parties are
        told that the change is not countersigned.

    """
    with store.changing():
        terms = store.terms
        listed = {} if terms.study is None else terms.study.parties
        former = terms.key_of(party) or store.index.key_of(party)
        if party not in listed and (listed or former is None):
            raise UnknownName(f"party of {store.path}", party, listed or store.index.names())
        if former == key.text:
            raise InvalidData(f"{party!r} has the key {key} already: give the new one")
        if rotation is not None and (rotation.party, rotation.former, rotation.key) != (party, former, key.text):
            raise Mismatch(
                f"the rotation of {rotation.party!r} replaces the key {rotation.former}, and {party!r} has the key "
                f"{former or 'none'} here: ask the party which one is right"
            )
        _check_free(store, party, key)
        consent = "" if rotation is None else rotation.signature
        with store.index.changing():
            store.index.forget_answer(party)  # it was signed with the former key
            return _signed(store, ROTATE, party, key=key.text, former=former or "", countersignature=consent)


def withdraw(store: Store, which: str) -> Amendment:
    """Return the signed amendment that withdraws a summary sent under a wrong name, and frees its samples.

    The summary leaves the total, if it is in. Another party may then join with these samples, and its party with the
    right ones. The same file cannot return.

    Parameters
    ----------
    store
        The coordinator's store.
    which
        Name of the party under which the summary joined, or the first digits of the summary's digest.

    """
    with store.changing() as saving:
        party, digest = _found(store, which)
        with saving.together():
            present = store.index.contribution(digest=digest)
            if present is not None:
                store.take_out(saving, present)
            store.index.free(digest)
            return _signed(store, MISTAKE, party, contribution=digest)


def _found(store: Store, which: str) -> tuple[str, str]:
    """Return party and digest of a summary that is in the store, or has left and still blocks its samples."""
    inside = [(each.party, each.digest) for each in store.contributions()]
    left = [(each.party, each.digest) for each in store.index.gone() if each.is_summary and each.digest]
    freed = {each.contribution for each in store.terms.amendments}
    known = [*inside, *(each for each in left if each[1] not in freed)]
    found = [each for each in known if each[0] == which]
    if not found and len(which) >= FEWEST_DIGITS:
        found = [each for each in known if each[1].startswith(which.lower())]
    if not found:
        raise UnknownName("party with a contribution, or contribution", which, {party for party, _ in known})
    if len(found) > 1:
        raise InvalidData(
            f"{which!r} has several contributions: give the first digits of one, "
            + " or ".join(digest[:FEWEST_DIGITS] for _, digest in found)
        )
    [(party, digest)] = found
    row = store.index.contribution(digest=digest)
    if row is not None and row.kind != "summary":
        raise InvalidData(
            f"{which!r} is a sum of others' summaries: take it out with fedgram remove; its region combines again"
        )
    return party, digest


def _check_free(store: Store, party: str, key: PublicKey) -> None:
    """Raise if another party has this key: its files could not be told apart from that party's."""
    terms = store.terms
    known = {**({} if terms.study is None else terms.study.parties), **store.index.names()}
    for other, first in known.items():
        if other != party and key.text == (terms.key_of(other) or first):
            raise InvalidData(f"{other!r} has the key {key}, so {party!r} cannot have it: give each party its own")


def _signed(store: Store, what: str, party: str, **about: str) -> Amendment:
    """Return the next amendment of a store, signed and in the ledger."""
    terms = store.terms
    amendment = Amendment(
        number=len(terms.amendments) + 1,
        what=what,
        party=party_name(party),
        time=store.latest(),
        genesis=terms.began,
        **about,
    ).signed_by(store.key, terms.study)
    with store.index.changing():
        store.append(ledger.AMEND, party=party, change=what, amendment=amendment.plain())
    return amendment
