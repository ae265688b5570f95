"""Numbers as a party's file writes them: with a decimal comma, and with marks between thousands."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import BadSamples, InvalidData, InvalidParameter, tell
from fedgram.data.own import csvfiles
from fedgram.data.own.cells import POINT, Notation, number_of
from fedgram.experiments import Scenario
from fedgram.studies import Study, open_table, read_client
from fedgram.studies.drafting import draft
from fedgram.studies.party_tables import check_table

COMMA, GERMAN = Notation(","), Notation(",", ".")
STUDY = """
[study]
name = "marks"
outcome = "ill"
classes = ["0", "1"]
minimum_samples = 3
minimum_cell = 1
[columns.crp]
kind = "number"
[columns.stage]
kind = "category"
values = ["1", "2"]
[columns.smoker]
kind = "flag"
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    return Study.parse(STUDY)


@pytest.fixture(params=[True, False], ids=["arrow", "plain"])
def reader(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(csvfiles, "_arrow", lambda: None)


def write(path, text):
    path.write_text(text)
    return path


POINTS = "crp;stage;smoker;ill\n1003.5;1.0;0.0;1.0\n-4.25;2;1;0\n70;2;1.00;0\n1e3;1;0;1\n"
COMMAS = "crp;stage;smoker;ill\n1003,5;1,0;0,0;1,0\n-4,25;2;1;0\n70;2;1,00;0\n1e3;1;0;1\n"
GROUPED = COMMAS.replace("1003,5", "1.003,5")


@pytest.mark.parametrize(("text", "notation"), [(POINTS, POINT), (COMMAS, COMMA), (COMMAS, GERMAN), (GROUPED, GERMAN)])
@pytest.mark.usefixtures("reader")
def test_a_table_is_the_same_in_any_notation(study, tmp_path, text, notation):
    client = read_client(study, "nord", open_table(write(tmp_path / "nord.csv", text), notation))
    np.testing.assert_array_equal(client.x, [[1003.5, 0, 0], [-4.25, 1, 1], [70, 1, 1], [1000, 0, 0]])
    assert client.y.tolist() == ["1", "0", "0", "1"]


@given(
    st.floats(-1e9, 1e9).map(lambda value: round(value, 4)),
    st.sampled_from([(",", "."), (",", " "), (".", ","), (".", "'"), (",", ""), (".", "")]),
)
def test_every_number_is_read_as_it_was_written(number, marks):
    decimal, thousands = marks
    text = f"{number:,.4f}".translate({ord(","): thousands, ord("."): decimal})
    assert number_of(text, Notation(*marks)) == number


@pytest.mark.parametrize(
    ("cell", "notation"),
    [
        ("1.5", COMMA),
        ("1.5", GERMAN),
        ("1.50", GERMAN),
        ("1.0000", GERMAN),
        ("1.234.56", GERMAN),
        ("12.34,5", GERMAN),
        (".123", GERMAN),
        ("1,5,6", COMMA),
        ("1,234.567", GERMAN),
        ("1 000", GERMAN),
        ("1,5", POINT),
    ],
)
def test_a_number_in_another_notation_is_not_guessed(cell, notation):
    """1.5 in a file with commas may be one and a half, or a typo of 15: either would be silently wrong."""
    assert number_of(cell, notation) is None


def test_blanks_and_apostrophes_of_other_alphabets_separate_thousands():
    for cell in ("1\u202f234,5", "1\u00a0234,5", "1 234,5"):
        assert number_of(cell, Notation(",", " ")) == 1234.5
    assert number_of("1\u2019234.5", Notation(".", "'")) == 1234.5


@pytest.mark.parametrize("marks", [(";", ""), (",", ","), (".", "."), (".", "_"), ("", "")])
def test_marks_that_cannot_be_told_apart_are_refused(marks):
    with pytest.raises(InvalidParameter, match="expected"):
        Notation(*marks)


def test_texts_of_tables_in_memory_and_in_parquet_are_read_alike(study, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = {"crp": ["1.003,5", "4"], "stage": ["1", "2"], "smoker": ["ja", "1"], "ill": ["1", "0"]}
    cells["smoker"] = ["yes", "no"]
    pq.write_table(pa.table(cells), tmp_path / "nord.parquet")
    for source in (pa.table(cells), tmp_path / "nord.parquet"):
        client = read_client(study, "nord", open_table(source, GERMAN))
        np.testing.assert_array_equal(client.x[:, 0], [1003.5, 4])


@pytest.mark.usefixtures("reader")
def test_cells_that_are_not_numbers_are_shown_to_the_party_and_to_no_other(study, tmp_path):
    path = write(
        tmp_path / "nord.csv", "crp;stage;smoker;ill\n3,5;1;0;1\n4;1;0;1\nhigh;1;0;1\n1.234,5;1;0;1\n7,5;1;0;1\n"
    )
    [line] = check_table(study, path).lines()
    assert line.startswith("column 'crp' must hold numbers: line 2 (got 3,5 (a decimal comma? read the table with")
    assert "line 2 (got 3,5 (a decimal comma? read the table with --decimal ,))" in line
    assert "line 4 (got high)" in line
    assert "line 5 (got 1.234,5 (a decimal comma? read the table with --decimal , --thousands .))" in line
    assert line.endswith("line 6 (got 7,5)"), "a hint is given once"
    with pytest.raises(
        BadSamples, match=r"line 2: column 'crp' must hold numbers, got 3,5 \(a decimal comma\?"
    ) as caught:
        read_client(study, "nord", path)
    assert tell(caught.value) == "bad rows: column 'crp' must hold numbers"
    with pytest.raises(BadSamples, match=r"got 1.5 \(a decimal point\? read the table with --decimal .\)"):
        read_client(study, "nord", open_table(write(path, "crp;stage;smoker;ill\n1.5;1;0;1\n3,5;1;0;0\n"), COMMA))


def test_a_draft_reads_numbers_alike_and_names_the_remedy(tmp_path):
    rows = [f"{k}{{}}5;{'ab'[k % 2]}" for k in range(40)]
    texts = {mark: "a;label\n" + "\n".join(row.format(mark) for row in rows) for mark in ",."}
    point, comma = (write(tmp_path / f"{name}.csv", texts[mark]) for name, mark in (("p", "."), ("c", ",")))
    assert draft(open_table(comma, COMMA)).study == draft(point).study
    with pytest.raises(
        InvalidData, match=r"decimal point, got 0,5 \(a decimal comma\? read the table with --decimal ,\)"
    ):
        draft(comma)
    with pytest.raises(
        InvalidData, match=r"decimal comma, got 0.5 \(a decimal point\? read the table with --decimal .\)"
    ):
        draft(open_table(point, COMMA))


def command(*options):
    done = CliRunner().invoke(app, list(map(str, options)))
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def test_every_command_that_reads_a_table_takes_the_marks(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marks = ["--decimal", ",", "--thousands", "."]
    rng = np.random.default_rng(0)
    rows = [f"{x:,.2f};{1 + k % 2};{k % 2};{int(x > 1000)}" for k, x in enumerate(rng.uniform(0, 2000, 60))]
    (tmp_path / "nord.csv").write_text("crp;stage;smoker;ill\n" + "\n".join(rows).translate({44: 46, 46: 44}))
    (tmp_path / "north.csv").write_text("crp;stage;smoker;ill\n" + "\n".join(rows).replace(",", ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        command("study", "check", "study.toml", "nord.csv", *marks)
        command("study", "new", "nord.csv", "--outcome", "ill", "--out", "new.toml", *marks)
        command("study", "new", "north.csv", "--outcome", "ill", "--out", "other.toml")
        assert (tmp_path / "new.toml").read_text() == (tmp_path / "other.toml").read_text()
        made = {}
        for name, options in (("nord", marks), ("north", [])):
            command("summarize", "study.toml", f"{name}.csv", "--party", "nord", "--out", f"{name}.fgm", *options)
            made[name] = read_client(
                study, "n", open_table(tmp_path / f"{name}.csv", Notation(*marks[1::2]) if options else POINT)
            )
            fit = fg.FedGram().fit([made[name]], study=study, classes=study.classes)
            fit.save(tmp_path / "fit.fedgram")
        np.testing.assert_array_equal(made["nord"].x, made["north"].x)
        predicted = [
            command("predict", "fit.fedgram", f"{n}.csv", *o).stdout for n, o in (("nord", marks), ("north", []))
        ]
        assert predicted[0] == predicted[1]
        told = [
            command("evaluate", "fit.fedgram", f"{n}.csv", "--json", *o).stdout
            for n, o in (("nord", marks), ("north", []))
        ]
        assert told[0] == told[1]
        scenario = {"study": "study.toml", "clients": 2, "partition": "iid"}
        german = Scenario(data="nord.csv", decimal=",", thousands=".", **scenario).prepare()
        np.testing.assert_array_equal(german.data.x, Scenario(data="north.csv", **scenario).prepare().data.x)
        run = command(
            "run", "--data", "nord.csv", "--study", "study.toml", "--clients", 2, "--partition", "iid", "--json", *marks
        )
        assert json.loads(run.stdout)["decimal"] == ","


def test_data_that_are_no_table_take_no_marks():
    with pytest.raises(InvalidParameter, match="expected one table, got none"):
        Scenario(data="digits", decimal=",").prepare()


def test_a_flower_node_reads_its_table_in_its_own_notation(study, tmp_path):
    pytest.importorskip("flwr")
    from fedgram.engines.flower.app import table_client
    from fedgram.engines.flower.config import NodeConfig

    rows = "".join(f"{k},25;{1 + k % 2};{k % 2};{k % 2}\n" for k in range(40))
    write(tmp_path / "nord.csv", f"crp;stage;smoker;ill\n{rows}")
    node = {"name": "nord", "data": str(tmp_path / "nord.csv"), "folder": str(tmp_path), "study": "study.toml"}
    client = table_client(NodeConfig.read({**node, "decimal": ","}), study)
    assert sorted([*client.x[:, 0], *client.x_test[:, 0]]) == [k + 0.25 for k in range(40)]
    with pytest.raises(BadSamples):
        table_client(NodeConfig.read(node), study)
    for wrong in ({"decimal": ";"}, {"study": "", "decimal": ","}):
        with pytest.raises(InvalidParameter, match=r"node-config: .*decimal"):
            NodeConfig.read({**node, **wrong})
