"""Three hospitals with one study: makes their tables, with flaws that real tables have, and fits one model.

    python examples/hospitals.py hospitals

The patients are real: 442 people with diabetes, from a table that scikit-learn ships (Efron et al., 2004). Their
hospitals, identifiers, dates and missing values are made up. North has most patients. South writes its columns in
another order, with units in the header, and lacks some values. East has twelve patients for training; all of them are
men, and none gets worse fast.

Each hospital has a table to train on and one to test on: `north.csv`, `north-test.csv`, and so on. `all.csv` and
`all-test.csv` hold the same rows with a column `hospital`. `study.toml` is the hospitals' study.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

import fedgram as fg
from fedgram.experiments import Scenario

HOSPITALS = {"north": (150, 60), "south": (110, 60), "east": (12, 24)}  # patients to train on, and to test on
TURNING_POINT = 140.5  # progression within a year: half of the patients are above
STUDY = """\
[study]
name = "diabetes-progression"
outcome = "progression"
classes = ["fast", "slow"]
parties = ["north", "south", "east"]
method = "fedgram"
minimum_samples = 10
minimum_cell = 3
maximum_columns_per_row = 1  # the usual 0.33 would keep east's twelve patients out; its passport says what that means

[columns.patient_id]
kind = "ignore"
[columns.admitted]
kind = "ignore"
[columns.sex]
kind = "category"
values = ["F", "M"]
[columns.age]
kind = "number"
unit = "years"
range = [0, 120]
[columns.bmi]
kind = "number"
unit = "kg/m2"
range = [10, 60]
missing = "mean"
[columns.bp]
kind = "number"
unit = "mmHg"
range = [40, 200]
missing = "mean"
"""
SERUM = {"s1": (50, 400), "s2": (20, 300), "s3": (10, 120), "s4": (1, 12), "s5": (2, 8), "s6": (40, 200)}
Row = dict[str, str]


def patients() -> list[Row]:
    """Return all patients, in a made-up order, as cells of a table."""
    x, target = load_diabetes(return_X_y=True, scaled=False)
    names = ["age", "sex", "bmi", "bp", *SERUM]
    rng = np.random.default_rng(0)
    rows = []
    for number, place in enumerate(rng.permutation(len(x))):
        cells = {name: f"{value:g}" for name, value in zip(names, x[place], strict=True)}
        day = np.datetime64("2026-01-01") + rng.integers(300)
        cells |= {"patient_id": f"P{1000 + number}", "admitted": str(day), "sex": "FM"[int(x[place, 1]) - 1]}
        rows.append(cells | {"progression": "fast" if target[place] > TURNING_POINT else "slow"})
    return rows


def hospitals() -> dict[str, tuple[list[Row], list[Row]]]:
    """Return each hospital's patients, to train on and to test on."""
    left = patients()
    slow_men = [row for row in left if row["sex"] == "M" and row["progression"] == "slow"][: sum(HOSPITALS["east"])]
    left = [row for row in left if row not in slow_men]
    made = {}
    for name, (trained, tested) in HOSPITALS.items():
        own = slow_men if name == "east" else left
        made[name] = own[:trained], own[trained : trained + tested]
        left = left if name == "east" else left[trained + tested :]
    rng = np.random.default_rng(1)
    for row in [*made["south"][0], *made["south"][1]]:
        for column in ("bmi", "bp"):
            if rng.random() < 0.15:
                row[column] = "NA"
    return made


def write(path: Path, rows: list[Row], columns: list[str], units: dict[str, str] | None = None) -> None:
    """Write a table; the header has units behind the names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([f"{name} [{units[name]}]" if units and name in units else name for name in columns])
        writer.writerows([row[name] for name in columns] for row in rows)


def make(folder: Path) -> None:
    """Write the tables and the study."""
    folder.mkdir(parents=True, exist_ok=True)
    serum = (f'[columns.{name}]\nkind = "number"\nrange = [{low}, {high}]\n' for name, (low, high) in SERUM.items())
    (folder / "study.toml").write_text(STUDY + "".join(serum), encoding="utf-8")
    made = hospitals()
    columns = list(made["north"][0][0])
    for name, parts in made.items():
        order, units = (columns[::-1], {"age": "years", "bp": "mmHg"}) if name == "south" else (columns, None)
        for part, rows in zip(("", "-test"), parts, strict=True):
            write(folder / f"{name}{part}.csv", rows, order, units)
    for k, part in enumerate(("", "-test")):
        rows = [row | {"hospital": name} for name, parts in made.items() for row in parts[k]]
        write(folder / f"all{part}.csv", rows, [*columns, "hospital"])


def scenario(folder: Path) -> Scenario:
    """Return the study with a table for each hospital."""
    train, test = (",".join(str(folder / f"{name}{part}.csv") for name in HOSPITALS) for part in ("", "-test"))
    return Scenario(data=train, test_data=test, study=str(folder / "study.toml"))


def main() -> None:
    """Make the tables, and fit some methods."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals")
    make(folder)
    prepared = scenario(folder).prepare()
    for method in (fg.AFL(), fg.FedGram(), fg.FedLogit(), fg.Local()):
        found = prepared.score(prepared.fit(method))
        shares = ", ".join(f"{name} {found.correct[name] / found.tested[name]:.1%}" for name in HOSPITALS)
        print(f"{method.name:9} {found.summary()['pooled']:.1%} of all test patients; {shares}")


if __name__ == "__main__":
    main()
