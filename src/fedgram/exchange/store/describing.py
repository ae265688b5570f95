"""Descriptives of a store: its table one, from contributions that are read once each."""

from collections.abc import Iterator

from fedgram.core.errors import FolderInUse, InvalidData
from fedgram.exchange.store.combined import part_of
from fedgram.exchange.store.saved_total import unmoved
from fedgram.exchange.store.study_store import Store
from fedgram.moments.moments import Moments
from fedgram.studies import table_one
from fedgram.studies.table_one import TableOne


def describe(store: Store) -> TableOne:
    """Return the descriptives of all contributions, by contribution and pooled, in the study's units.

    Files are read one at a time, so memory does not grow with the number of parties, except for the figures themselves.
    A combined file is one site: the sum of a region's parties.

    Parameters
    ----------
    store : Store
        A store of a study, with at least one contribution.

    """
    return unmoved(store, lambda: _described(store))


def _described(store: Store) -> TableOne:
    study, before = store.terms.study, store.index.last()
    if study is None:
        raise InvalidData(
            f"{store.path}: expected contributions under a study, which says what columns mean, got some without; "
            "summarize tables with fedgram summarize study.toml"
        )
    contributions = store.contributions()
    if not contributions:
        raise InvalidData(f"{store.path} has no contributions, so there is nothing to describe: join some first")

    def parts() -> Iterator[tuple[str, Moments]]:
        for each in contributions:
            part = part_of(store.objects.read(each.digest))
            yield each.party, part if isinstance(part, Moments) else part.moments()

    summaries = {each.party: len(store.index.leaves(each.digest)) for each in contributions}
    found = table_one.describe(study, parts(), total=store.total().moments(), summaries=summaries)
    if store.index.last() != before:
        raise FolderInUse(f"another coordinator is writing to {store.path}: try again when it is done")
    return found
