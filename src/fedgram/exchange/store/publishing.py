"""Publications of a store: a model of all contributions, made of their sum alone, by any method of moments.

Parties are not asked again, and contributions are not read again. Publishing the same twice gives the same file.
"""

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, Revealing
from fedgram.exchange.format import fgm
from fedgram.exchange.format.amendments import NOTE
from fedgram.exchange.format.exact_sums import Sum
from fedgram.exchange.store import ledger
from fedgram.exchange.store.combined import sum_of
from fedgram.exchange.store.delivery import delivering, target_of, write_again
from fedgram.exchange.store.ledger import Entry
from fedgram.exchange.store.seen_head import last_version
from fedgram.exchange.store.study_store import Store
from fedgram.moments.basis import targets_under
from fedgram.moments.moments import Moments
from fedgram.pipeline import Pipeline
from fedgram.protocol.byfiles import file_step
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.pool import Pool, Pooling
from fedgram.protocol.registry import registry
from fedgram.protocol.sites import Judge, SiteValidation, in_own_units

COORDINATOR = "coordinator"  # name of the party in publications
MODEL = "global.fgm"  # name of a publication in a folder


@dataclass(frozen=True)
class Publication:
    """A published file.

    Attributes
    ----------
    data
        Bytes of the file.
    entry
        Entry of the publication in the ledger.
    path
        Path of the file that was written outside the store, None if none was asked for.

    """

    data: bytes
    entry: Entry
    path: Path | None = None

    @property
    def version(self) -> int:
        """Number of the publication, from 1."""
        return int(self.entry.detail("version"))


def configured(store: Store, name: str | None, settings: Mapping[str, Any] | None = None) -> Method:
    """Return a method with its settings, by default the study's; raise if summaries are not enough for it."""
    study = store.terms.study
    name = name or ("fedgram" if study is None else study.method)
    method = registry[name](**dict(settings or {}))
    if file_step(type(method)) is None and not (isinstance(method, Pooling) and method.finds_columns):
        raise InvalidParameter(
            f"{name} is not made of the moments that summaries hold, so it cannot be published from a store; publish "
            "a method of one message, such as fedgram, or one that asks all parties by files, such as fedlogit"
        )
    if store.terms.outcomes and not method.numeric:
        raise InvalidParameter(f"{name} needs classes, and the outcome of the study is a number: publish another one")
    return method


def publish(
    store: Store,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Publication:
    """Return the global model of all contributions as a signed file, which the ledger records."""
    chosen = configured(store, method, settings)
    if file_step(type(chosen)) is not None or not isinstance(chosen, Pooling):
        raise InvalidParameter(
            f"{chosen.name} takes rounds: call fedgram.exchange.rounds.round_server.advance, round by round"
        )
    path = target_of(out, MODEL)
    with store.changing() as saving:
        if (known := published(store, chosen)) is not None:
            write_again(path, known.data, force=force)
            return replace(known, path=path)
        pool = pool_of(store, saving.total)
        message = chosen.publish(pool)
        fit = fit_of(chosen, pool, message, chosen.global_model(message), warned_of_two(pool, chosen, message))
        return write(store, saving.total, chosen, fit, path, force=force)


def pool_of(store: Store, total: Sum) -> Pool:
    """Return the total in the form that methods take."""
    if not total.n:
        raise InvalidData(
            f"{store.path} has no contributions yet, so there is nothing to publish: join some files first"
        )
    terms = store.terms
    contributors = tuple(leaf.party for leaf in store.index.leaves())
    return Pool(total.moments(), contributors, (terms.schema.dimension,), terms.targets, None, terms.study)


def write(store: Store, total: Sum, method: Method, fit: Fit, path: Path | None, *, force: bool) -> Publication:
    """Write a fit of this total as a publication, inside a change; it carries the ledger's head before it."""
    entries = store.log()
    version = 1 + last_version(entries)
    about = {"version": version, "total": total.digest, "number": entries[-1].number, "head": entries[-1].hash}
    amendments = [each.plain() for each in store.terms.amendments]
    told = replace(fit, notes={**fit.notes, "ledger": about, **({NOTE: amendments} if amendments else {})})
    data = fgm.encode("global", told, study=store.terms.fingerprint, party=COORDINATOR, key=store.key)
    digest = fgm.read(data, checked=True).digest
    with delivering(store, path, force=force) as stage:
        store.published.stage(digest, data)
        with store.index.changing():
            stage(data)
            entry = store.append(
                ledger.PUBLISH,
                version=version,
                method=method.name,
                settings=method.settings(),
                digest=digest,
                samples=total.n,
                total=total.digest,
            )
        store.published.keep(digest)
    return Publication(data, entry, path)


def published(store: Store, method: Method) -> Publication | None:
    """Return the last publication of this method if nothing has changed since, so that no new version is needed.

    A publication whose file is lost or damaged does not count, and is made anew.
    """
    wanted = method.name, json.loads(json.dumps(method.settings()))
    for entry in reversed(store.log()):
        what = entry.detail("what")
        if what in (*ledger.CHANGES, ledger.AMEND, ledger.ROUND, ledger.RESTORED, ledger.OPEN):
            return None
        if what == ledger.PUBLISH and (entry.detail("method"), entry.detail("settings")) == wanted:
            try:
                file = store.published.read(entry.detail("digest"))
                file.verify(store.key.public)
            except FedgramError:
                return None
            return Publication(file.data, entry)
    return None


def warned_of_two(pool: Pool, method: Method, message: Any) -> dict[str, str]:
    """Return a note, and warn, if each of two contributors can subtract its own part from what is published."""
    what = method.reveals(message) if isinstance(method, Publishing) else ""
    if not what or pool.parties != 2:
        return {}
    told = f"with two contributors, what is published gives each of them the other's {what}: ask a third to join"
    warnings.warn(told, Revealing, stacklevel=3)
    return {"reveals": told}


def fit_of(method: Method, pool: Pool, published: Any, model: Any, notes: Mapping[str, Any]) -> Fit:
    """Return a fit without the total, from which members and newcomers can personalize."""
    targets = targets_under(pool.basis, pool.targets)
    model = Pipeline.of(model, pool.basis, targets, pool.sent.schema.columns)
    return Fit(
        model=model,
        method=method.name,
        settings=method.settings(),
        seed=0,
        contributors=pool.contributors,
        message=published,
        shape=pool.shape,
        engine="files",
        study=pool.study,
        basis=pool.basis,
        notes=notes,
    )


def validate(store: Store, **options: Any) -> Iterator[tuple[str, SiteValidation]]:
    """Yield each contributor with its errors under the model of the others, the model of all, and its own model.

    The total less one part is exactly the sum of the others. So each file is read once, and memory does not grow with
    the number of files. Columns are standardised, and missing values imputed, by the means of all. Errors of numeric
    outcomes are in the outcomes' own units.

    Parameters
    ----------
    store
        The store, with at least two contributions.
    options
        Those of `fedgram.protocol.sites.Judge`.

    """
    contributions = store.contributions()
    if sum(each.samples > 0 for each in contributions) < 2:
        raise InvalidData(f"contributions: expected two or more to leave one party out, got {len(contributions)}")
    total = store.total()
    pool = pool_of(store, total)

    def seen(sent: Moments) -> Moments:
        return sent if pool.basis is None else pool.basis.moments(sent)

    judge = Judge(pool.total, targets=pool.targets, **options)
    for each in contributions:
        part = sum_of(store.objects.read(each.digest))
        site = judge.site(seen(part.moments()), seen((total - part).moments()))
        yield each.party, in_own_units(site, pool.targets)
