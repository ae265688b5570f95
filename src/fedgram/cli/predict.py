"""`fedgram predict`: labels of new samples by a saved model."""

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedgram.cache import replace_file
from fedgram.data import Dataset, load_dataset
from fedgram.data.bad import OnBad
from fedgram.data.tables import LABEL_NAMES
from fedgram.errors import InvalidData, Mismatch
from fedgram.features import featurize
from fedgram.methods.fit import load_model
from fedgram.models import Model
from fedgram.terminal import echo


def predict(
    model: Annotated[Path, typer.Argument(help="A model that a node kept, or a fit (its global model).")],
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of images per class, an .npz, CSV or Parquet file; .npz and CSV without labels too."
        ),
    ],
    label: Annotated[str | None, typer.Option(help="The label column of your table.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="What turns samples into features. Default: what the model was made with.")
    ] = None,
    on_bad: Annotated[OnBad, typer.Option(help="What to do with bad images or rows.")] = "refuse",
    out: Annotated[Path | None, typer.Option(help="Write the labels to this file instead of printing them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Predict the labels of samples, one per line; where the data have labels, also say how many are right.

    Examples:
      fedgram predict nodes/hospital-a/model.safetensors new-patients.csv

      fedgram predict fit.safetensors photographs/ --json

    """
    scorer = load_model(model)
    samples, truth = _samples(data, label, backbone or _backbone_of(scorer), on_bad)
    if samples.features != getattr(scorer, "features", ""):
        raise Mismatch(f"{model} was made from features {scorer.features!r}, {data} has {samples.features!r}")  # type: ignore[attr-defined]
    labels = scorer.predict(samples.x).tolist()
    accuracy = None if truth is None else float(np.mean([a == b for a, b in zip(labels, truth, strict=True)]))
    if out is not None:
        try:
            replace_file(out, "".join(f"{label}\n" for label in labels).encode())
        except OSError as error:
            raise InvalidData(f"cannot write {out}: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps({"samples": len(labels), "accuracy": accuracy} | ({} if out else {"labels": labels})))
        return
    for predicted in labels if out is None else ():
        echo(predicted)
    if accuracy is not None:
        typer.echo(f"{accuracy:.2%} of {len(labels):,} samples are right", err=True)


def _backbone_of(model: Model) -> str | None:
    """Return the backbone's name in front of its fingerprint."""
    return str(getattr(model, "features", "")).partition("@")[0] or None


def _samples(path: str, label: str | None, backbone: str | None, on_bad: OnBad) -> tuple[Dataset, list[Any] | None]:
    """Return the samples as features, and their labels if they have any."""
    bare = _without_labels(Path(path).expanduser(), label)
    if bare is not None:
        data = Dataset(Path(path).stem, bare, np.zeros(len(bare), dtype=np.int64), (), "")
        return featurize(data, backbone), None
    data = featurize(load_dataset(path, label=label, on_bad=on_bad), backbone).pooled()
    return data, [data.classes[i] for i in data.y.tolist()]


def _without_labels(path: Path, label: str | None) -> np.ndarray[Any, Any] | None:
    """Return the samples of a file that has no labels, None if it may have some."""
    if label is not None or not path.is_file():
        return None
    try:
        if path.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return arrays["x"] if "x" in arrays and "y" not in arrays else None
        if path.suffix.lower() in (".csv", ".tsv"):
            with path.open(newline="", encoding="utf-8-sig") as file:
                first = file.readline()
                delimiter = max(",;\t", key=first.count)
                names = {name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])}
                return None if names & set(LABEL_NAMES) else np.loadtxt(file, delimiter=delimiter, ndmin=2)
    except (ValueError, OSError) as error:
        raise InvalidData(f"cannot read {path}: {error}") from error
    return None
