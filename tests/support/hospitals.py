"""The example of three hospitals, and scikit-learn's results on the pooled table."""

import csv
import importlib.util
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).parents[2] / "examples" / "hospitals.py"
CLASSES = ("fast", "slow")


def program():
    """Return the example as a module."""
    spec = importlib.util.spec_from_file_location("hospitals", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pooled(example, folder):
    """Return pooled rows to train on and to test on, preprocessed by scikit-learn, and their outcomes."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = ["age", "bmi", "bp", *example.SERUM]
    tables = [read(folder / f"all{part}.csv") for part in ("", "-test")]
    as_cells = [
        np.array([[np.nan if row[name] == "NA" else float(row[name]) for name in numbers] for row in rows])
        for rows in tables
    ]
    sexes = [np.array([[row["sex"]] for row in rows]) for rows in tables]
    cells = [np.column_stack([values, sex.astype(object)]) for values, sex in zip(as_cells, sexes, strict=True)]
    made = make_pipeline(
        make_column_transformer(
            (SimpleImputer(), list(range(len(numbers)))), (OneHotEncoder(drop="first"), [len(numbers)])
        ),
        StandardScaler(),
    )
    x = [made.fit_transform(cells[0]), made.transform(cells[1])]
    y = [np.array([row["progression"] for row in rows]) for rows in tables]
    return x, y


def pooled_model(x, y):
    """Return scikit-learn's least squares on the pooled rows."""
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(x, np.column_stack([y == label for label in CLASSES]).astype(float))


def pooled_correct(example, folder):
    """Return the number of each hospital's test patients that the model gets right."""
    (x, x_test), (y, y_test) = pooled(example, folder)
    said = np.array(CLASSES)[pooled_model(x, y).predict(x_test).argmax(axis=1)]
    owners = np.array([row["hospital"] for row in read(folder / "all-test.csv")])
    return {name: int((said == y_test)[owners == name].sum()) for name in example.HOSPITALS}
