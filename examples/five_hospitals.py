"""Five hospitals with a numeric outcome: makes their tables and their study, for a regression table of all patients.

    python examples/five_hospitals.py hospitals

The patients are real: 442 people with diabetes, from a table that scikit-learn ships (Efron et al., 2004). The outcome
is the progression of the disease within a year. Their hospitals are made up: patients of about one age go to the same
one, as to a clinic for the young or the old. South writes its columns in another order, with units in the header, and
east lacks some blood pressures.

Each hospital has a table, `north.csv` and so on; `all.csv` holds the same rows, with missing cells. `study.toml` is the
hospitals' study.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

HOSPITALS = {"north": 120, "south": 100, "east": 90, "west": 80, "centre": 52}  # patients
COLUMNS = ("age", "sex", "bmi", "bp", "s5", "progression")
STUDY = """\
[study]
name = "diabetes-2026"
outcome = "progression"
parties = ["north", "south", "east", "west", "centre"]

[columns.progression]
kind = "number"
range = [0, 400]
[columns.age]
kind = "number"
unit = "years"
range = [0, 120]
[columns.sex]
kind = "category"
values = ["F", "M"]
[columns.bmi]
kind = "number"
unit = "kg/m2"
range = [10, 60]
[columns.bp]
kind = "number"
unit = "mmHg"
range = [40, 200]
missing = "mean"
[columns.s5]
kind = "number"
range = [2, 8]
"""
Row = dict[str, str]


def hospitals() -> dict[str, list[Row]]:
    """Return each hospital's patients as cells of a table."""
    x, target = load_diabetes(return_X_y=True, scaled=False)
    names = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]
    rng = np.random.default_rng(0)
    left = np.argsort(x[:, 0] + rng.normal(0, 10, len(x))).tolist()
    made: dict[str, list[Row]] = {}
    for name, count in HOSPITALS.items():
        own, left = left[:count], left[count:]
        made[name] = [
            {column: f"{value:g}" for column, value in zip(names, x[place], strict=True)}
            | {"sex": "FM"[int(x[place, 1]) - 1], "progression": f"{target[place]:g}"}
            for place in own
        ]
    for row in made["east"][::8]:
        row["bp"] = ""
    return made


def make(folder: Path) -> None:
    """Write the tables and the study."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    made = hospitals()
    for name, rows in made.items():
        _write(folder / f"{name}.csv", rows, COLUMNS[::-1] if name == "south" else COLUMNS, units=name == "south")
    everyone = [row | {"hospital": name} for name, rows in made.items() for row in rows]
    _write(folder / "all.csv", everyone, (*COLUMNS, "hospital"))


def _write(path: Path, rows: list[Row], columns: tuple[str, ...], *, units: bool = False) -> None:
    shown = {"age": "age [years]", "bp": "bp [mmHg]"} if units else {}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([shown.get(name, name) for name in columns])
        writer.writerows([row[name] for name in columns] for row in rows)


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals"))
