"""Descriptives of a study's moments equal pandas on the raw tables, for each site and pooled, for any partition."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InvalidData, LostPrecision, Mismatch
from fedgram.moments.moments import Moments
from fedgram.studies import Study, summarize
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Ignore, Number
from fedgram.studies.media import Image
from fedgram.studies.table_one import Figures, describe
from support.campaign import examples

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::fedgram.core.errors.Revealing")  # tables of few rows are meant

WARDS = ("a", "b", "c")
LIMITS = {"minimum_samples": 1, "minimum_cell": 1, "maximum_columns_per_row": 0}
STUDY = Study(
    "mixed",
    "y",
    {
        "year": Number(unit="a", range=(2000, 2050), missing="mean"),
        "raw_year": Number(),  # without a range: sums are of the numbers as they are
        "cells": Number(unit="1/µl", range=(99_900, 100_100), missing="flag"),
        "far": Number(range=(0, 200_000)),
        "ward": Category(WARDS, "category"),
        "sex": Category(("F", "M")),
        "ill": Flag("mean"),
        "note": Ignore(),
    },
    ("no", "yes"),
    **LIMITS,
)
COST = replace(STUDY, outcome="cost", classes=(), columns={**STUDY.columns, "cost": Number(unit="EUR", range=(0, 9e3))})


SPREAD = {"year": 0.6, "raw_year": 0.8, "cells": 10.0, "far": 10.0, "cost": 2600.0}


class Table(dict):
    """Columns by name, as data frames have them."""

    columns = property(list)

    def __len__(self):
        return len(self["sex"])


def frame_of(rng, n, gaps=0.3):
    """Return a raw table with missing values."""

    def some(values):
        return np.where(rng.random(n) < gaps, np.nan, values)

    ward, ill = (rng.choice([*values, ""], n) for values in (WARDS, ("yes", "no")))
    return pandas.DataFrame(
        {
            "year": some(2026 + rng.uniform(-1, 1, n)),
            "raw_year": 2026.0 + rng.integers(-1, 2, n),
            "cells": some(1e5 + 10 * rng.normal(size=n)),
            "far": 1e5 + 10 * rng.normal(size=n),
            "ward": ward,
            "sex": rng.choice(["F", "M"], n),
            "ill": ill,
            "note": rng.choice(["x", "y"], n),
            "y": rng.choice(["no", "yes"], n),
            "cost": rng.uniform(0, 9e3, n),
        }
    )


def moments_of(study, frame, name="site"):
    columns = {column: frame[column].to_numpy() for column in (*study.needed, "note")}
    return summarize(study, name, Table(columns))


def described(study, frames):
    return describe(study, [(name, moments_of(study, frame, name)) for name, frame in frames.items()])


def check_column(variable, figures, frame):
    """Compare the figures of a column with pandas on raw cells."""
    known = frame[variable.name].replace("", np.nan).dropna()
    assert (figures.known, figures.missing) == (len(known), len(frame) - len(known))
    if variable.kind == "number":
        wanted = known.mean(), known.std()
        for found, value in zip((figures.mean, figures.deviation), wanted, strict=True):
            assert (found is None) == bool(np.isnan(value))
            if found is not None:
                # A mean near 0, or a deviation of nearly equal values, is compared with the column's usual spread.
                assert found == pytest.approx(value, rel=1e-9, abs=1e-10 * SPREAD[variable.name])
    else:
        counts = known.value_counts()
        assert figures.counts == tuple(int(counts.get(level, 0)) for level in variable.levels)
        shares = known.value_counts(normalize=True)
        if len(known):
            assert figures.shares == pytest.approx([shares.get(level, 0.0) for level in variable.levels], rel=1e-12)
        else:
            assert set(figures.shares) == {None}


@examples(30)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.booleans())
def test_figures_are_those_of_pandas_for_any_partition(seed, sizes, numeric):
    rng, study = np.random.default_rng(seed), COST if numeric else STUDY
    frames = {f"site {k}": frame_of(rng, n) for k, n in enumerate(sizes)}
    found = described(study, frames)
    whole = pandas.concat(frames.values())
    assert found.samples == len(whole)
    assert [(site.name, site.samples) for site in found.sites] == [(name, len(one)) for name, one in frames.items()]
    names = [variable.name for variable in found.variables]
    assert names == [*([] if numeric else ["y"]), *list(STUDY.columns)[:-1], *(["cost"] if numeric else [])]
    for variable in found.variables:
        check_column(variable, variable.pooled, whole)
        for figures, frame in zip(variable.sites, frames.values(), strict=True):
            check_column(variable, figures, frame)


@examples(20)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_differences_are_those_of_raw_rows(seed, sites):
    rng = np.random.default_rng(seed)
    frames = {f"site {k}": frame_of(rng, 30) for k in range(sites)}
    found = {variable.name: variable for variable in described(STUDY, frames).variables}
    for k, name in enumerate(frames):
        here, there = frames[name], pandas.concat([frame for other, frame in frames.items() if other != name])
        for column in ("year", "raw_year", "cells", "far"):
            wanted = (here[column].mean() - there[column].mean()) / np.sqrt(
                (here[column].var() + there[column].var()) / 2
            )
            assert found[column].differences[k] == pytest.approx(wanted, rel=1e-7, abs=1e-9)
        p, q = ((frame["ill"].replace("", np.nan).dropna() == "yes").mean() for frame in (here, there))
        wanted = (p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2)
        assert found["ill"].differences[k] == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@examples(20)
@given(st.integers(0, 10**6))
def test_correlations_are_those_of_raw_rows(seed):
    rng = np.random.default_rng(seed)
    frames = {name: frame_of(rng, 40) for name in ("north", "south")}
    found = described(COST, frames).correlations
    raw = pandas.concat(frames.values()).assign(ill=lambda all_: all_["ill"].map({"yes": 1.0, "no": 0.0}))
    raw = raw[list(found.names)]
    wanted = raw.cov().to_numpy() / np.outer(raw.std(), raw.std())
    np.testing.assert_allclose(found.values, np.where(np.abs(wanted) > 1 + 1e-9, np.nan, wanted), rtol=1e-7, atol=1e-9)
    known = raw.notna().astype(int)
    assert (found.samples == (known.T @ known).to_numpy()).all()


def test_a_given_total_is_taken_and_must_be_the_sum():
    rng = np.random.default_rng(0)
    parts = [(name, moments_of(STUDY, frame_of(rng, 20), name)) for name in ("north", "south")]
    whole = parts[0][1] + parts[1][1]
    assert describe(STUDY, parts, total=whole) == describe(STUDY, parts)
    with pytest.raises(InvalidData, match="expected the 40 samples of all parts, got 20"):
        describe(STUDY, parts, total=parts[0][1])


def test_moments_of_another_study_are_refused():
    frame = frame_of(np.random.default_rng(0), 20)
    found, other = moments_of(STUDY, frame), moments_of(COST, frame)
    with pytest.raises(Mismatch):
        describe(COST, [("north", found)])
    with pytest.raises(Mismatch):
        describe(STUDY, [("north", found)], total=other)


def test_no_samples_are_refused():
    with pytest.raises(InvalidData, match="at least one"):
        describe(STUDY, [])
    nothing = Moments.of_indices(
        np.zeros((0, len(STUDY.sent))),
        np.zeros(0, dtype=np.int64),
        classes=STUDY.classes,
        features=STUDY.features,
        columns=STUDY.sent,
    )
    with pytest.raises(InvalidData, match="at least one sample"):
        describe(STUDY, [("north", nothing)])


def test_one_site_has_no_differences():
    found = described(STUDY, {"north": frame_of(np.random.default_rng(0), 30)})
    assert all(variable.differences == (None,) for variable in found.variables)
    assert all(variable.pooled == variable.sites[0] for variable in found.variables)


def test_a_column_without_a_known_value_has_no_mean():
    frame = frame_of(np.random.default_rng(0), 30).assign(year=np.nan, ill="", ward="")
    found = {variable.name: variable.pooled for variable in described(STUDY, {"north": frame}).variables}
    assert (found["year"].known, found["year"].missing, found["year"].mean, found["year"].deviation) == (
        *(0, 30),
        *(None, None),
    )
    assert found["ill"].shares == (None,)
    assert found["ward"].shares == (None, None, None)


def test_lost_digits_are_warned_of():
    rng = np.random.default_rng(0)
    frame = frame_of(rng, 50).assign(raw_year=1e9 + 1e-3 * rng.normal(size=50))
    with pytest.warns(LostPrecision, match="raw_year"):
        described(STUDY, {"north": frame})


def test_notes_say_what_is_not_known():
    columns = {**STUDY.columns, "far": Number(range=(0, 200_000), outside="clip"), "raw_year": Number(missing="drop")}
    study = replace(STUDY, columns=columns)
    rng = np.random.default_rng(0)
    parts = [(name, moments_of(study, frame_of(rng, 20), name)) for name in ("north", "region")]
    notes = "\n".join(describe(study, parts, summaries={"region": 3}).notes)
    for wanted in (
        "pooled mean for missing values of year, cells, ill",
        "a missing value in raw_year, by missing = 'drop'",
        "the range count as its nearer end: far",
        "region is the sum of 3 parties",
        "(m1 - m2) / sqrt((s1² + s2²) / 2)",
    ):
        assert wanted in notes


# Thresholds
GUARDED = replace(STUDY, minimum_group=5)


def with_few(frame, column, value, few, other):
    """Return a table in which only a few rows have a value in a column."""
    cells = np.where(np.arange(len(frame)) < few, value, other)
    return frame.assign(**{column: cells})


def summed(frame, study=GUARDED):
    """Return sums that a party's own software would not send, of the same columns under the guarded study."""
    columns = {column: frame[column].to_numpy() for column in (*study.needed, "note")}
    client = read_client(study, "site", Table(columns))
    return Moments.of(client.x, client.y, classes=study.classes, features=study.features, columns=study.sent)


