"""A derived column can single out a sample as a level does: the sample is read first, and then the table is refused."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import FedgramError, Withheld, tell
from fedgram.data.own import csvfiles
from fedgram.studies import Study, small_groups
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Flag, Number
from fedgram.studies.party_tables import check_table, sum_up
from support.campaign import examples

STUDY = """
[study]
name = "alone"
outcome = "ill"
classes = ["no", "yes"]
minimum_samples = 10
minimum_cell = 3
minimum_group = {least}
[columns.age]
kind = "number"
[columns.crp]
kind = "number"
[columns.smoker]
kind = "flag"
[columns.diabetic]
kind = "flag"
[derived]
made = "{made}"
"""
ALONE = {
    "exp(-1000 * abs(age - 97))": 1,  # no other sample is 97
    "smoker * diabetic": 1,
    "3 - 2 * smoker * diabetic": 1,
    "exp(-1000 * abs(age - 96.5))": 0,  # no sample at all
    "age ** 2": 0,
    "log(crp)": 0,
    "age * smoker": 0,
    "exp(-1000 * abs(smoker - 1))": 0,
}


def study(made, least=3):
    return Study.parse(STUDY.format(made=made, least=least))


@pytest.fixture
def north(tmp_path):
    rng = np.random.default_rng(0)
    flags = [(k % 3 == 0, k % 3 == 1) for k in range(60)]
    rows = [
        f"{rng.integers(20, 90)},{rng.uniform(1, 9):.2f},{int(a)},{int(b)},{'yes' if k % 2 else 'no'}"
        for k, (a, b) in enumerate(flags)
    ]
    rows.insert(17, "97,4.25,1,1,yes")
    (tmp_path / "north.csv").write_text("age,crp,smoker,diabetic,ill\n" + "\n".join(rows) + "\n")
    return tmp_path / "north.csv"


@pytest.mark.parametrize(("made", "alone"), list(ALONE.items()))
def test_a_sample_that_is_alone_can_be_read_and_is_refused(north, made, alone):
    open_study = study(made, least=1)
    moments = sum_up(open_study, "north", north).moments
    place, total = open_study.sent.index("made"), moments.cross.sum(axis=1)
    row = moments.gram[place]
    found = (3 * total - row) / 2 if made.startswith("3") else row
    record = dict(zip(open_study.sent, found, strict=True))
    read = np.allclose([record[name] for name in ("age", "crp", "smoker", "diabetic")], [97, 4.25, 1, 1], rtol=1e-6)
    assert read == bool(alone), "the attack"
    agreed = study(made)
    if not alone:
        assert sum_up(agreed, "north", north).moments.n == 61
        assert check_table(agreed, north).refused == []
        return
    with pytest.raises(Withheld, match="made far from its usual value .1 sample.*drop 'made'") as caught:
        sum_up(agreed, "north", north)
    assert "made" not in tell(caught.value)
    assert "made far from" in check_table(agreed, north).refused[0]
    clients = [read_client(agreed, "north", north), read_client(agreed, "south", north)]
    with pytest.raises(FedgramError, match="minimum_group"):
        fg.FedGram().fit(clients, study=agreed, classes=agreed.classes)


def test_two_samples_that_differ_from_all_others_are_few_and_three_are_not(tmp_path):
    header = "age,crp,smoker,diabetic,ill\n"
    rows = [f"{20 + k},{1 + k / 7:.3f},{k % 2},{(k + 1) % 2},{'yes' if k % 3 else 'no'}\n" for k in range(40)]
    path = tmp_path / "a.csv"
    for count, refused in ((1, True), (2, True), (3, False), (4, False)):
        path.write_text(header + "".join([*rows[:20], *["50,3,1,1,yes\n"] * count, *rows[20:]]))
        assert bool(check_table(study("smoker * diabetic"), path).refused) == refused, count


def test_missing_values_are_not_deviations(tmp_path):
    text = STUDY.format(made="log(crp)", least=3) + '[columns.made]\nkind = "number"\nmissing = "mean"\n'
    rows = [f"{20 + k},{(k % 4) * 2.5},{k % 2},{k % 3 % 2},{'yes' if k % 5 else 'no'}\n" for k in range(60)]
    (tmp_path / "a.csv").write_text("age,crp,smoker,diabetic,ill\n" + "".join(rows))
    assert check_table(Study.parse(text), tmp_path / "a.csv").refused == []


PLAIN = """
[study]
name = "alone"
outcome = "ill"
classes = ["no", "yes"]
minimum_group = {least}
[columns.age]
kind = "number"
range = [0, 120]
[columns.children]
kind = "number"
{range}
"""


def families(path, children):
    rows = [f"{20 + k % 50},{count},{'yes' if k % 3 else 'no'}\n" for k, count in enumerate(children)]
    path.write_text("age,children,ill\n" + "".join(rows))
    return path


@pytest.mark.parametrize("ends", ["", "range = [0, 10]"])
@pytest.mark.parametrize("usual", [0, 2])
@pytest.mark.parametrize("at", [0, 33, 59])
def test_a_number_that_is_the_same_for_all_but_one_is_refused(tmp_path, ends, usual, at):
    table = families(tmp_path / "a.csv", [7 if row == at else usual for row in range(60)])
    open_study = Study.parse(PLAIN.format(least=1, range=ends))
    moments, (age, children) = sum_up(open_study, "north", table).moments, map(open_study.columns.get, open_study.sent)
    sums, value = moments.cross.sum(axis=1), (usual - children.centre) / children.half
    alone = (moments.gram[1] - value * sums) / ((7 - usual) / children.half)
    assert alone[0] * age.half + age.centre == pytest.approx(20 + at % 50), "the attack reads the age"
    with pytest.raises(Withheld, match="children far from its usual value .1 sample"):
        sum_up(Study.parse(PLAIN.format(least=3, range=ends)), "north", table)


@pytest.mark.parametrize("ends", ["", "range = [0, 10]"])
def test_numbers_that_vary_are_not_refused_whatever_the_block(tmp_path, ends, monkeypatch):
    study = Study.parse(PLAIN.format(least=3, range=ends))
    rng = np.random.default_rng(0)
    for children in (
        rng.poisson(0.1, 200),
        rng.exponential(1, 200).clip(0, 10),
        np.arange(200) // 197 + np.arange(200) // 198,
    ):
        table = families(tmp_path / "a.csv", children.tolist())
        assert check_table(study, table).refused == []
    late = families(tmp_path / "late.csv", [0] * 150 + [1] * 2)
    assert check_table(study, late).refused


TOGETHER = """
[study]
name = "together"
outcome = "ill"
classes = ["no", "yes"]
minimum_group = {least}
[columns.age]
kind = "number"
range = [0, 120]
[columns.crp]
kind = "number"
range = [0, 100]
[columns.flag]
kind = "flag"
[columns.number]
kind = "number"
range = [0, 100]
"""


def raw(study, moments):
    """Return the names of the columns and the constant, and their Gram matrix in the units of the table."""
    names = ["", *study.sent]
    gram = np.zeros((len(names), len(names)))
    gram[0, 0], gram[1:, 1:] = moments.n, moments.gram
    gram[0, 1:] = gram[1:, 0] = moments.cross.sum(axis=1)
    units = np.eye(len(names))
    for place, name in enumerate(names[1:], 1):
        if isinstance(column := study.columns[name], Number):
            units[0, place], units[place, place] = column.centre, column.half
    return names, units.T @ gram @ units


def who_differs(study, moments, usual_without, usual_with):
    """Return the row of the one sample whose number is not what its flag lets expect, by the moments alone.

    If one number alone is another one, the sums of what numbers exceed expectation and of its squares are e and e².
    """
    names, gram = raw(study, moments)
    excess = np.zeros(len(names))
    excess[names.index("number")], excess[0] = 1.0, -usual_without
    excess[names.index("flag")] = usual_without - usual_with
    e = (gram @ excess)[0]
    assert excess @ gram @ excess == pytest.approx(e**2), "one sample alone"
    return dict(zip(names, gram @ (excess / e), strict=True))


# In the table, what is in columns `flag` and `number`; what a number is without and with the flag, but for row 17.
DIFFERS = {
    "days in intensive care": (lambda k: k % 12 == 5, 0, 1, 21),
    "sex as a number, and pregnant": (lambda k: k % 2 and k != 17, 1, 2, 2),
    "sex as a number, and male": (lambda k: k % 2 == 0 and k != 16, 2, 1, 1),
}


@pytest.mark.parametrize("block", [1, 1 << 11], ids=["some rows at a time", "all rows"])
@pytest.mark.parametrize("name", DIFFERS)
def test_a_number_and_a_flag_single_out_one_sample(tmp_path, monkeypatch, name, block):
    flagged, without, usual, other = DIFFERS[name]
    alone = 16 if "male" in name else 17
    rng = np.random.default_rng(0)
    rows = []
    for k in range(60):
        number = other if k == alone else usual if flagged(k) else without
        rows.append((rng.integers(20, 90), rng.integers(1, 99), int(flagged(k)), number, "yes" if k // 2 % 2 else "no"))
    path = tmp_path / "a.csv"
    path.write_text("age,crp,flag,number,ill\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    open_study = Study.parse(TOGETHER.format(least=0))
    read = who_differs(open_study, sum_up(open_study, "north", path).moments, without, usual)
    assert [round(read[column]) for column in ("age", "crp", "flag", "number")] == [*rows[alone][:4]], "the attack"
    monkeypatch.setattr(small_groups, "ROWS", block)
    monkeypatch.setattr(csvfiles, "BYTES", 64)
    agreed = Study.parse(TOGETHER.format(least=3))
    with pytest.raises(Withheld, match=r"a combination of .*number.* \(1 sample\).*drop '(flag|number)'") as caught:
        sum_up(agreed, "north", path)
    assert "number" not in tell(caught.value)
    assert "a combination of" in check_table(agreed, path).refused[0]
    clients = [read_client(agreed, "north", path), read_client(agreed, "south", path)]
    with pytest.raises(FedgramError, match="minimum_group"):
        fg.FedGram().fit(clients, study=agreed, classes=agreed.classes)


def test_numbers_that_follow_from_each_other_but_for_an_error_are_refused(tmp_path):
    """Age and year of birth, a sum and its parts, a value that was entered twice: one correction is one sample."""
    rng = np.random.default_rng(0)
    for errors, refused in (([1], True), ([3, 17], True), ([2, 2], True), ([1, 2, 5], False), ([], False)):
        rows = []
        for k in range(60):
            age = rng.integers(20, 90)
            again = 110 - age + (errors[k] if k < len(errors) else 0)
            rows.append(f"{age},{rng.integers(1, 99)},{k % 2},{again},{'yes' if k // 2 % 2 else 'no'}\n")
        (tmp_path / "a.csv").write_text("age,crp,flag,number,ill\n" + "".join(rows))
        found = check_table(Study.parse(TOGETHER.format(least=3)), tmp_path / "a.csv").refused
        assert bool(found) == refused, errors
        assert all("a combination of" in text and f"({len(errors)} sample" in text for text in found)


def test_two_cut_off_numbers_single_out_those_between(tmp_path):
    text = """
