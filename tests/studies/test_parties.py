"""Public keys in a study file: names are bound to them, and entering them leaves the rest of the file alone."""

from dataclasses import replace

import pytest

from fedgram.core.errors import InvalidData
from fedgram.studies import Study
from fedgram.studies.drafting import with_keys

REST = """minimum_samples = 10  # agreed in May

# what follows was discussed at length
[columns.age]
kind = "number"  # years
"""
HEAD = '[study]\nname = "s"\noutcome = "ill"\nclasses = ["no", "yes"]\n'
KEYS = {"north": "key-n", "south": "key-s"}
FORMS = {
    "list": HEAD + 'parties = ["north", "south"]\n' + REST,
    "long list": HEAD + 'parties = [\n  "north",  # first\n  "south",\n]\n' + REST,
    "inline table": HEAD + 'parties = { north = "", south = "" }\n' + REST,
    "table": HEAD + REST + '[parties]\nnorth = ""\nsouth = ""\n',
    "table before columns": HEAD + '[study.parties]\nnorth = ""\nsouth = ""\n' + REST.partition("\n")[2],
    "none": HEAD + REST,
}


@pytest.mark.parametrize("form", FORMS)
def test_keys_are_entered_and_nothing_else_changes(form):
    text = FORMS[form]
    before, made = Study.parse(text), with_keys(text, KEYS)
    after = Study.parse(made)
    assert after == replace(before, parties=KEYS)
    assert after.agreement != before.agreement
    assert after.fingerprint == before.fingerprint, "who takes part is not what is added up"
    for comment in ("# what follows was discussed at length", "# years"):
        assert comment in made
    assert made.count("parties") == 1


def test_keys_can_come_one_by_one_and_twice():
    one = with_keys(FORMS["list"], {"north": "key-n"})
    assert dict(Study.parse(one).parties) == {"north": "key-n", "south": ""}
    both = with_keys(one, KEYS)
    assert both == with_keys(both, KEYS)
    assert Study.parse(both) == Study.parse(with_keys(FORMS["list"], KEYS))


def test_a_name_is_not_bound_to_another_key_in_silence():
    made = with_keys(FORMS["list"], KEYS)
    with pytest.raises(InvalidData, match="another key of 'north' already"):
        with_keys(made, {"north": "key-m"})
    with pytest.raises(InvalidData, match="'nort' is not listed in study .*did you mean 'north'.* amend STORE --add"):
        with_keys(made, {"nort": "key-n"})


def test_names_of_all_kinds():
    odd = {'O"Neil = \\ [x]': "k", "北": "k", "a.b": "k"}
    assert dict(Study.parse(with_keys(FORMS["none"], odd)).parties) == odd


def test_who_takes_part_is_said_once():
    with pytest.raises(InvalidData, match=r"\[parties\] both say who takes part"):
        Study.parse(FORMS["list"] + '[parties]\nnorth = ""\n')
    with pytest.raises(InvalidData, match=r"\[parties\]\.north: expected text, got 3"):
        Study.parse(FORMS["none"] + "[parties]\nnorth = 3\n")
