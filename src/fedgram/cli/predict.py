"""`fedgram predict`: labels of new samples by a saved model."""

import json
import warnings
from collections.abc import Iterable, Iterator
from itertools import compress, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedgram.cli import predictions
from fedgram.cli.outputs import Force, check_free, check_output
from fedgram.cli.predictions import Samples, Tally
from fedgram.core.columns import Columns, listed
from fedgram.core.errors import Doubtful, InvalidParameter, Mismatch
from fedgram.core.labels import Label
from fedgram.core.terminal import echo
from fedgram.data import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.own.files import open_samples, scan_for
from fedgram.data.own.labels import known_labels
from fedgram.data.own.tables import Scan
from fedgram.exchange.models import model_of
from fedgram.features import featurize
from fedgram.features.backbones.specs import in_catalogue
from fedgram.models import Model
from fedgram.moments.kind import described, study_of
from fedgram.nets import admit
from fedgram.studies.loading import TABLES
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
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Predict the labels of samples, one line for each; where the data have labels, also say how many are right.

    Where they have a numeric outcome, say how far off the predictions are: RMSE, MAE and R².

    A text that a spreadsheet could take for a formula gets an apostrophe in front: '=1+1 in the file is the id =1+1.

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
    if out is not None:
        check_output("--out", out, model, Path(data).expanduser())
        check_free("--out", out, force=force)
    scorer, tally = model_of(model, client), Tally()
    as_table = probabilities or key is not None or isinstance(scorer, StudyModel)
    if isinstance(scorer, StudyModel):
        _refuse_for_studies(label=label, backbone=backbone)
        lines = predictions.of_study(scorer, data, key, on_bad, tally)
    else:
        if study_of(scorer.features):
            raise InvalidParameter(
                f"{model} holds a model of {described(scorer.features)}, without that study: save study.model(model)"
            )
        name, path, on_bad = backbone or _backbone_of(scorer, model), Path(data).expanduser(), on_bad or "refuse"
        if name is None and path.suffix.lower() in TABLES and path.exists():
            samples = _of_table(scan_for(path, label, scorer.columns, on_bad), data, key, scorer)
        else:
            samples = _in_memory(data, label, on_bad, key, scorer, name, given=backbone is not None, path=model)
        lines = predictions.of_samples(scorer, samples, key, tally, as_table=as_table)
    labels = predictions.put(lines, out, collect=as_json)
    if as_json:
        told: dict[str, Any] = {"samples": tally.samples, "bad": tally.bad, "accuracy": tally.accuracy}
        if tally.errors:
            told["errors"] = {name: errors.plain() for name, errors in tally.errors.items()}
        typer.echo(json.dumps(told | ({} if out else {"labels": labels})))
        return
    if tally.bad:
        marked = "say what is wrong" if as_table else "are empty"
        echo(f"{tally.bad:,} of {tally.samples:,} samples are bad: their lines {marked}", err=True)
    if tally.accuracy is not None:
        echo(f"{tally.accuracy:.2%} of {tally.known:,} samples are right", err=True)
    for name, errors in tally.errors.items():
        figures = f"{errors.rmse:.4g}, MAE {errors.mae:.4g}, R² {errors.r2:.4f}"
        echo(f"RMSE of {name} {figures}, over {errors.n:,} samples", err=True)


def _refuse_for_studies(**given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidParameter(f"this model has its study, which says what is what: leave out --{name} {value}")


def _of_table(found: Scan, data: str, key: str | None, model: Model) -> Iterator[Samples]:
    """Yield the samples of a table of any size, block by block; rows that were refused have been refused by then."""
    known: dict[str, Label] = {}
    if found.labels is not None:
        known = {text: label.item() for text, label in known_labels(found.labels.rows(found.good), data).items()}
    _say_unused(found.roles.unused, labelled=bool(known))
    _warn_of_unknown(known.values(), model, data)
    keys, end = None if key is None else predictions.keys_of(data, key), 0
    for good, x in found.blocks():
        start, end = end, end + len(good)
        texts = [""] * len(good) if found.labels is None else found.labels.rows(slice(start, end)).tolist()
        own = None if keys is None else list(islice(keys, len(good)))
        yield Samples(good, x, [known.get(text) for text in compress(texts, good.tolist())], own)


def _in_memory(
    data: str,
    label: str | None,
    on_bad: OnBad,
    key: str | None,
    model: Model,
    backbone: str | None,
    *,
    given: bool,
    path: Path,
) -> Iterator[Samples]:
    """Yield samples that are all in memory, as features of a backbone if there is one."""
    raw = open_samples(data, label, on_bad, columns=model.columns)
    _say_unused(raw.unused, labelled=bool((raw.y >= 0).any()))
    samples = featurize(raw, backbone).pooled()
    _check_features(model, path, samples, data, given=given)
    known = [samples.classes[i] if i >= 0 else None for i in samples.y.tolist()]
    _warn_of_unknown((name for name in known if name is not None), model, data)
    good = np.ones(len(known) + len(samples.left_out), dtype=bool)
    good[list(samples.left_out)] = False
    keys = None if key is None else list(predictions.keys_of(data, key))
    if keys is not None and len(keys) != len(good):
        raise Mismatch(
            f"{data} has {len(keys)} rows with an id, and {len(good)} samples: remove rows that are not whole"
        )
    yield Samples(good, samples.x, known, keys)


def _say_unused(unused: Columns, *, labelled: bool) -> None:
    if unused:
        hint = "" if labelled else "; if one of them is the label, name it: --label"
        echo(f"not used: {listed(unused)}{hint}", err=True)


def _warn_of_unknown(occurring: Iterable[Label], model: Model, data: str) -> None:
    """Warn of labels that the model cannot say: by them it looks worse than it is."""
    if unknown := sorted(map(repr, set(occurring).difference(model.classes))):
        named, more = ", ".join(unknown[:5]), ", …" if len(unknown) > 5 else ""
        known = ", ".join(repr(name) for name in model.classes[:5]) + (", …" if len(model.classes) > 5 else "")
        warnings.warn(
            f"{data} has labels that the model does not know: {named}{more}; it knows {known}", Doubtful, stacklevel=2
        )


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
