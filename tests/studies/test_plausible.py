"""Moments that no table under the study can have are refused; those of any such table pass."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import Mismatch, NotMoments
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from fedgram.studies.media import Image
from fedgram.studies.study import check_moments
from support.exchange import TEXT, table

STUDY = Study.parse(TEXT)


def moments(x, y=None, **changes):
    y = np.arange(len(x)) % 2 if y is None else y
    options = {"classes": STUDY.classes, "features": STUDY.features, "columns": STUDY.sent} | changes
    return fg.Moments.of(x, y, **options)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "north.csv"
    path.write_text(table(1, 50))
    return read_client(STUDY, "north", path).x


def test_tables_under_the_study_pass(rows):
    check_moments(STUDY, moments(rows))
    check_moments(STUDY, moments(rows[:1]))  # kept as a factor
    check_moments(STUDY, moments(rows) + moments(rows[:7]))


@given(st.integers(0, 6), st.floats(1.2, 1e6) | st.floats(-1e6, -1.2))
def test_a_column_in_other_units_is_refused(place, factor):
    rng = np.random.default_rng(0)
    x = np.zeros((40, len(STUDY.sent)))
    x[:, place] = np.where(rng.random(40) < 0.5, 1.0, 0.0)
    check_moments(STUDY, moments(x))
    x[:, place] = factor
    with pytest.raises(NotMoments, match="encode the table by the study"):
        check_moments(STUDY, moments(x))


def test_indicators_are_0_or_1(rows):
    for name in ("steps missing", "sex=M", "sex missing", "smoker", "smoker missing"):
        x = rows.copy()
        x[3, STUDY.sent.index(name)] = 0.5
        with pytest.raises(NotMoments, match=f"column '{name}' is 0 or 1"):
            check_moments(STUDY, moments(x))
        x[3, STUDY.sent.index(name)] = -1.0
        with pytest.raises(NotMoments):
            check_moments(STUDY, moments(x))


def test_other_columns_and_classes_are_refused(rows):
    for changes in (
        {"columns": tuple(f"{name}." for name in STUDY.sent)},
        {"classes": ("ill", "well", "dead")},
        {"features": "study:walks@" + "0" * 64},
    ):
        with pytest.raises(Mismatch, match="moments of the columns that study 'walks' sends"):
            check_moments(STUDY, moments(rows, **changes))


def test_numbers_without_a_range_may_be_anything():
    text = TEXT.replace('unit = "years"\nrange = [0, 120]', 'unit = "years"')
    study, x = Study.parse(text), np.zeros((20, len(STUDY.sent)))
    x[:, 0] = 1e6
    check_moments(study, moments(x, features=study.features))


@pytest.mark.parametrize(("missing", "fine"), [(1.0, True), (0.5, False)])
def test_features_of_images_may_be_any_numbers(missing, fine):
    """But whether an image is missing is 0 or 1."""
    scan = Image("lite0:96", digest="0" * 64, features=2, missing="mean")
    study = Study("scans", "y", {"scan": scan}, ("ill", "well"))
    found = moments([[3.7, -250.0, 0.0], [0.0, 0.0, missing]], features=study.features, columns=study.sent)
    if fine:
        check_moments(study, found)
    else:
        with pytest.raises(NotMoments, match="column 'scan missing' is 0 or 1"):
            check_moments(study, found)
