"""The study file: allowed content, refusals with their messages, and its fingerprint."""

import pyarrow as pa
import pytest

from fedgram.core import wire
from fedgram.core.errors import Doubtful, InvalidData
from fedgram.studies import Study
from fedgram.studies.drafting import draft
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Ignore, Number
from support.data import write
from support.patients import TEXT

# The shared study without defaults, and with two more settings.
DEFAULTS = 'method = "fedgram"\nminimum_samples = 12\nminimum_cell = 3\n'
STROKE = TEXT.replace(DEFAULTS, "") + 'missing = "category"\n\n[columns.smoker]\nkind = "flag"\n'


def test_what_a_file_says():
    assert DEFAULTS in TEXT
    study = Study.parse(STROKE)
    assert study.columns == {
        "age": Number("years", (0.0, 120.0), missing="mean"),
        "sex": Category(("F", "M"), "category"),
        "smoker": Flag(),
        "patient_id": Ignore(),
    }
    assert study.classes == ("ill", "well")
    assert dict(study.parties) == {"north": "", "south": ""}
    assert (study.minimum_samples, study.minimum_cell, study.method) == (10, 3, "fedgram")
    assert study.sent == ("age", "age missing", "sex=M", "sex missing", "smoker")


def test_comments_and_blanks_do_not_change_the_agreement_and_anything_else_does():
    study = Study.parse(STROKE)
    assert Study.parse("# agreed on Monday\n" + STROKE.replace("kind =", "kind  =")) == study
    for old, new in {
        '"stroke"': '"stroke-2026"',
        "[0, 120]": "[0, 110]",
        '"years"': '"months"',
        '["F", "M"]': '["M", "F"]',
        '["ill", "well"]': '["well", "ill"]',
        'missing = "mean"': 'missing = "flag"',
        '["north", "south"]': '["north"]',
    }.items():
        other = Study.parse(STROKE.replace(old, new))
        assert other.agreement != study.agreement
        assert (other.fingerprint != study.fingerprint) == ("north" not in old), "parties are not what is added up"
        assert other != study