@pytest.mark.parametrize(
    ("column", "value", "other"),
    [
        ("sex", "M", "F"),
        ("ward", "a", "b"),
        ("ward", "", "b"),
        ("ill", "yes", "no"),
        ("ill", "no", "yes"),
        ("ill", "", "yes"),
        ("year", np.nan, 2026.0),
        ("year", 2026.0, np.nan),
        ("y", "yes", "no"),
    ],
)
@pytest.mark.parametrize("few", [0, 1, 4, 5, 30])
def test_figures_of_few_samples_are_withheld_with_their_name(column, value, other, few):
    rng = np.random.default_rng(few)
    north, south = with_few(frame_of(rng, 30), column, value, few, other), frame_of(rng, 200)
    table = describe(GUARDED, [("north", summed(north)), ("south", summed(south))])
    found = {variable.name: variable for variable in table.variables}[column]
    withheld = 0 < few < 5
    assert found.pooled is not None
    assert (found.sites == (None, None)) is withheld  # the other site's, too: the difference would tell
    assert not withheld or found.differences == (None, None)
    named = [note for note in table.notes if note.startswith(f"figures by site of {column!r} are withheld")]
    assert len(named) == withheld
    if withheld:
        assert "north has fewer than 5 samples (minimum_group)" in named[0]


