"""Parties of a small study, their files, and stores of it."""

from dataclasses import replace

import numpy as np

from fedgram.exchange.format import fgm
from fedgram.exchange.format.header import now
from fedgram.exchange.rounds.round_messages import answer
from fedgram.exchange.store.study_store import Store
from fedgram.protocol.clientside import ClientSide
from fedgram.secure.signing_keys import PrivateKey
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Number
from fedgram.studies.study import Study
from studies.test_basis import Table

COLUMNS = {
    "age": Number(range=(0, 120)),
    "steps": Number(range=(0, 40_000), missing="mean"),
    "sex": Category(("F", "M")),
}
STUDY = Study("walks", "y", COLUMNS, ("ill", "well"), minimum_samples=5, minimum_cell=1, maximum_columns_per_row=1.0)
REGIONS = ("a", "b", "c", "upper", "region")
# The same with parties, and with regions, which may send sums of others.
REGIONAL = replace(STUDY, parties=dict.fromkeys(("north", "south", "east", "west", *REGIONS), ""), regions=REGIONS)
EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"  # for stores with a clock of the tests
KEYS = {name: PrivateKey.new() for name in ("north", "south", "east", "west")}


class Clock:
    """A clock with a fixed time."""

    def __init__(self, time=EARLIER):
        self.time = time

    def __call__(self):
        return self.time


def keyed(names=("north", "south", "east")):
    """Return the study with its parties' keys."""
    return replace(STUDY, parties={name: KEYS[name].public.text for name in names})


def client(name, seed=0, n=40, study=STUDY):
    """Return a party with its rows as the study encodes them."""
    rng = np.random.default_rng([seed, len(name), *name.encode()])
    ill = rng.random(n) < 0.5
    steps = np.clip(9000 - 4000 * ill + rng.normal(0, 2000, n), 0, 40_000)
    rows = {
        "age": rng.integers(20, 90, n).astype(float),
        "steps": np.where(rng.random(n) < 0.2, np.nan, steps),
        "sex": np.where(rng.random(n) < 0.5, "F", "M"),
        "y": np.where(ill, "ill", "well"),
    }
    return read_client(study, name, Table(rows))


def summary(name, seed=0, n=40, *, study=STUDY, key=None, created=None, party=None):
    """Return a party's summary as a file's bytes."""
    party = party or client(name, seed, n, study)
    moments = ClientSide(party, classes=study.classes, columns=study.sent).moments()
    details = {"samples": moments.n, "columns": study.sent, "key": key, "created": created}
    return fgm.encode("summary", moments, study=study, party=name, **details)


def answered(name, request, seed=0, n=40, *, study=STUDY, key=None):
    """Return a party's answer to a round."""
    said = answer(study, fgm.read(request), client(name, seed, n, study))
    return fgm.encode("answer", said, study=study.fingerprint, party=name, samples=n, columns=study.sent, key=key)


def store_of(path, *names, study=STUDY, clock=now, **options):
    """Return a store that these parties have joined."""
    store = Store(path, study=study, clock=clock)
    joined = store.join(*(summary(name, study=study, **options) for name in names))
    assert [each.outcome for each in joined] == ["joined"] * len(names), joined
    return store
