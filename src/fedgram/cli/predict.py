"""`fedgram predict`: labels of new samples by a saved model."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedgram.cli import predictions
from fedgram.cli.predictions import Lines, Tally
from fedgram.core.columns import listed
from fedgram.core.errors import Doubtful, InvalidParameter, Mismatch
from fedgram.core.labels import Label
from fedgram.core.terminal import echo
from fedgram.data import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.own.files import open_samples
from fedgram.exchange.models import model_of
from fedgram.features import featurize
from fedgram.features.backbones.specs import in_catalogue
from fedgram.models import Model, finite
from fedgram.models import probabilities as probabilities_of
from fedgram.moments.kind import study_of
from fedgram.nets import admit
from fedgram.studies.model import StudyModel


def predict(
    model: Annotated[
        Path,
        typer.Argument(help="A model that a node kept, a fit (its global model, or --client's own), or a .fgm file."),
    ],
    data: Annotated[
        str, typer.Argument(help="A folder of images per class, an .npz, CSV or Parquet file; with labels or without.")
    ],
    label: Annotated[str | None, typer.Option(help="The label column of your table.")] = None,
    key: Annotated[str | None, typer.Option("--id", help="A column to copy, which says which row is which.")] = None,
    client: Annotated[str | None, typer.Option(help="Use the personal model of this client of a fit.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write a table with a probability per class.")
    ] = False,
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
        OnBad | None,
        typer.Option(
            help="What to do with bad images or rows; a skipped one keeps its line. Default: refuse them, "
            "or under a study mark them.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the labels to this file instead of printing them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Predict the labels of samples, one line for each; where the data have labels, also say how many are right.

    Columns of a table are found by name where the model was made from a table, in any order. With --id,
    --probabilities or a model of a study, the lines are a table: key, label, a probability per class, and what is wrong
    with a row.

    Examples:
      fedgram predict nodes/hospital-a/model.safetensors new-patients.csv

      fedgram predict fit.fedgram new-patients.csv --client north --id patient_id --out predictions.csv

      fedgram predict mine.fgm new-patients.csv --id patient_id --out predictions.csv

      fedgram predict fit.safetensors photographs/ --json

    """
    if network is not None:
        admit(network)
    scorer, tally = model_of(model, client), Tally()
    as_table = probabilities or key is not None or isinstance(scorer, StudyModel)
    if isinstance(scorer, StudyModel):
        _refuse_for_studies(label=label, backbone=backbone)
        lines = predictions.of_study(scorer, data, key, on_bad, tally)
    else:
        if study_of(scorer.features):
            raise InvalidParameter(
                f"{model} holds a model of the columns that {scorer.features!r} sends, without that study: "
                "save study.model(model)"
            )
        samples = _samples(data, label, on_bad or "refuse", scorer)
        samples = featurize(samples, backbone or _backbone_of(scorer, model)).pooled()
        _check_features(scorer, model, samples, data, given=backbone is not None)
        lines = _lines(scorer, samples, data, key, tally, as_table=as_table)
    labels = predictions.put(lines, out, collect=as_json)
    if as_json:
        told: dict[str, Any] = {"samples": tally.samples, "bad": tally.bad, "accuracy": tally.accuracy}
        typer.echo(json.dumps(told | ({} if out else {"labels": labels})))
        return
    if tally.bad:
        marked = "say what is wrong" if as_table else "are empty"
        echo(f"{tally.bad:,} of {tally.samples:,} samples are bad: their lines {marked}", err=True)
    if tally.accuracy is not None:
        typer.echo(f"{tally.accuracy:.2%} of {tally.known:,} samples are right", err=True)


def _refuse_for_studies(**given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidParameter(f"this model has its study, which says what is what: leave out --{name} {value}")


def _lines(
    model: Model, samples: Dataset, data: str, key: str | None, tally: Tally, *, as_table: bool
) -> Iterator[Lines]:
    """Yield the lines of samples that are all in memory."""
    scores = finite(model.scores(samples.x))
    predicted = [model.classes[place] for place in scores.argmax(axis=1).tolist()]
    _warn_of_unknown(samples, model, data)
    known = [(a, samples.classes[i]) for a, i in zip(predicted, samples.y.tolist(), strict=True) if i >= 0]
    labels = _one_for_each(predicted, samples.left_out)
    tally.samples, tally.bad = len(labels), len(samples.left_out)
    tally.known, tally.right = len(known), sum(a == b for a, b in known)
    if not as_table:
        yield predictions.plain(labels)
        return
    keys = None if key is None else predictions.keys_of(data, key, len(labels))
    whole = np.zeros((len(labels), len(model.classes)))
    whole[[label is not None for label in labels]] = probabilities_of(model, scores)
    head = predictions.header(key, ("label",), model.classes)
    yield predictions.table(keys, labels, whole, ["bad" if label is None else "" for label in labels], head)


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
