"""What a store publishes: a model of all contributions, made of their sum alone, by any method of moments.

Nobody is asked again, and no contribution's file is read. Publishing the same once more gives the same file.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, Revealing
from fedgram.exchange import files, ledger
from fedgram.exchange.ledger import Entry
from fedgram.exchange.rounds import STEPS
from fedgram.exchange.store import Store
from fedgram.exchange.sums import Sum
from fedgram.models import with_columns
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.pool import Pool, Pooling
from fedgram.protocol.recipe import in_source
from fedgram.protocol.registry import registry

COORDINATOR = "coordinator"  # the party that publications are signed by


@dataclass(frozen=True)
class Publication:
    """A file that was published: its bytes, and the ledger's entry of it."""

    data: bytes
    entry: Entry

    @property
    def version(self) -> int:
        """Publications count from 1."""
        return int(self.entry.detail("version"))


def configured(store: Store, name: str | None, settings: Mapping[str, Any] | None = None) -> Method:
    """Return a method, the study's own by default, if summaries can give it."""
    study = store.terms.study
    name = name or ("fedgram" if study is None else study.method)
    method = registry[name](**dict(settings or {}))
    if name not in STEPS and not (isinstance(method, Pooling) and method.finds_columns):
        raise InvalidParameter(
            f"{name} is not made of the moments that summaries hold, so it cannot be published from a store: publish "
            f"afl, fedhip or fedgram, or {' or '.join(STEPS)}, which ask once more"
        )
    if store.terms.outcomes and not method.numeric:
        raise InvalidParameter(f"{name} needs classes, and the outcome of the study is a number: publish another one")
    return method


def publish(store: Store, method: str | None = None, settings: Mapping[str, Any] | None = None) -> Publication:
    """Return the global model of all contributions as a signed file; the ledger has an entry of it."""
    chosen = configured(store, method, settings)
    if chosen.name in STEPS or not isinstance(chosen, Pooling):
        raise InvalidParameter(f"{chosen.name} takes rounds: call fedgram.exchange.asking.advance, round by round")
    with store.changing() as saving:
        if (known := published(store, chosen)) is not None:
            return known
        pool = pool_of(store, saving.total)
        message = chosen.publish(pool)
        fit = fit_of(chosen, pool, message, chosen.global_model(message), warned_of_two(pool, chosen, message))
        return write(store, saving.total, chosen, fit)


def pool_of(store: Store, total: Sum) -> Pool:
    """Return the total as methods take it."""
    if not total.n:
        raise InvalidData(
            f"{store.path} has no contributions yet, so there is nothing to publish: join some files first"
        )
    terms = store.terms
    contributors = tuple(leaf.party for leaf in store.index.leaves())
    return Pool(total.moments(), contributors, (terms.kind.dimension,), None, terms.study, terms.outcomes)


def write(store: Store, total: Sum, method: Method, fit: Fit) -> Publication:
    """Write a fit of this total as a publication; inside a change. It carries the ledger's head before it."""
    entries = store.log()
    version = 1 + sum(entry.detail("what") == ledger.PUBLISH for entry in entries)
    about = {"version": version, "total": total.digest, "number": entries[-1].number, "head": entries[-1].hash}
    told = replace(fit, notes={**fit.notes, "ledger": about})
    data = files.encode("global", told, study=store.terms.fingerprint, party=COORDINATOR, key=store.key)
    digest = files.read(data, checked=True).digest
    store.published.stage(digest, data)
    with store.index.changing():
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
    return Publication(data, entry)


def published(store: Store, method: Method) -> Publication | None:
    """Return the last publication of this method, if nothing has changed since: publishing again is no new version.

    One whose file was lost or damaged does not count, so that it is made anew.
    """
    wanted = method.name, json.loads(json.dumps(method.settings()))
    for entry in reversed(store.log()):
        what = entry.detail("what")
        if what in (*ledger.CHANGES, ledger.ROUND, ledger.OPEN):
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
    """Warn before something is published from which each of two contributors can subtract its own part."""
    what = method.reveals(message) if isinstance(method, Publishing) and method.personal else ""
    if not what or pool.parties != 2:
        return {}
    told = f"with two contributors, what is published gives each of them the other's {what}: ask a third to join"
    warnings.warn(told, Revealing, stacklevel=3)
    return {"reveals": told}


def fit_of(method: Method, pool: Pool, published: Any, model: Any, notes: Mapping[str, Any]) -> Fit:
    """Return a fit that members and newcomers can personalize from, without the total itself."""
    model = in_source(with_columns(model, pool.total.kind.columns), pool.basis, pool.sent.kind.columns)
    return Fit(
        model=model,
        method=method.name,
        settings=method.settings(),
        seed=0,
        contributors=pool.contributors,
        message=published,
        shape=pool.shape,
        engine="files",
        recipe=pool.recipe,
        basis=pool.basis,
        notes=notes,
    )