def test_a_study_crosses_the_wire_as_it_is():
    study = Study.parse(STROKE)
    assert wire.decode(wire.encode(study)) == study


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "number"', 'kind = "nummer"', r"\[columns\.age\]: unknown kind 'nummer': did you mean 'number'"),
        ('kind = "number"\n', "", r"\[columns\.age\] lacks 'kind': add one of number"),
        (
            "range = [0, 120]",
            "range = [120, 0]",
            r"range: expected the lower end first, .*got \[120, 0\]",
        ),
        ("range = [0, 120]", "range = [0, 1e-320]", "too narrow to divide by: widen it"),
        ("range = [0, 120]", "range = [0, nan]", r"range\[1\]: expected a number, got nan"),
        ("range = [0, 120]", "rang = [0, 120]", "unknown key of a number 'rang': did you mean 'range'"),
        ("range = [0, 120]", 'outside = "clip"', "outside = 'clip' and no range"),
        (
            "range = [0, 120]",
            'range = [0, 9]\noutside = "drop"',
            "outside: expected 'refuse' or .*, got 'drop'",
        ),
        (
            'missing = "mean"',
            'missing = "median"',
            "missing: expected 'mean' or 'flag' or 'drop' or 'refuse', got 'median'",
        ),
        ('missing = "mean"', 'outside = "missing"', "missing values are refused: set missing = 'mean'"),
        ('values = ["F", "M"]\n', "", r"\[columns\.sex\] lacks 'values'"),
        ('values = ["F", "M"]', 'values = ["F", "F"]', "values: expected at least two values, all different"),
        ('values = ["F", "M"]', "values = [1, 2]", r"values\[0\]: expected text, got 1"),
        ('classes = ["ill", "well"]', 'classes = ["ill"]', "at least two classes"),
        ('classes = ["ill", "well"]', "", "outcome 'diagnosis' has no classes, so it must be a number"),
        ('classes = ["ill", "well"]', 'classes = ["a", "b"]\nunit = "kg"', "an outcome with classes has no unit"),
        ('outcome = "diagnosis"', 'outcome = "age"', r"remove \[columns\.age\]"),
        ('outcome = "diagnosis"\n', "", "lacks 'outcome': add it"),
        ('parties = ["north", "south"]', 'parties = ["north", "north"]', "expected each party once, got a name twice"),
        ('parties = ["north", "south"]', "parties = 3", "parties: expected a list or a table, got 3"),
        (
            'parties = ["north", "south"]',
            "minimum_samples = -1",
            "minimum_samples: expected a whole number ≥ 0",
        ),
        ('parties = ["north", "south"]', "minimum_sample = 5", "did you mean 'minimum_samples'"),
        ("[columns.patient_id]", "[column.patient_id]", "unknown table 'column': did you mean 'columns'"),
        ("[study]", "[study", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_key_value_and_remedy(old, new, words):
    assert old in STROKE
    with pytest.raises(InvalidData, match=words) as refused:
        Study.parse(STROKE.replace(old, new, 1), where="study.toml")
    assert str(refused.value).startswith("study.toml")


def test_a_file_nested_too_deep_is_refused():
    with pytest.raises(InvalidData):
        Study.parse("a = " + "[" * 5000 + "]" * 5000)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(InvalidData, match=r"cannot read .*study\.toml"):
        Study.read(tmp_path / "study.toml")
    (tmp_path / "study.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidData, match="cannot read"):
        Study.read(tmp_path / "study.toml")


def test_a_study_without_any_column_to_use_is_refused():
    with pytest.raises(InvalidData, match="all are ignored"):
        Study("empty", "y", {"id": Ignore()}, ("a", "b"))


def test_numeric_outcomes_are_columns_that_are_sent_last():
    study = Study("charges", ("cost", "days"), {"cost": Number(), "age": Number(), "days": Number()})
    assert study.sent == ("age", "cost", "days")
    text = '[study]\nname = "c"\noutcome = "cost"\nunit = "EUR"\n[columns.age]\nkind = "number"\n'
    assert Study.parse(text).columns["cost"] == Number("EUR")


def test_a_drafted_numeric_outcome_must_be_there_even_if_it_looks_like_an_identifier(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("age,cost\n" + "".join(f"{20 + k % 9},{1000 + k}\n" for k in range(40)))
    study = Study.parse(draft(path, "cost").text)
    assert study.outcomes == ("cost",)
    assert study.columns["cost"].missing == "refuse"


def test_a_typo_among_classes_does_not_make_a_number_of_them_without_a_word(tmp_path):
    def study(*outcomes):
        lines = (f"{20 + k % 9},{outcome}\n" for k, outcome in enumerate(outcomes))
        (tmp_path / "a.csv").write_text("age,label\n" + "".join(lines))
        return Study.parse(draft(tmp_path / "a.csv").text)

    with pytest.warns(Doubtful, match=r"because of 1 of 61 values, such as 1\.5: the others are 3 whole numbers"):
        assert not study(*[0, 1, 2] * 20, 1.5).classes
    # Halves are not typos, nor is a number that most rows have, and many whole numbers are measured.
    assert not study(*[0, 0.5, 1, 1.5] * 10).classes
    assert not study(*[0] * 60, 1.5).classes
    assert not study(*range(60), 1.5).classes


def test_a_text_that_is_the_same_everywhere_is_ignored(tmp_path):
    path = tmp_path / "same.csv"
    path.write_text("age,country,label\n" + "".join(f"{20 + k % 9},FR,{k % 2}\n" for k in range(40)))
    assert Study.parse(draft(path).text).sent == ("age",)


def test_a_text_among_numbers_that_all_differ_does_not_make_identifiers_of_them(tmp_path):
    path = tmp_path / "pressures.csv"
    path.write_text("pressure,label\nhigh,0\n" + "".join(f"{80 + k / 7:.3f},{k % 2}\n" for k in range(60)))
    text = draft(path).text
    assert isinstance(Study.parse(text).columns["pressure"], Number)
    assert "1 cells here are not numbers: mend them" in text


def test_a_draft_says_how_image_files_and_texts_could_be_used(tmp_path):
    rows = [f"scans/{k}.{'png' if k % 2 else 'JPG'},seen {k} times by us,{k % 2}" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["scan,note,label", *rows, ",,1"]) + "\n")
    text = draft(tmp_path / "a.csv").text
    assert 'kind = "ignore"  # image files; kind = "image" with backbone = "lite0:96" uses them' in text
    assert 'kind = "ignore"  # texts; kind = "text" with backbone = "minilm" uses them' in text
    for kind, backbone in (("image", "lite0:96"), ("text", "minilm")):
        hint = f'kind = "{kind}" with backbone = "{backbone}"'
        line = next(line for line in text.splitlines() if hint in line)
        text = text.replace(line, f'kind = "{kind}"\nbackbone = "{backbone}"\ndigest = "{64 * "a"}"\nfeatures = 2')
    assert Study.parse(text).sent == ("scan.0", "scan.1", "note.0", "note.1")


@pytest.mark.parametrize("other", ["age missing", "sex=M"])
def test_two_columns_are_not_sent_by_one_name(other):
    with pytest.raises(InvalidData, match=rf"'(age|sex)' and '{other}' are both sent as '{other}'"):
        Study.parse(f'{STROKE}[columns."{other}"]\nkind = "number"\n')


def test_a_draft_takes_neither_dates_nor_one_class_for_an_outcome(tmp_path):
    rows = [f"{k % 7},2026-01-{k + 1:02},well" for k in range(25)]
    path = write(tmp_path / "a.csv", "\n".join(["age,visit,diagnosis", *rows]))
    with pytest.raises(InvalidData, match="outcome 'visit' holds dates"):
        draft(path, "visit")
    with pytest.raises(InvalidData, match="'diagnosis' has only 'well' in it here"):
        draft(path, "diagnosis")


def test_a_draft_writes_classes_as_whole_numbers_and_takes_a_lone_letter_for_no_flag(tmp_path):
    path = write(tmp_path / "a.csv", "age,sex,ill\n" + "".join(f"{k % 7},F,{k % 2}.0\n" for k in range(25)))
    study = Study.parse(draft(path, "ill").text)
    assert study.classes == ("0", "1")
    assert study.columns["sex"].kind == "ignore"
    assert set(read_client(study, "a", path).y.tolist()) == {"0", "1"}


def test_a_draft_ignores_lists_in_cells(tmp_path):
    table = pa.table(
        {"scores": [[1, 2], [3]] * 5, "parts": [{"a": 1}, None] * 5, "age": range(10), "ill": ["y", "n"] * 5}
    )
    study = Study.parse(draft(table, "ill").text)
    assert [study.columns[name].kind for name in ("scores", "parts", "age")] == ["ignore", "ignore", "number"]


@pytest.mark.parametrize("other", ["scan.0", "scan missing"])
def test_no_column_is_sent_by_the_name_of_a_backbones_feature(other):
    scan = f'[columns.scan]\nkind = "image"\nbackbone = "lite0:96"\nmissing = "mean"\ndigest = "{64 * "a"}"\n'
    number = f'[columns."{other}"]\nkind = "number"\n'
    for columns in (f"{scan}features = 3\n{number}", f"{number}{scan}features = 3\n"):
        with pytest.raises(InvalidData, match=f"are both sent as '{other}'"):
            Study.parse(f"{STROKE}{columns}")


@pytest.mark.parametrize("twins", [("1", "1.0"), ("Z\u00fcrich", "Zu\u0308rich")])
def test_values_and_classes_that_cells_cannot_tell_apart_are_refused(tmp_path, twins):
    one, other = twins
    for old in ('values = ["F", "M"]', 'classes = ["ill", "well"]'):
        assert old in STROKE
        with pytest.raises(InvalidData, match="all different"):
            Study.parse(STROKE.replace(old, f'{old.partition(" ")[0]} = ["{one}", "{other}"]'))
    rows = [f"{k % 5}.5,{(one, other, 'x')[k % 3]},{'ny'[k % 2]}" for k in range(30)]
    found = Study.parse(draft(write(tmp_path / "a.csv", "\n".join(["age,code,ill", *rows])), "ill").text)
    assert found.columns["code"].values == tuple(sorted((one, "x")))