def test_classes_have_the_threshold_of_cells():
    study = replace(GUARDED, minimum_cell=7)
    rng = np.random.default_rng(0)
    north, south = with_few(frame_of(rng, 30), "y", "yes", 6, "no"), frame_of(rng, 200)
    table = describe(study, [("north", summed(north, study)), ("south", summed(south, study))])
    assert table.variables[0].sites == (None, None)
    assert any("a group at north has fewer than 7 samples (minimum_cell)" in note for note in table.notes)


def test_pooled_figures_of_few_samples_are_withheld():
    rng = np.random.default_rng(0)
    frames = {name: with_few(frame_of(rng, 30), "ill", "yes", few, "no") for name, few in (("north", 3), ("south", 0))}
    table = describe(GUARDED, [(name, summed(frame)) for name, frame in frames.items()])
    found = {variable.name: variable for variable in table.variables}["ill"]
    assert (found.pooled, found.sites) == (None, (None, None))
    assert (
        "figures of 'ill' are withheld, because a group in them has fewer than 5 samples (minimum_group)" in table.notes
    )
    assert "ill" not in table.correlations.names
    assert "left out, because their own figures are withheld: ill" in table.correlations.notes


def test_correlations_of_few_samples_are_withheld():
    """Two flags that hardly ever occur together: with the counts of both, their correlation tells in how many rows."""
    flags = {"one": Flag(), "other": Flag(), "age": Number(range=(0, 100), missing="mean")}
    study = Study("flags", "y", flags, ("no", "yes"), **LIMITS | {"minimum_group": 5})
    rng = np.random.default_rng(0)
    for both, withheld in ((0, False), (1, True), (4, True), (5, False)):
        one = np.arange(100) < 40
        other = (np.arange(100) >= 40 - both) & (np.arange(100) < 80)
        age = np.where(np.arange(100) < 50, rng.uniform(0, 100, 100), np.nan)
        x = np.column_stack([one, other, np.where(np.isnan(age), 0.0, age / 50 - 1), np.isnan(age)]).astype(float)
        y = np.array(study.classes)[np.arange(100) % 2]
        moments = Moments.of(x, y, classes=study.classes, features=study.features, columns=study.sent)
        found = describe(study, [("north", moments)]).correlations
        assert bool(np.isnan(found.values[0, 1])) is withheld
        assert (found.samples[0, 1] == 0) is np.bool_(withheld)
        assert any("one and other" in note for note in found.notes) is withheld
        assert found.values[0, 0] == 1.0
        assert not np.isnan(found.values[0, 2])  # 10 rows without `one` have an age


