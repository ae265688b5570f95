"""The regression table of a store: of all contributions, without asking parties again."""

from collections.abc import Callable, Iterator, Mapping

from fedgram.core.errors import InvalidData
from fedgram.exchange.store.combined import part_of
from fedgram.exchange.store.saved_total import unmoved
from fedgram.exchange.store.study_store import Store
from fedgram.inference.table import Coefficients
from fedgram.moments.moments import Moments
from fedgram.studies.design import Request, coefficients


def table_of(store: Store, request: Request, *, progress: Callable[[int], None] = lambda _: None) -> Coefficients:
    """Return the regression table of all contributions.

    The saved total has what most tables need. For site effects, robust errors, heterogeneity and counts of missing
    cells, each file is read once, and memory does not grow with their number.

    Parameters
    ----------
    store
        The store of a study with a numeric outcome.
    request
        The options of the table.
    progress
        A function that is called with 1 after each file.

    """
    study = store.terms.study
    if study is None:
        raise InvalidData(f"{store.path}: expected a store of a study, got one without; begin it with --study")

    def made() -> Coefficients:
        rows = {leaf.party: leaf.samples for leaf in store.index.leaves()}
        if not rows:
            raise InvalidData(f"{store.path} has no contributions yet, so it has no table: join some files first")
        regions = [each.party for each in store.contributions() if each.kind == "combined"] if request.by_site else []
        if regions:
            raise InvalidData(
                "site effects, robust errors and heterogeneity: expected the sums of each site, got the combined file "
                f"of {regions[0]!r}, which is one sum of its sites; ask for the table without them"
            )

        dropped: dict[str, Mapping[str, int]] = {}

        def sites() -> Iterator[tuple[str, Moments]]:
            for each in store.contributions():
                file = store.objects.read(each.digest)
                part = part_of(file)
                dropped[each.party] = file.dropped
                yield each.party, part if isinstance(part, Moments) else part.moments()
                progress(1)

        return coefficients(study, store.total().moments(), request, sites=sites(), rows=rows, dropped=dropped)

    return unmoved(store, made)
