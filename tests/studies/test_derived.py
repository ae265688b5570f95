"""Columns that a study computes from others: by a small grammar, never as code, and like other columns from then on."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import BadSamples, InvalidData, Mismatch, Skipped, tell
from fedgram.data.own import csvfiles
from fedgram.studies import Study, open_table
from fedgram.studies.derived import FUNCTIONS, MOST_DEPTH, MOST_PARTS, Expression
from fedgram.studies.encoding import open_for, read_client
from fedgram.studies.loading import narrowed
from fedgram.studies.party_tables import check_table, sum_up

STUDY = """
[study]
name = "computed"
outcome = "ill"
classes = ["no", "yes"]
minimum_samples = 2
minimum_cell = 1
[columns.log_crp]
kind = "number"
range = [-5, 5]
missing = "mean"
[columns.age]
kind = "number"
range = [0, 120]
unit = "years"
[columns.crp]
kind = "number"
missing = "mean"
[columns.smoker]
kind = "flag"
missing = "mean"
[columns."weight (kg)"]
kind = "ignore"
[columns.height]
kind = "ignore"
[derived]
log_crp = "log(crp)"
age2 = "age ** 2"
bmi = "`weight (kg)` / height ** 2"
smoked = "age * smoker"
[columns.bmi]
kind = "number"
missing = "drop"
[columns.smoked]
kind = "number"
missing = "mean"
"""
HEADER = "crp,age [years],smoker,height,weight (kg),ill\n"
CELLS = "1,40,yes,1.8,81,no\n0,50,no,1.6,64,yes\n,30,,2,100,no\n7.5,60,yes,,90,no\n2,20,no,1.5,45,yes\n"
leaves = st.one_of(
    st.sampled_from(["a", "b", "`b c`"]),
    st.floats(0, 1e6, allow_subnormal=False).map(repr),
    st.integers(0, 50).map(str),
)
expressions = st.recursive(
    leaves,
    lambda some: st.one_of(
        st.tuples(some, st.sampled_from([" + ", "-", "*", " / "]), some).map("".join),
        some.map("({})".format),
        some.map("-{}".format),
        st.tuples(some.map("({})".format), st.integers(1, 9)).map(lambda pair: f"{pair[0]} ** {pair[1]}"),
        st.tuples(st.sampled_from(list(FUNCTIONS)), some).map(lambda pair: f"{pair[0]}({pair[1]})"),
    ),
    max_leaves=12,
)
cells = st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(np.nan)), min_size=3, max_size=3).map(np.array)


@pytest.fixture
def study():
    return Study.parse(STUDY)


@pytest.fixture
def north(tmp_path):
    (tmp_path / "north.csv").write_text(HEADER + CELLS)
    return tmp_path / "north.csv"


@given(expressions, cells, cells, cells)
def test_values_are_those_of_numpy(text, a, b, c):
    if (
        not any(name in text for name in ("a", "b"))
        or len(text) > 400
        or text.count("(") + text.count("-") > MOST_DEPTH
    ):
        return
    plain, known = text.replace("`b c`", "c"), {"a": a, "b": b, "c": c}
    try:
        made = Expression.parse(text)
    except InvalidData as error:
        assert "with a column in it" in str(error)
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = known | {name: getattr(np, name) for name in FUNCTIONS}
        try:
            wanted = np.asarray(eval(plain, {"__builtins__": {}}, names), dtype=float)
        except (ZeroDivisionError, OverflowError):  # of Python's own numbers, which are numpy's here
            return
    wanted = np.where(np.isfinite(wanted), wanted, np.nan)
    found = made.values({"a": a, "b": b, "b c": c})
    np.testing.assert_array_equal(found, np.broadcast_to(wanted, found.shape))


def test_operators_bind_as_usual():
    x = np.array([3.0])
    for text, value in {
        "-x ** 2": -9,
        "2 - x - 1": -2,
        "12 / x / 2": 2,
        "1 + 2 * x": 7,
        "(1 + 2) * x": 9,
        "2 * -x": -6,
        "abs(-x) ** 2 / 9": 1,
        "x*x**2": 27,
    }.items():
        assert Expression.parse(text).values({"x": x}) == [value], text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 + 2",
        "x +",
        "x x",
        "2x",
        "x ** y",
        "x ** 2 ** 2",
        "x ** -1",
        "x ** 0.5",
        "x ** 10",
        "x ** 99999999999",
        "exec(x)",
        "log",
        "log(x",
        "log(x, 2)",
        "x.real",
        "x[0]",
        "__import__('os')",
        "().__class__",
        "lambda: x",
        "x if x else x",
        "x; x",
        "x # y",
        "'x' + x",
        "x == x",
        "x and x",
        "f'{x}'",
        "x := 1",
        "`",
        "``",
        "` `",
        "1e999 * x",
        "x\\n",
        "+x",
        "x // 2",
        "x % 2",
        "x @ x",
        "~x",
        "(" * (MOST_DEPTH + 1) + "x" + ")" * (MOST_DEPTH + 1),
        "-" * 400 + "x",
        "(" * 499,
        "x+" * (MOST_PARTS // 2) + "x",
        "x" * 501,
        "\x00",
        "\u0663 * x",
        "log log x",
    ],
)
def test_hostile_expressions_are_refused_in_one_line(text):
    if text == "log":  # a column may have the name of a function
        assert Expression.parse(text).columns == ("log",)
        return
    with pytest.raises(InvalidData, match="expected") as caught:
        Expression.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("log(crp)", "log(cpr)", "got 'cpr'"),
        ("log(crp)", "log(age2)", "got 'age2'"),
        ("log(crp)", "log(ill)", "got 'ill'"),
        (
            "log(crp)",
            "system(crp)",
            r"derived 'log_crp': expected one of the functions log, exp, sqrt, abs, got 'system'",
        ),
        ('log_crp = "log(crp)"', 'ill = "crp"', "'ill'"),
        ('log_crp = "log(crp)"', 'smoker = "crp"', "of kind number"),
        ('"log(crp)"', "3", "derived"),
        ("[derived]\n", "[derived.more]\n", "derived"),
    ],
)
def test_a_study_with_wrong_derived_columns_is_refused(old, new, words):
    assert old in STUDY
    with pytest.raises(InvalidData, match=words):
        Study.parse(STUDY.replace(old, new))


def test_derived_columns_are_columns_of_the_study(study):
    assert study.sent == (
        *("log_crp", "log_crp missing", "age", "crp", "crp missing", "smoker", "smoker missing"),
        *("bmi", "smoked", "smoked missing", "age2"),
    )
    assert study.needed == ("age", "crp", "smoker", "weight (kg)", "height", "ill")
    again = wire.decode(wire.encode(study))
    assert again == study
    assert dict(again.derived) == dict(study.derived)
    assert Study.parse(STUDY.replace("age ** 2", "age * age")).fingerprint != study.fingerprint
    assert "derived" not in Study.parse(STUDY.partition("[derived]")[0].replace("log_crp", "other")).to_fields()
    assert "computed: age2 = age ** 2" in study.about()


@pytest.mark.parametrize("arrow", [True, False])
def test_values_are_computed_from_raw_values_before_scaling(study, north, arrow, monkeypatch):
    if not arrow:
        monkeypatch.setattr(csvfiles, "_arrow", lambda: None)
    with pytest.warns(Skipped, match="1 row left out for missing values .bmi 1"):
        x = read_client(study, "north", north).x
    age, crp, smoker = np.array([40, 50, 30, 20.0]), np.array([1, 0, np.nan, 2]), np.array([1, 0, np.nan, 0])
    with np.errstate(divide="ignore"):
        log = np.log(crp)
    absent = ~np.isfinite(log)
    wanted = {
        "log_crp": np.where(absent, 0, log) / 5,
        "log_crp missing": absent,
        "age": (age - 60) / 60,
        "age2": age**2,
        "bmi": [81 / 1.8**2, 64 / 1.6**2, 25, 20],
        "smoked": np.nan_to_num(age * smoker),
        "smoked missing": np.isnan(smoker),
    }
    for name, values in wanted.items():
        np.testing.assert_array_equal(x[:, study.sent.index(name)], values, err_msg=name)


def test_a_clipped_or_unusable_value_is_what_is_computed_with(tmp_path):
    text = STUDY.replace("range = [0, 120]", 'range = [0, 55]\noutside = "clip"')
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "1,60,yes,2,80,no\n1,50,yes,2,80,yes\n")
    study = Study.parse(text)
    assert read_client(study, "north", path).x[:, study.sent.index("age2")].tolist() == [55**2, 50**2]


def test_a_value_that_counts_as_missing_is_not_computed_with(tmp_path):
    text = STUDY.replace("range = [0, 120]", 'range = [0, 55]\noutside = "missing"\nmissing = "mean"')
    text += '[columns.age2]\nkind = "number"\nmissing = "mean"\n'
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "1,60,yes,2,80,no\n1,50,yes,2,80,yes\n")
    study = Study.parse(text)
    x = read_client(study, "north", path).x
    assert x[:, study.sent.index("age2 missing")].tolist() == [1, 0]
    assert x[:, study.sent.index("age2")].tolist() == [0, 50**2]


def test_a_result_against_the_rules_names_its_expression_to_all_and_its_cells_to_the_party(study, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "1e9,60,yes,2,80,no\n1,50,yes,tall,80,yes\n")
    lines = list(check_table(study, path).lines())
    assert any(
        line.startswith("column 'log_crp' must be from -5 to 5 (it is log(crp)): line 2 (got 20.7") for line in lines
    )
    assert any(line.startswith("column 'height' must hold numbers: line 3 (got tall)") for line in lines)
    with pytest.raises(BadSamples) as caught:
        read_client(study, "north", path)
    assert "tall" not in tell(caught.value)


def test_what_is_computed_with_must_be_there_and_what_is_computed_must_not(study, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER.replace(",height", "") + "1,60,yes,80,no\n")
    with pytest.raises(Mismatch, match="lacks column 'height'"):
        open_for(study, path)
    path.write_text(HEADER.replace("height", "height,age2") + "1,60,yes,2,7,80,no\n")
    with pytest.raises(Mismatch, match="has column 'age2', which study 'computed' computes"):
        open_for(study, path)


def test_moments_fits_and_predictions_take_them_like_other_columns(study, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "north.csv"
    rows = [
        f"{rng.uniform(0, 9):.3f},{rng.integers(20, 90)},{'yn'[k % 2]},{rng.uniform(1.5, 2):.2f},"
        f"{rng.integers(50, 99)},{'yes' if k % 3 else 'no'}\n"
        for k in range(80)
    ]
    path.write_text(HEADER + "".join(rows))
    client = read_client(study, "north", path)
    moments = sum_up(study, "north", path).moments
    np.testing.assert_allclose(moments.cross.sum(axis=1), client.x.sum(axis=0))
    fit = fg.FedGram().fit([client], study=study, classes=study.classes)
    fit.save(tmp_path / "fit.fedgram")
    model = fg.load(tmp_path / "fit.fedgram").predictor()
    assert model.columns == ("age", "crp", "smoker", "weight (kg)", "height")
    np.testing.assert_array_equal(model.predict(path), fit.predictor().predict(path))
    (tmp_path / "new.csv").write_text("age,smoker,crp,height,weight (kg)\n44,y,1,,70\n44,y,1,1.7,70\n")
    [found] = model.read(open_table(tmp_path / "new.csv"))
    reason = "column 'bmi' is empty, and the study leaves such rows out (it is `weight (kg)` / height ** 2)"
    assert found.reasons == [reason, ""]


def test_a_smaller_study_computes_less(study):
    smaller = narrowed(study, ["age2", "crp"])
    assert smaller.sent == ("crp", "crp missing", "age2")
    assert dict(smaller.derived) == {"age2": "age ** 2"}
    assert smaller.needed == ("crp", "age", "ill")
