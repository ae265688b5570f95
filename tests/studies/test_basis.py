"""Preprocessing after the message equals preprocessing the pooled table and then fitting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Moments
from fedgram.core import wire
from fedgram.core.errors import Mismatch, RefusedMessage
from fedgram.moments.basis import Basis
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Number
from support.campaign import examples

STUDY = Study(
    "mixed",
    "y",
    {
        "year": Number(range=(2025, 2027), missing="mean"),
        "cells": Number(range=(1e5, 9e5), missing="flag"),
        "ward": Category(("a", "b", "c"), "category"),
        "ill": Flag("mean"),
        "plain": Number(),
    },
    ("no", "yes"),
)


class Table(dict):
    """Columns by name, as data frames have them."""

    columns = property(list)

    def __len__(self):
        return len(self["y"])


def table(n, rng):
    year = 2026 + rng.uniform(-1, 1, n)
    cells = rng.uniform(1e5, 9e5, n)
    year[rng.random(n) < 0.3] = np.nan
    cells[rng.random(n) < 0.3] = np.nan
    ward = rng.choice(["a", "b", "c", ""], n)
    ill = rng.choice(["yes", "no", ""], n)
    columns = {"year": year, "cells": cells, "ward": ward, "ill": ill, "plain": rng.normal(size=n)}
    return Table(columns | {"y": rng.choice(["no", "yes"], n)})


def by_hand(whole):
    """Return the pooled table with means filled in, categories spelt out, and every column standardised."""
    out = []
    for name in ("year", "cells"):
        column = np.array(whole[name])
        absent = np.isnan(column)
        column[absent] = column[~absent].mean() if (~absent).any() else STUDY.columns[name].centre
        out += [column] if name == "year" else [column, absent.astype(float)]
    out += [(whole["ward"] == value).astype(float) for value in ("b", "c", "")]
    known = whole["ill"] != ""
    share = (whole["ill"] == "yes")[known].mean() if known.any() else 0.0
    out += [np.where(known, whole["ill"] == "yes", share), whole["plain"]]
    x = np.column_stack(out)
    # About the first row, which changes only rounding: years differ little, and are large.
    near = x - x[0]
    spread = near.std(axis=0)
    # A column that varies only by rounding is constant.
    constant = spread <= 1e-9 * np.abs(x).max(axis=0)
    return np.where(constant, 0.0, (near - near.mean(axis=0)) / np.where(constant, 1.0, spread))


@given(st.lists(st.integers(5, 60), min_size=1, max_size=6), st.integers(0, 10**6))
@examples(40)
def test_moments_sent_and_then_recoded_are_those_of_the_preprocessed_table(sizes, seed):
    rng = np.random.default_rng(seed)
    whole = table(sum(sizes), rng)
    clients, start = [], 0
    for k, size in enumerate(sizes):
        part = Table({name: column[start : start + size] for name, column in whole.items()})
        clients.append(read_client(STUDY, f"party-{k}", part))
        start += size
    sent = Moments.sum(
        Moments.of(client.x, client.y, classes=STUDY.classes, features=STUDY.features, columns=STUDY.sent)
        for client in clients
    )
    basis = STUDY.basis(sent.cross.sum(axis=1), sent.squares, sent.n)
    want = Moments.of(by_hand(whole), whole["y"], classes=STUDY.classes)
    got = basis.moments(sent)
    assert got.schema.columns == basis.columns
    np.testing.assert_allclose(got.gram, want.gram, atol=1e-12 * sent.n)
    np.testing.assert_allclose(got.cross, want.cross, atol=1e-12 * sent.n)
    # And the model of raw rows is the model of preprocessed ones.
    model = got.model(ridge=1.0)
    raw = basis.back(model, STUDY.sent)
    z = np.concatenate([client.x for client in clients])
    np.testing.assert_allclose(raw.scores(z), want.model(ridge=1.0).scores(by_hand(whole)), atol=1e-12)
    np.testing.assert_allclose(basis.apply(z), by_hand(whole), atol=1e-9)


def test_a_level_that_a_party_lacks_is_a_column_of_zeros():
    rng = np.random.default_rng(0)
    some = table(30, rng)
    some["ward"] = np.full(30, "a")
    client = read_client(STUDY, "north", some)
    assert not client.x[:, [STUDY.sent.index(f"ward={value}") for value in "bc"]].any()


def test_a_basis_crosses_the_wire_and_is_checked():
    basis = STUDY.basis(np.ones(len(STUDY.sent)), np.ones(len(STUDY.sent)), 3)
    again = wire.decode(wire.encode(basis))
    np.testing.assert_array_equal(again.matrix.toarray(), basis.matrix.toarray())
    assert again.columns == basis.columns
    wrong = Basis(basis.rows + 100, basis.places, basis.values, basis.shift, basis.columns, basis.source)
    with pytest.raises((RefusedMessage, Mismatch), match="rows"):
        wire.decode(wire.encode(wrong), sender="north")


def test_sums_of_other_columns_are_refused():
    with pytest.raises(Mismatch, match="sums of 10 columns"):
        STUDY.basis(np.ones(3), np.ones(3), 3)
    with pytest.raises(Mismatch, match="samples of 10 columns"):
        STUDY.basis(np.ones(10), np.ones(10), 3).apply(np.ones((2, 4)))
