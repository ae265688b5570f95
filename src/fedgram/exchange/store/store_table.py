"""The regression table of a store: of all contributions, or of a regression that was published."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.exchange.store import ledger
from fedgram.exchange.store.combined import parts_of
from fedgram.exchange.store.saved_total import unmoved
from fedgram.exchange.store.study_store import Store
from fedgram.inference.table import Coefficients
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.protocol.pool import Tabulates
from fedgram.protocol.registry import registry
from fedgram.studies.design import Request, coefficients
from fedgram.studies.missing_cells import gaps_of
from fedgram.studies.study import Study


def table_of(
    store: Store, request: Request, *, method: str | None = None, progress: Callable[[int], None] = lambda _: None
) -> Coefficients:
    """Return the regression table of all contributions, or of a regression that was published.

    The saved total has what most tables need. For site effects, robust errors, heterogeneity and counts of missing
    cells, each file is read once, and memory does not grow with their number.

    Parameters
    ----------
    store
        The store of a study.
    request
        The options of the table.
    method
        The published regression, such as "logistic"; None for a linear one, or if the outcome has classes for the last
        that was published.
    progress
        A function that is called with 1 after each file.

    """
    study = store.terms.study
    if study is None:
        raise InvalidData(f"{store.path}: expected a store of a study, got one without; begin it with --study")
    if method is not None or study.classes:
        return unmoved(store, lambda: _published(store, study, method, request, progress))

    def made() -> Coefficients:
        rows = _rows(store)
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
            for name, sent, dropped[name] in parts_of(store, progress):
                yield name, sent

        total = store.total().moments()
        table = coefficients(study, total, request, sites=sites(), rows=rows, dropped=dropped)
        others = _regressions(store)
        note = f"The store has also published {' and '.join(others)}: --method prints that table."
        return replace(table, notes=(*table.notes, note)) if others else table

    return unmoved(store, made)


def _rows(store: Store) -> dict[str, int]:
    """Return the number of rows of each party, those of regions included."""
    return {leaf.party: leaf.samples for leaf in store.index.leaves()}


def _regressions(store: Store) -> list[str]:
    """Return the names of the methods with a table of their own that the store has published."""
    names = dict.fromkeys(entry.detail("method") for entry in store.log() if entry.detail("what") == ledger.PUBLISH)
    return [name for name in names if name in registry and issubclass(registry[name], Tabulates)]


def _published(
    store: Store, study: Study, method: str | None, request: Request, progress: Callable[[int], None]
) -> Coefficients:
    """Return the table of the last regression by a method, or by any, that the store has published.

    While the parties are those of the published model, their files tell the missing cells.
    """
    if method is not None and not (method in registry and issubclass(registry[method], Tabulates)):
        raise InvalidParameter(
            f"method: expected a regression with a table of its own, logistic or poisson, got {method!r}; choose one"
        )
    changed = False
    for entry in reversed(store.log()):
        what = entry.detail("what")
        changed |= what in ledger.CHANGES
        if what != ledger.PUBLISH or method not in (None, entry.detail("method")):
            continue
        fit = store.published.read(entry.detail("digest")).of_kind("global").holding(Fit)
        if not fit.tabulated:
            continue
        table = fit.coefficients(**vars(request))
        if changed:
            note = f"Version {entry.detail('version')} of the store, published before parties joined or left."
            return replace(table, notes=(*table.notes, note))
        if sum((rows := _rows(store)).values()) != table.summary["n"]:
            raise Mismatch(f"{store.path}: expected the {table.summary['n']:.0f} rows of its last model, got others")
        owners = dict.fromkeys(row.column for row in table.rows if row.column)
        gaps = [
            gap for name, sent, gone in parts_of(store, progress) for gap in gaps_of(study, owners, name, sent, gone)
        ]
        return replace(table, sites=replace(table.sites, rows=rows), missing=tuple(gaps))
    wanted = "logistic or poisson" if method is None else method
    raise InvalidData(
        f"{store.path}: expected a published regression by {wanted}, got none; make one round by round with fedgram "
        f"publish --method {'logistic' if method is None else method}"
    )
