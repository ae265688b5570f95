"""Two studies are compared setting by setting, and errors that refuse one name the first few differences."""

import json

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import Mismatch
from fedgram.studies import Study
from fedgram.studies.study import check_same, differences

STUDY = """
[study]
name = "stroke"
outcome = "ill"
classes = ["no", "yes"]
minimum_samples = 10
[parties]
north = ""
[columns.crp]
kind = "number"
range = [0, 400]
[columns.sex]
kind = "category"
values = ["F", "M"]
[columns.age]
kind = "number"
[derived]
log_crp = "log(crp)"
"""


def changed(*pairs):
    text = STUDY
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return Study.parse(text)


@pytest.mark.parametrize(
    ("pair", "line"),
    [
        (("400", "300"), "crp: range [0.0, 400.0] there, [0.0, 300.0] here"),
        (("range = [0, 400]\n", ""), "crp: range [0.0, 400.0] there, none here"),
        (('name = "stroke"', 'name = "heart"'), 'name "stroke" there, "heart" here'),
        (('["no", "yes"]', '["yes", "no"]'), 'classes ["no", "yes"] there, ["yes", "no"] here'),
        (("minimum_samples = 10", "minimum_samples = 5"), "minimum_samples 10 there, 5 here"),
        (("= 10\n", "= 10\nminimum_group = 5\n"), "minimum_group as minimum_cell there, 5 here"),
        (
            ("= 10\n", "= 10\nmaximum_columns_per_row = 0.5\n"),
            "maximum_columns_per_row 0.33 (the default) there, 0.5 here",
        ),
        (('[columns.age]\nkind = "number"\n', ""), "age: only there"),
        (("[columns.age]", "[columns.old]"), "age: only there"),
        (('north = ""', 'north = "abc"'), 'party north none there, "abc" here'),
        (('north = ""', 'north = ""\nsouth = ""'), "party south none there, none here"),
        (("log(crp)", "sqrt(crp)"), 'derived log_crp "log(crp)" there, "sqrt(crp)" here'),
        (('kind = "category"\nvalues = ["F", "M"]', 'kind = "flag"'), 'sex: kind "category" there, "flag" here'),
    ],
)
def test_each_difference_has_a_line(pair, line):
    found = differences(Study.parse(STUDY), changed(pair))
    assert line in found
    assert differences(Study.parse(STUDY), Study.parse(STUDY + "# a comment\n")) == []


def test_two_orders_of_columns_differ():
    age = '[columns.age]\nkind = "number"\n'
    other = changed((age, ""), ("[columns.crp]", f"{age}[columns.crp]"))
    order = '["crp", "sex", "age", "log_crp"] there, ["age", "crp", "sex", "log_crp"] here'
    assert differences(Study.parse(STUDY), other) == [f"columns: in the order {order}"]


def test_there_is_a_difference_if_and_only_if_the_studies_differ():
    studies = [
        Study.parse(STUDY),
        changed(("400", "300")),
        changed(('north = ""', 'a = ""\nb = ""')),
        changed(('north = ""', 'b = ""\na = ""')),
    ]
    for one in studies:
        for other in studies:
            assert bool(differences(one, other)) == (one != other)


def test_an_error_names_the_first_few_differences():
    whole = changed(
        ('north = ""', 'west = ""'), ("400", "300"), ("stroke", "heart"), ("= 10", "= 5"), ("log(crp)", "abs(crp)")
    )
    with pytest.raises(Mismatch) as caught:
        check_same("north.fgm", Study.parse(STUDY), whole.fingerprint, whole, remedy="summarize anew")
    assert '(name "heart" there, "stroke" here; minimum_samples 5 there, 10 here; crp: range [0.0, 300.0]' in str(
        caught.value
    )
    assert "; and 1 more) is expected" not in str(caught.value)
    assert "; and 1 more)" in str(caught.value)


def test_a_long_setting_is_shortened():
    values = json.dumps([f"v{k}" for k in range(1000)])
    [line] = differences(Study.parse(STUDY), changed(('["F", "M"]', values)))
    assert len(line) < 250


def fedgram(*options):
    return CliRunner().invoke(app, ["study", "diff", *map(str, options)])


def test_the_command_says_what_differs_and_in_which_file(tmp_path):
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    a.write_text(STUDY)
    b.write_text("# by north\n" + STUDY)
    same = fedgram(a, b)
    assert (same.exit_code, "both say the same" in same.stdout) == (0, True)
    b.write_text(STUDY.replace("400", "300"))
    done = fedgram(a, b)
    assert done.exit_code == 1
    assert f"crp: range [0.0, 400.0] in {a}, [0.0, 300.0] in {b}" in done.stdout
    told = json.loads(fedgram(a, b, "--json").stdout)
    assert (told["same"], len(told["differences"])) == (False, 1)


def test_a_byte_order_mark_is_not_part_of_a_study(tmp_path):
    """Editors of Windows begin a file with one."""
    (tmp_path / "study.toml").write_bytes(b"\xef\xbb\xbf" + STUDY.encode())
    assert Study.read(tmp_path / "study.toml") == Study.parse(STUDY)
