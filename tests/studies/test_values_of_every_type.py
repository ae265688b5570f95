"""A value of any type in any field of a study file is read, or refused with a message that names the field."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidData
from fedgram.exchange.format.coordinator import coordinator_key
from fedgram.exchange.rounds.party_side import public_keys
from fedgram.studies import Study
from fedgram.studies.drafting import with_coordinator, with_keys
from support import campaign

DIGEST = json.dumps("ab" * 32)
FIELDS = {
    ("study", "name"): '"walks"',
    ("study", "outcome"): '"diagnosis"',
    ("study", "classes"): '["ill", "well"]',
    ("study", "regions"): "[]",
    ("study", "coordinator"): '""',
    ("study", "method"): '"fedgram"',
    ("study", "minimum_samples"): "10",
    ("study", "minimum_cell"): "3",
    ("parties", "north"): '""',
    ("columns.age", "kind"): '"number"',
    ("columns.age", "unit"): '"years"',
    ("columns.age", "range"): "[0, 120]",
    ("columns.age", "outside"): '"refuse"',
    ("columns.age", "missing"): '"mean"',
    ("columns.sex", "kind"): '"category"',
    ("columns.sex", "values"): '["F", "M"]',
    ("columns.sex", "missing"): '"category"',
    ("columns.smoker", "kind"): '"flag"',
    ("columns.smoker", "missing"): '"flag"',
    ("columns.patient", "kind"): '"ignore"',
    ("columns.scan", "kind"): '"image"',
    ("columns.scan", "backbone"): '"lite0:96"',
    ("columns.scan", "digest"): DIGEST,
    ("columns.scan", "features"): "2",
    ("columns.note", "kind"): '"text"',
    ("columns.note", "backbone"): '"minilm"',
    ("columns.note", "digest"): DIGEST,
    ("columns.note", "features"): "2",
}
# Fields that are not there by default, and whole tables.
OTHERS = [("study", "unit"), ("study", "parties"), ("columns.age", "digest"), ("columns.sex", "range"), ("study", "x")]
WHOLE = ["study", "parties", "columns", "witnesses", "columns.age", "else"]

TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "number", "age", "diagnosis", "F", "refuse", "x.onnx:8", "a:b", "../x.py", "lite0:" + "9" * 5000]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
).map(lambda text: json.dumps(text).replace("\x7f", "\\u007F"))
PLAIN = st.one_of(
    TEXTS,
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["0xf" + "f" * 5000, "9" * 5000, "true", "false", "inf", "-inf", "nan", "1e400", "-0.0", "5e-324"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["1979-05-27T07:32:00Z", "1979-05-27T07:32:00", "1979-05-27", "07:32:00", "0001-01-01T00:00:00-23:59"]
    ),
)
KEYS = st.sampled_from(["a", "kind", "name", '""', ".".join("abcdefghij"), ".".join("a" * 3000)])
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.tuples(KEYS, inner).map(lambda pair: f"{{ {pair[0]} = {pair[1]} }}"),
    ),
    max_leaves=6,
)


def written(fields):
    """Return a TOML text with these values, table by table."""
    tables = {}
    for (table, key), value in fields.items():
        tables.setdefault(table, []).append(f"{key} = {value}")
    return "\n".join(line for table, lines in tables.items() for line in (f"[{table}]", *lines)) + "\n"


def read_or_refused(text):
    """Read a study, and do with it what needs no table; an error of ours ends it."""
    try:
        study = Study.parse(text)
    except FedgramError as error:
        assert len(str(error)) < 4000
        return
    assert wire.decode(wire.encode(study), sender="north") == study
    assert len(study.fingerprint) == 64
    assert len(study.sent) == study.schema.dimension
    assert study.about()
    for use in (public_keys, coordinator_key):
        with suppress(FedgramError):
            use(study)
    for edited in (lambda: with_keys(text, {"north": "x"}), lambda: with_coordinator(text, "x")):
        with suppress(FedgramError):
            edited()


def test_the_study_that_is_changed_is_one():
    assert Study.parse(written(FIELDS)).sent == (
        *("age", "age missing", "sex=M", "sex missing", "smoker", "smoker missing"),
        *("scan.0", "scan.1", "note.0", "note.1"),
    )


@campaign.examples(300)
@given(st.dictionaries(st.sampled_from([*FIELDS, *OTHERS]), VALUES, min_size=1, max_size=3))
@example({("columns.age", "kind"): "[]"})
@example({("columns.age", "range"): f"[0, 0x{'f' * 400}]"})
@example({("study", "minimum_samples"): f"0x{'f' * 5000}"})
@example({("study", "outcome"): '["age", "age"]', ("study", "classes"): "[]"})
@example({("study", "regions"): "false"})
def test_any_value_in_any_field_is_read_or_refused(changes):
    read_or_refused(written(FIELDS | changes))


@campaign.examples(100)
@given(st.sampled_from(WHOLE), VALUES)
@example("columns", "{}")
def test_any_value_in_place_of_a_table_is_read_or_refused(table, value):
    rest = {place: each for place, each in FIELDS.items() if not f"{place[0]}.".startswith(f"{table}.")}
    read_or_refused(f"{table} = {value}\n{written(rest)}")


@campaign.examples(100)
@given(st.sampled_from(["age", "scan"]), VALUES)
def test_numeric_outcomes_of_any_value_are_read_or_refused(name, value):
    fields = {place: each for place, each in FIELDS.items() if place != ("study", "classes")}
    read_or_refused(written(fields | {("study", "outcome"): json.dumps(name), ("columns.age", "missing"): value}))


def test_an_outcome_is_named_once():
    with pytest.raises(InvalidData, match=r"outcome = \['age', 'age'\]: expected each column once"):
        Study.parse(written(FIELDS | {("study", "outcome"): '["age", "age"]'}))


@pytest.mark.parametrize("value", ["false", "0", '""', "{}"])
def test_a_value_of_the_wrong_type_is_not_taken_for_none(value):
    with pytest.raises(InvalidData, match=r"\[study\] regions.*: expected (a list|text)"):
        Study.parse(written(FIELDS | {("study", "regions"): value}))
