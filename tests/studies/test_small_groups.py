"""A person whom the sums single out: the attack reads the row, the rule refuses the table, and no other table is read.

The attack knows the moments alone. A combination w of columns with whole numbers is a vector of 0 and 1 if, and only
if, the sum of its squares is its sum, which XᵀX tells; X'Xw has then the sums of all columns over these samples.
"""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import FedgramError, InvalidData, tell
from fedgram.data.own import csvfiles
from fedgram.studies import Study, small_groups, summarize
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Ignore, Number
from fedgram.studies.media import Image
from fedgram.studies.small_groups import Indicators, Patterns, columns_per_row, rows_needed
from support.campaign import examples

REFERRALS = ("planned", "transfer", "emergency")
COLUMNS = {
    "age": Number(range=(0, 120)),
    "crp": Number(range=(0, 500), missing="mean"),
    "referral": Category(REFERRALS),
    "smoker": Flag(),
    "former": Flag(),
    "never": Flag(),
}
STUDY = Study("stroke", "diagnosis", COLUMNS, ("ill", "well"), minimum_samples=10, minimum_cell=3)
LOOSE = replace(STUDY, minimum_group=0, maximum_columns_per_row=0.0)
N = 60


def patients(**changed):
    """Return cells of patients among whom no group is small, by column; `changed` gives rows another cell."""
    rng = np.random.default_rng(0)
    place = np.arange(N)
    smoking = place % 4
    cells = {
        "age": rng.integers(18, 99, N).astype(str).tolist(),
        "crp": [f"{value:.1f}" for value in rng.uniform(0, 90, N)],
        "referral": [REFERRALS[k % 3] for k in place // 2],
        "smoker": np.where(smoking == 0, "yes", "no").tolist(),
        "former": np.where(smoking == 1, "yes", "no").tolist(),
        "never": np.where(smoking >= 2, "yes", "no").tolist(),
        "diagnosis": np.where(rng.random(N) < 0.5, "ill", "well").tolist(),
    }
    for name, rows in changed.items():
        for row, cell in rows.items():
            cells[name][row] = cell
    return cells


def written(path, cells):
    names = list(cells)
    lines = [",".join(names), *(",".join(row) for row in zip(*(cells[name] for name in names), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def all_but(cell, but):
    return {row: but.get(row, cell) for row in range(N)}


ALONE = {
    "one column": patients(
        referral={row: "planned" for row in range(N) if row % 6 > 3} | {17: "emergency"},
    ),
    "a complement": patients(smoker=all_but("yes", {17: "no"})),
    "a gap": patients(crp={17: ""}),
    # Of those who do not smoke any more and those who smoke now, 17 alone is in one of the groups and not in the other.
    "a difference": patients(
        former=all_but("no", dict.fromkeys((3, 5, 17, 21, 30), "yes")),
        smoker=all_but("no", dict.fromkeys((3, 5, 21, 30), "yes")),
    ),
    "neither of two": patients(
        smoker={row: "yes" if row % 2 else "no" for row in range(N) if row != 17} | {17: "no"},
        former={row: "no" if row % 2 else "yes" for row in range(N) if row != 17} | {17: "no"},
    ),
    "both of two": patients(
        smoker={row: "yes" if row % 2 else "no" for row in range(N) if row != 17} | {17: "yes"},
        former={row: "no" if row % 2 else "yes" for row in range(N) if row != 17} | {17: "yes"},
    ),
    # All are smokers, former smokers or have never smoked, but one, for whom it is not said.
    "three columns": patients(smoker={17: "no"}, former={17: "no"}, never={17: "no"}),
}
SETTINGS = pytest.mark.parametrize("cells", ALONE.values(), ids=ALONE)


def whole(study, moments):
    """Return XᵀX with the constant and a column for each class in front."""
    c = len(moments.classes)
    x = np.zeros((1 + c + moments.d, 1 + c + moments.d))
    x[0, 0], x[0, 1 : 1 + c], x[0, 1 + c :] = moments.n, moments.counts, moments.cross.sum(axis=1)
    x[range(1, 1 + c), range(1, 1 + c)] = moments.counts
    x[1 : 1 + c, 1 + c :] = moments.cross.T
    x[1 + c :, 1 + c :] = moments.gram
    return np.triu(x) + np.triu(x, 1).T


def attack(study, moments, *, least=3, most=3):
    """Return the sums over each group of fewer than `least` samples that up to `most` columns and the constant show."""
    x, c = whole(study, moments), 1 + len(moments.classes)
    own = [place for place, sent in enumerate(study.sent) if sent not in ("age", "crp")]
    places = [*range(1, c), *(c + place for place in own)]
    found = {}
    for count in range(1, most + 1):
        for chosen in combinations(places, count):
            some = [0, *chosen]
            part = np.rint(x[np.ix_(some, some)])
            for w in map(np.array, product((-2, -1, 0, 1), *[(-1, 1)] * count)):
                size = w @ part[0]
                if 0 < size < min(least, moments.n) and w @ part @ w == size:
                    sums = x[:, some] @ w
                    found.setdefault(tuple(np.round(sums, 6)), sums)
    return list(found.values())


def record(study, sums):
    """Return what a patient's row says, as the table has it."""
    by_name = dict(zip(["", *study.classes, *study.sent], sums, strict=True))

    def number(name):
        column = COLUMNS[name]
        return column.centre + column.half * by_name[name]

    levels = {level: by_name[f"referral={level}"] for level in REFERRALS[1:]}
    gone = "crp missing" in by_name and round(by_name["crp missing"]) == 1
    return {
        "age": f"{number('age'):.0f}",
        "crp": "" if gone else f"{number('crp'):.1f}",
        "referral": next((level for level, value in levels.items() if round(value)), REFERRALS[0]),
        **{name: "yes" if round(by_name[name]) else "no" for name in ("smoker", "former", "never")},
        "diagnosis": next(label for label in study.classes if round(by_name[label])),
    }


@SETTINGS
def test_the_attack_reads_a_person_whom_the_rule_protects(cells, tmp_path):
    path = written(tmp_path / "north.csv", cells)
    read = [record(LOOSE, sums) for sums in attack(LOOSE, summarize(LOOSE, "north", path))]
    assert {name: column[17] for name, column in cells.items()} in read, "digit for digit"
    with pytest.raises(InvalidData, match=r"^minimum_group: expected at least 3 .* \(1 sample") as caught:
        summarize(STUDY, "north", path)
    assert not any(name in tell(caught.value) for name in (*COLUMNS, "17", "emergency", "north"))
    assert "minimum_group" in tell(caught.value)


@SETTINGS
def test_a_run_under_the_study_refuses_it_too(cells, tmp_path):
    clients = [read_client(STUDY, "north", written(tmp_path / "north.csv", cells))]
    clients += [read_client(STUDY, name, written(tmp_path / f"{name}.csv", patients())) for name in ("south", "east")]
    fit = fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes, require=2)
    assert fit.contributors == ("south", "east")
    assert "minimum_group" in fit.absent["north"]
    assert not any(name in fit.absent["north"] for name in (*COLUMNS, "emergency"))
    with pytest.raises(FedgramError, match="minimum_group"):
        fit.summarize(clients[0])


def test_the_party_hears_which_group_it_is_and_what_helps(tmp_path):
    for name, words in {
        "one column": ["referral=emergency (1 sample)", "merge levels of 'referral'", "drop 'referral'"],
        "a complement": ["smoker=no (1 sample)", "drop 'smoker'"],
        "a gap": ["crp missing (1 sample)", "set missing = 'drop' or 'refuse'", "drop 'crp'"],
        "a difference": ["former=yes but not smoker=yes (1 sample)"],
        "neither of two": ["neither smoker=yes nor former=yes (1 sample)"],
        "both of two": ["smoker=yes and former=yes (1 sample)"],
        "three columns": ["a combination of", "smoker=yes", "former=yes", "never=yes"],
    }.items():
        with pytest.raises(InvalidData) as caught:
            summarize(STUDY, "north", written(tmp_path / "north.csv", ALONE[name]))
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_table_without_small_groups_passes_and_is_not_read(tmp_path):
    path = written(tmp_path / "north.csv", patients())
    assert attack(STUDY, summarize(STUDY, "north", path)) == []


def test_counts_of_none_and_of_all_pass(tmp_path):
    cells = patients(smoker=all_but("no", {}), former=all_but("yes", {}), never=all_but("no", {}))
    assert summarize(STUDY, "north", written(tmp_path / "north.csv", cells)).n == N


@SETTINGS
def test_without_patterns_the_other_searches_find_the_same(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(small_groups, "MOST_BYTES", 0)
    path = written(tmp_path / "north.csv", cells)
    with pytest.raises(InvalidData, match="minimum_group"):
        summarize(STUDY, "north", path)


@pytest.mark.parametrize("cells", [*ALONE.values(), patients()], ids=[*ALONE, "no group"])
def test_blocks_do_not_change_the_answer(cells, tmp_path, monkeypatch):
    path = written(tmp_path / "north.csv", cells)
    monkeypatch.setattr(csvfiles, "BYTES", 256)
    monkeypatch.setattr(small_groups, "CELLS", 64)
    if cells in ALONE.values():
        with pytest.raises(InvalidData, match="minimum_group"):
            summarize(STUDY, "north", path)
    else:
        assert summarize(STUDY, "north", path).n == N


MIXED = Study(
    "mixed",
    "outcome",
    {
        "a": Flag(missing="mean"),
        "b": Flag(),
        "c": Category(("x", "y", "z"), missing="category"),
        "d": Number(missing="flag"),
        "e": Flag(),
    },
    ("one", "two", "three"),
    minimum_samples=0,
    minimum_cell=0,
    minimum_group=3,
    maximum_columns_per_row=0.0,
)
CELLS = {"a": ("yes", "no", ""), "b": ("yes", "no"), "c": ("x", "y", "z", ""), "d": ("1", ""), "e": ("yes", "no")}
KINDS = st.fixed_dictionaries({name: st.sampled_from(cells) for name, cells in CELLS.items()})


@st.composite
def tables(draw):
    """Return cells of a table in which few different rows occur several times."""
    kinds = draw(st.lists(st.tuples(KINDS, st.sampled_from(MIXED.classes)), min_size=1, max_size=9))
    rows = [row for row in kinds for _ in range(draw(st.integers(1, 4)))]
    return {name: [row[name] for row, _ in rows] for name in CELLS} | {"outcome": [label for _, label in rows]}


# The first and the tenth row: a reader of the sums learns the difference of these two persons in every column.
TWO_THAT_DIFFER = {
    "a": ["no", "no", "", "", "", "yes", "no", *["yes"] * 5],
    "b": ["yes", "yes", "yes", "no", "no", "yes", "no", *["yes"] * 5],
    "c": list("xzzyyxyxxzxx"),
    "d": ["", *["1"] * 9, "", ""],
    "e": ["yes", "yes", "yes", "no", "no", "yes", "yes", "yes", "yes", "no", "yes", "yes"],
    "outcome": [*["three"] * 3, *["one"] * 6, *["three"] * 3],
}


def indicators_of(study, client):
    """Return the constant, the classes and all columns of 0 and 1, row by row."""
    places = Indicators(study).places
    classes = np.array(client.y)[:, None] == np.array(study.classes)[None]
    return np.column_stack([np.ones(len(client.y)), classes, client.x[:, places]])


def small_vectors(x, least):
    """Return whether some 0/1 vector of fewer than `least` ones lies in the span, by trying all of them."""
    outside = np.eye(len(x)) - x @ np.linalg.pinv(x)
    sets = (chosen for size in range(1, min(least, len(x))) for chosen in combinations(range(len(x)), size))
    return any(np.linalg.norm(outside[:, list(chosen)].sum(axis=1)) < 1e-8 for chosen in sets)


def few_rows(x, least):
    """Return whether some vector of the span belongs to fewer than `least` rows, with any weights.

    Such as the difference of two rows, in which each column shows whether the two persons differ.
    """
    outside = np.eye(len(x)) - x @ np.linalg.pinv(x)
    sets = np.array(list(combinations(range(len(x)), min(least, len(x)) - 1)), dtype=int)
    parts = outside[sets[:, :, None], sets[:, None, :]]
    return bool(sets.size) and bool((np.linalg.eigvalsh(parts)[:, 0] < small_groups.NEARLY).any())


def refused_rightly(x, least):
    return small_vectors(x, least) or few_rows(x, least)


@examples(150)
@given(tables())
@example(TWO_THAT_DIFFER)
def test_all_single_samples_and_pairs_are_found_and_nothing_else(tmp_path_factory, cells):
    path = written(tmp_path_factory.mktemp("any") / "any.csv", cells)
    loose = replace(MIXED, minimum_group=0)
    x = indicators_of(loose, read_client(loose, "north", path))
    try:
        moments = summarize(MIXED, "north", path)
    except InvalidData as error:
        assert "minimum_group" in str(error)
        assert refused_rightly(x, 3)
    else:
        assert not small_vectors(x, 3)
        assert attack(MIXED, moments, most=2) == []


@examples(40)
@given(tables(), st.integers(4, 6))
@example(TWO_THAT_DIFFER, 4)
def test_larger_groups_are_found_and_nothing_else(tmp_path_factory, cells, least):
    path = written(tmp_path_factory.mktemp("any") / "any.csv", cells)
    loose = replace(MIXED, minimum_group=0)
    x = indicators_of(loose, read_client(loose, "north", path))
    try:
        moments = summarize(replace(MIXED, minimum_group=least), "north", path)
    except InvalidData:
        assert len(x) > 16 or refused_rightly(x, least)
    else:
        assert len(x) > 16 or not small_vectors(x, least)
        assert attack(MIXED, moments, least=least, most=1) == []


def test_more_indicators_than_bits_in_a_word(tmp_path):
    names = [f"f{k}" for k in range(90)]
    study = Study("wide", "outcome", dict.fromkeys(names, Flag()), ("one", "two", "three"), maximum_columns_per_row=0.0)
    rng = np.random.default_rng(0)
    cells = {name: rng.choice(["yes", "no"], 400).tolist() for name in names}
    cells["outcome"] = rng.choice(study.classes, 400).tolist()
    assert summarize(study, "north", written(tmp_path / "wide.csv", cells)).n == 400
    patterns, client = Patterns(study), read_client(study, "north", tmp_path / "wide.csv")
    patterns.add(patterns.keys(client.x, np.searchsorted(["one", "three", "two"], client.y)))
    x = np.column_stack([np.ones(400), np.array(client.y)[:, None] == ["one", "three", "two"], client.x])
    np.testing.assert_array_equal(patterns.gram, x.T @ x)
    cells["f80"] = ["yes", *["no"] * 399]
    with pytest.raises(InvalidData, match="f80=yes .1 sample"):
        summarize(study, "north", written(tmp_path / "wide.csv", cells))


def test_the_gram_matrix_of_moments_is_that_of_the_patterns(tmp_path):
    path = written(tmp_path / "north.csv", ALONE["a gap"])
    client = read_client(LOOSE, "north", path)
    x = indicators_of(LOOSE, client)
    indicators = Indicators(LOOSE)
    np.testing.assert_array_equal(indicators.gram(summarize(LOOSE, "north", path)), x.T @ x)
    vectors = dict(zip([vector.name for vector in indicators.vectors], indicators.matrix @ x.T @ x[:, 0], strict=True))
    for name, value in (("referral=planned", "planned"), ("referral=emergency", "emergency")):
        assert vectors[name] == ALONE["a gap"]["referral"].count(value)
    assert vectors["smoker=no"] == ALONE["a gap"]["smoker"].count("no")
    assert vectors["crp missing"] == 1


def test_numeric_outcomes_have_groups_without_classes(tmp_path):
    study = Study("costs", "age", COLUMNS | {"diagnosis": Category(("ill", "well"))})
    assert summarize(study, "north", written(tmp_path / "north.csv", patients())).n == N
    for name in ("one column", "a gap", "three columns"):
        with pytest.raises(InvalidData, match="minimum_group"):
            summarize(study, "north", written(tmp_path / "north.csv", ALONE[name]))


def test_numbers_alone_have_no_groups(tmp_path):
    study = Study(
        "ages", "crp", {"age": Number(), "crp": Number()} | dict.fromkeys(COLUMNS.keys() - {"age", "crp"}, Ignore())
    )
    cells = {name: column for name, column in patients().items() if name != "diagnosis"}
    assert summarize(study, "north", written(tmp_path / "north.csv", cells)).n == N


def test_groups_within_a_class_are_a_rule_of_their_own(tmp_path):
    cells = patients()
    cells["diagnosis"] = ["ill" if level == "emergency" else "well" for level in cells["referral"]]
    cells["diagnosis"][:8] = ["ill"] * 8  # of the others, some are ill; one of these is a transfer
    cells["referral"][:8] = ["planned"] * 5 + ["transfer"] + ["emergency"] * 2
    cells["diagnosis"][40:44] = ["well"] * 4
    path = written(tmp_path / "north.csv", cells)
    assert summarize(STUDY, "north", path).n == N
    with pytest.raises(InvalidData, match=r"^minimum_group_in_class: .*ill, referral=transfer \(1 sample\)"):
        summarize(replace(STUDY, minimum_group_in_class=3), "north", path)


def test_columns_per_row(tmp_path):
    plain, features = columns_per_row(STUDY)
    assert (plain, features) == (7, 0), "gap columns do not count"
    assert rows_needed(STUDY, 0.33) == 22
    cells = {name: column[:21] for name, column in patients().items()}
    study = replace(STUDY, minimum_group=0)
    with pytest.raises(
        InvalidData, match=r"at least 22 .* 7 columns, by maximum_columns_per_row = 0.33, and your table has 21"
    ):
        summarize(study, "n", written(tmp_path / "few.csv", cells))
    assert summarize(replace(study, maximum_columns_per_row=0.34), "n", tmp_path / "few.csv").n == 21
    enough = {name: column[:22] for name, column in patients().items()}
    assert summarize(study, "n", written(tmp_path / "few.csv", enough)).n == 22


def test_a_feature_of_a_backbone_needs_one_row():
    scan = Image("lite0:96", digest="0" * 64, features=1280, missing="mean")
    study = Study("scans", "finding", {"age": Number(missing="flag"), "scan": scan}, ("ill", "well"))
    assert columns_per_row(study) == (1, 1280)
    assert rows_needed(study, 0.33) == 1284
    assert rows_needed(study, 2.0) == 641
    assert rows_needed(study, 0.0) == 0


def test_limits_are_settings_of_a_study():
    text = "[study]\nname = 's'\noutcome = 'o'\nclasses = ['a', 'b']\n{}\n[columns.x]\nkind = 'number'\n"
    usual = Study.parse(text.format(""))
    assert (usual.smallest_group, usual.minimum_group_in_class, usual.maximum_columns_per_row) == (3, 0, 0.33)
    assert Study.parse(text.format("minimum_cell = 7")).smallest_group == 7
    own = Study.parse(text.format("minimum_group = 5\nminimum_group_in_class = 2\nmaximum_columns_per_row = 1"))
    assert (own.smallest_group, own.minimum_group_in_class, own.maximum_columns_per_row) == (5, 2, 1.0)
    assert Study.from_fields(own.to_fields()) == own
    assert own == Study.parse(
        text.format("minimum_group = 5\nminimum_group_in_class = 2\nmaximum_columns_per_row = 1.0")
    )
    assert len({usual.fingerprint, own.fingerprint, replace(own, maximum_columns_per_row=0.5).fingerprint}) == 3
    for wrong in ("minimum_group = -1", "maximum_columns_per_row = 'all'", "maximum_columns_per_row = inf"):
        with pytest.raises(InvalidData, match=wrong.split(" ")[0]):
            Study.parse(text.format(wrong))
