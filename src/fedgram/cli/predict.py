"""`fedgram predict`: labels of new samples by a saved model."""

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgram.core.columns import listed
from fedgram.core.errors import Doubtful, InvalidParameter, Mismatch
from fedgram.core.files import replace_file, writing
from fedgram.core.labels import Label
from fedgram.core.terminal import echo
from fedgram.data import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.own.files import open_samples
from fedgram.features import featurize
from fedgram.features.backbones.specs import in_catalogue
from fedgram.models import Model
from fedgram.nets import admit
from fedgram.protocol.fit import load_model


def predict(
    model: Annotated[Path, typer.Argument(help="A model that a node kept, or a fit (its global model).")],
    data: Annotated[
        str, typer.Argument(help="A folder of images per class, an .npz, CSV or Parquet file; with labels or without.")
    ],
    label: Annotated[str | None, typer.Option(help="The label column of your table.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="What turns samples into features. Default: what the model was made with, if fedgram brings it along."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Trust and import the network that the model names, such as package.module:factory."),
    ] = None,
    on_bad: Annotated[
        OnBad, typer.Option(help="What to do with bad images or rows; a skipped one has an empty line.")
    ] = "refuse",
    out: Annotated[Path | None, typer.Option(help="Write the labels to this file instead of printing them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Predict the labels of samples, one line for each; where the data have labels, also say how many are right.

    Columns of a table are found by name where the model was made from a table, in any order.

    Examples:
      fedgram predict nodes/hospital-a/model.safetensors new-patients.csv

      fedgram predict fit.safetensors photographs/ --json

    """
    if network is not None:
        admit(network)
    scorer = load_model(model)
    samples = _samples(data, label, on_bad, scorer)
    samples = featurize(samples, backbone or _backbone_of(scorer, model)).pooled()
    _check_features(scorer, model, samples, data, given=backbone is not None)
    predicted: list[Label] = scorer.predict(samples.x).tolist()
    _warn_of_unknown(samples, scorer, data)
    known = [(a, samples.classes[i]) for a, i in zip(predicted, samples.y.tolist(), strict=True) if i >= 0]
    accuracy = sum(a == b for a, b in known) / len(known) if known else None
    labels = _one_for_each(predicted, samples.left_out)
    if out is not None:
        with writing(out):
            replace_file(out, "".join(f"{'' if label is None else label}\n" for label in labels).encode())
    if as_json:
        told: dict[str, Any] = {"samples": len(labels), "bad": len(samples.left_out), "accuracy": accuracy}
        typer.echo(json.dumps(told | ({} if out else {"labels": labels})))
        return
    for found in labels if out is None else ():
        echo("" if found is None else found)
    if samples.left_out:
        echo(f"{len(samples.left_out):,} of {len(labels):,} samples are bad: their lines are empty", err=True)
    if accuracy is not None:
        typer.echo(f"{accuracy:.2%} of {len(known):,} samples are right", err=True)


def _samples(path: str, label: str | None, on_bad: OnBad, model: Model) -> Dataset:
    """Return the samples, of a table those columns that the model was made from, in its order."""
    data = open_samples(path, label, on_bad, columns=model.columns)
    if data.unused:
        hint = "" if (data.y >= 0).any() else "; if one of them is the label, name it: --label"
        typer.echo(f"not used: {listed(data.unused)}{hint}", err=True)
    return data


def _warn_of_unknown(samples: Dataset, model: Model, data: str) -> None:
    """Warn of labels that the model cannot say: by them it looks worse than it is."""
    occurring = {samples.classes[i] for i in set(samples.y.tolist()) if i >= 0}
    if unknown := sorted(map(repr, occurring.difference(model.classes))):
        named, more = ", ".join(unknown[:5]), ", …" if len(unknown) > 5 else ""
        known = ", ".join(repr(name) for name in model.classes[:5]) + (", …" if len(model.classes) > 5 else "")
        warnings.warn(
            f"{data} has labels that the model does not know: {named}{more}; it knows {known}", Doubtful, stacklevel=2
        )


def _one_for_each(predicted: list[Label], left_out: tuple[int, ...]) -> list[Label | None]:
    """Return the labels with None in the places of samples that were left out, so that no other moves.

    >>> _one_for_each(["ill", "well"], (1,))
    ['ill', None, 'well']
    """
    bad, rest = set(left_out), iter(predicted)
    return [None if place in bad else next(rest) for place in range(len(predicted) + len(bad))]


def _backbone_of(model: Model, path: Path) -> str | None:
    """Return the backbone that the model was made with, if it is one of ours: a file must not choose what is loaded."""
    name = model.features.partition("@")[0]
    if name and not in_catalogue(name):
        raise InvalidParameter(
            f"{path} was made with the backbone {name!r}, which does not come with fedgram, and a file does not choose "
            "what is loaded here: if you have and trust it, name it with --backbone"
        )
    return name or None


def _check_features(model: Model, path: Path, samples: Dataset, data: str, *, given: bool) -> None:
    """Refuse features of another backbone. One that was named by hand may have another name, not other weights."""
    wanted, got = model.features, samples.features
    if given:
        wanted, got = wanted.rpartition("@")[2], got.rpartition("@")[2]
    if wanted != got:
        raise Mismatch(f"{path} was made from features {model.features!r}, {data} has {samples.features!r}")
