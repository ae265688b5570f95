"""How well a store's parties are predicted by the model of all the others, from their files alone, one at a time."""

from collections.abc import Iterator
from typing import Any

from fedgram.core.errors import InvalidData
from fedgram.exchange.combined import sum_of
from fedgram.exchange.publishing import pool_of
from fedgram.exchange.store import Store
from fedgram.moments.moments import Moments
from fedgram.moments.validation import Judge, SiteValidation


def validate(store: Store, **options: Any) -> Iterator[tuple[str, SiteValidation]]:
    """Yield each contributor with its errors under the model of the others, of all, and its own.

    The others are the total without one, exactly, so each file is read once and memory does not grow with their number.
    Columns are standardised, and missing values imputed, by the means of all. `options` are those of `Judge`.
    """
    contributions = store.contributions()
    if sum(each.samples > 0 for each in contributions) < 2:
        raise InvalidData(f"leaving one party out needs two or more with samples, got {len(contributions)}")
    total = store.total()
    pool = pool_of(store, total)

    def seen(sent: Moments) -> Moments:
        return sent if pool.basis is None else pool.basis.moments(sent)

    judge = Judge(pool.total, outcomes=pool.outcomes, **options)
    for each in contributions:
        part = sum_of(store.objects.read(each.digest))
        yield each.party, judge.site(seen(part.moments()), seen((total - part).moments()))
