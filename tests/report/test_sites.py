"""Tables of parties that were left out in turn: parties that do not fit the others are named."""

import pytest

from fedgram.experiments.results import Validation, load_results
from fedgram.report.result_tables import STRANGE, site_tables, tables_by_column
from support.made_up import write
from support.numeric import NUMERIC, validation
from support.report import report


def test_a_party_that_does_not_fit_the_others_is_seen():
    [table] = site_tables(Validation.of(validation()), {"cost": "EUR"})
    assert table.caption.startswith("RMSE of cost in EUR at each party")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["north", "40", "1", "1.732", "2", "0.9", ""],
        ["south", "1,200", "2", "2.449", "3", "0.8", ""],
        ["west", "30", "1.5", "10", "20", "-2", STRANGE],
    ]


def test_of_classes_it_is_the_brier_score():
    told = validation(target="")
    for models in told["errors"][""].values():
        models |= {"brier": [0.2, 0.3, 1.2], "r2": [None, 0.5, 0.4]}
    [table] = site_tables(Validation.of(told), {})
    assert table.caption.startswith("Brier score at each party")
    assert [row[2].text for row in table.rows] == ["0.2", "0.3", "1.2"]
    assert [row[5].text for row in table.rows] == ["–", "0.5", "0.4"]
    assert [row[6].text for row in table.rows] == ["", "", STRANGE], "its error is far from the others'"


def test_nobody_is_left_out_where_nobody_could_be():
    assert site_tables(None, {}) == []
    assert site_tables(Validation.of({"left_out": "there are more than 64 parties"}), {}) == []


def test_the_tables_are_in_markdown_and_latex(tmp_path):
    path = write(tmp_path / "results.jsonl", NUMERIC)
    assert len(tables_by_column(load_results([path]))) == 1
    assert STRANGE in report(path, "--format", "markdown").output
    assert STRANGE in report(path, "--format", "latex").output


@pytest.mark.parametrize("measure", ["brier", "mse", "r2"])
def test_a_measure_that_is_missing_is_a_wrong_record(measure):
    told = validation(target="")
    for model in told["errors"][""].values():
        model.setdefault("brier", model["mse"])
    assert Validation.of(told)
    del told["errors"][""]["left_out"][measure]
    with pytest.raises(ValueError, match="validation must have brier, mse, r2"):
        Validation.of(told)