def test_with_thresholds_off_nothing_is_withheld():
    rng = np.random.default_rng(0)
    frame = with_few(frame_of(rng, 30), "ill", "yes", 1, "no")
    found = describe(STUDY, [("north", moments_of(STUDY, frame))])
    assert all(figures is not None for variable in found.variables for figures in (variable.pooled, *variable.sites))


def test_memory_does_not_grow_with_the_number_of_sites():
    columns = {f"x{k}": Number() for k in range(200)}
    study = Study("wide", "y", columns, ("no", "yes"), **LIMITS)
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 200)), np.arange(60) % 2
    about = {"classes": study.classes, "features": study.features, "columns": study.sent}

    def site():
        return Moments.of_indices(rows.copy(), labels, **about)

    total, peaks = site(), []
    for count in (2, 20):
        total = Moments.sum(site() for _ in range(count))
        tracemalloc.start()
        describe(study, ((f"site {k}", site()) for k in range(count)), total=total)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    figures = 18 * 200 * 500  # bytes: of each site and column a few numbers
    assert peaks[1] < peaks[0] + figures
    assert figures < 18 * 8 * 200**2  # moments of the sites would take more


def test_features_of_images_have_no_figures_but_their_gaps():
    scan = Image(backbone="lite0:96", digest="0" * 64, features=3, missing="mean")
    study = Study("scans", "y", {"scan": scan, "age": Number(range=(0, 100))}, ("no", "yes"), **LIMITS)
    rng = np.random.default_rng(0)
    gap = (np.arange(20) < 5).astype(float)
    x = np.column_stack([rng.normal(size=(20, 3)) * (1 - gap)[:, None], gap, rng.uniform(-1, 1, 20)])
    y = np.array(study.classes)[np.arange(20) % 2]
    moments = Moments.of(x, y, classes=study.classes, features=study.features, columns=study.sent)
    table = describe(study, [("north", moments), ("south", moments)])
    found = {variable.name: variable for variable in table.variables}
    assert (found["scan"].kind, found["scan"].pooled) == ("image", Figures(30, 10))
    assert found["scan"].differences == (None, None)
    assert table.correlations.names == ("age",)
    assert found["age"].pooled.mean == pytest.approx(50 + 50 * x[:, -1].mean())


def test_a_study_without_numbers_and_flags_has_no_correlations():
    study = Study("wards", "y", {"ward": Category(WARDS)}, ("no", "yes"), **LIMITS)
    x = np.eye(3)[np.arange(30) % 3][:, 1:]
    y = np.array(study.classes)[np.arange(30) % 2]
    moments = Moments.of(x, y, classes=study.classes, features=study.features, columns=study.sent)
    table = describe(study, [("north", moments)])
    assert table.variables[1].pooled.counts == (10, 10, 10)
    assert table.correlations.fields() == {"names": [], "values": [], "samples": [], "notes": []}
