"""The example of the data protection page: three patients, their totals, and the refusal."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import InvalidData
from fedgram.exchange.rounds.party_side import Party, summarize
from fedgram.protocol.disclosure import DIGEST_BYTES, RECORD
from fedgram.studies import Study
from fedgram.studies.kinds import Flag, Number

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "data-protection.md"
PATIENTS = np.array([[40, 4, 1], [60, 10, 0], [70, 20, 0]], dtype=float)  # age, CRP, emergency
LABELS = ["well", "ill", "ill"]
ROWS = (
    "sum over the 2 patients who are ill",
    "sum over the 1 patient who is well",
    "sum of products with age",
    "sum of products with CRP",
    "sum of products with emergency",
)


def _printed() -> dict[str, list[float]]:
    """Return the rows of the page's table of totals, without empty cells."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if name in ROWS:
            found[name] = [float(cell.replace(",", "")) for cell in cells if cell]
    return found


def test_the_page_prints_the_totals_of_its_three_patients():
    moments = fg.Moments.of(PATIENTS, LABELS, classes=["ill", "well"])
    sums, gram = moments.cross.T.tolist(), moments.gram
    products = [gram[place, place:].tolist() for place in range(3)]
    printed = _printed()
    assert printed == dict(zip(ROWS, [*sums, *products], strict=True))
    assert re.search("fourteen numbers", PAGE.read_text(encoding="utf-8"))
    assert len(moments.counts) + sum(map(len, printed.values())) == 14


def test_a_file_of_these_patients_is_refused_even_where_samples_and_classes_are_not_limited(tmp_path):
    columns = {"age": Number(range=(0, 120)), "crp": Number(range=(0, 400)), "emergency": Flag()}
    limits = {"minimum_samples": 0, "minimum_cell": 0, "maximum_columns_per_row": 0, "minimum_group": 3}
    study = Study("example", "diagnosis", columns, ("ill", "well"), **limits)
    rows = ["40,4,yes,well", "60,10,no,ill", "70,20,no,ill"]
    (tmp_path / "north.csv").write_text("\n".join(["age,crp,emergency,diagnosis", *rows, ""]))
    with pytest.raises(InvalidData, match="the values of one sample could be read"):
        summarize(study, tmp_path / "north.csv", Party("north"))


def test_the_local_record_is_kept_like_the_table_since_it_holds_its_key_and_the_indicators(tmp_path):
    columns = {"age": Number(range=(0, 120)), "emergency": Flag()}
    study = Study("example", "diagnosis", columns, ("ill", "well"))
    cells = [(40 + k, "yes" if k % 3 else "no", "ill" if k % 2 else "well") for k in range(60)]
    rows = [f"{age},{emergency},{label}" for age, emergency, label in cells]
    (tmp_path / "north.csv").write_text("\n".join(["age,emergency,diagnosis", *rows, ""]))
    summarize(study, tmp_path / "north.csv", Party("north"), records=tmp_path, told=str)
    (path,) = tmp_path.glob(f"*{RECORD}")
    record = wire.decode(path.read_bytes(), sender="the record")
    assert len(record["secret"]) == 32
    indicators = {bytes(row[DIGEST_BYTES:]) for row in record["summaries"][0]}
    assert len(indicators) == len({cell[1:] for cell in cells}) == 4
    assert "**Keep it like the table.**" in PAGE.read_text(encoding="utf-8")