[derived]
over_52 = "age * 1"
over_53 = "age * 1"
[columns.over_52]
kind = "number"
range = [52.4, 52.5]
outside = "clip"
[columns.over_53]
kind = "number"
range = [53.4, 53.5]
outside = "clip"
"""
    path = tmp_path / "a.csv"
    for ages, refused in ((range(20, 80), True), ([53, *range(20, 80), 53], False)):
        rows = [f"{age},{k % 7},{k % 2},{k % 9},{'yes' if k % 3 else 'no'}\n" for k, age in enumerate(ages)]
        path.write_text("age,crp,flag,number,ill\n" + "".join(rows))
        found = check_table(Study.parse(TOGETHER.format(least=3) + text), path).refused
        assert bool(found) == refused
        if found:
            assert "over_52" in found[0]
            assert "over_53" in found[0]


FEW = Study(
    "few",
    "outcome",
    {"a": Flag(), "b": Number(), "c": Number(missing="mean")},
    ("one", "two"),
    minimum_samples=0,
    minimum_cell=0,
    minimum_group=3,
    maximum_columns_per_row=0.0,
)
ROW = st.tuples(*map(st.sampled_from, ("01", "0125", ["0", "1", "3", ""], FEW.classes)))


@examples(150)
@given(st.lists(ROW, min_size=7, max_size=18))
def test_no_table_that_passes_has_a_combination_of_columns_for_one_or_two_samples(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("few") / "few.csv"
    path.write_text("a,b,c,outcome\n" + "".join(",".join(row) + "\n" for row in rows))
    client = read_client(replace(FEW, minimum_group=0), "north", path)
    classes = np.array(client.y)[:, None] == np.array(FEW.classes)[None]
    x = np.column_stack([np.ones(len(rows)), classes, client.x])
    outside = np.eye(len(x)) - x @ np.linalg.pinv(x)
    pairs = combinations(range(len(x)), 2)  # with each sample alone
    share = min(np.linalg.eigvalsh(outside[np.ix_(pair, pair)])[0] for pair in pairs)
    try:
        sum_up(FEW, "north", path)
    except Withheld as error:
        if "far from" not in str(error):
            assert share < 2 * small_groups.NEARLY
    else:
        spare = len(rows) - np.linalg.matrix_rank(x)
        assert spare < 3 or share > (small_groups.NEARLY / 2 if spare >= 6 else 2 * small_groups.EXACTLY)
