"""`fedgram predict`: labels of new samples by a saved model."""

import csv
import io
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, compress, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedgram.cli.output_files import Force, check_free, check_output
from fedgram.cli.summarize import DecimalOption, ThousandsOption
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes, Label
from fedgram.core.columns import Columns, listed
from fedgram.core.errors import Doubtful, InvalidParameter, Mismatch
from fedgram.core.escaping import guarded
from fedgram.core.filesystem import replacing, writing
from fedgram.core.progress_bars import count_bar
from fedgram.core.terminal import echo
from fedgram.data import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.own.blocks import TableFile, open_table
from fedgram.data.own.cells import Mask, Notation
from fedgram.data.own.files import open_samples, scan_for
from fedgram.data.own.labels import known_labels
from fedgram.data.own.tables import Scan
from fedgram.evaluation import Errors
from fedgram.exchange.rounds.party_side import model_of
from fedgram.features import featurize
from fedgram.features.backbones.named_backbones import in_catalogue
from fedgram.models import Model, finite, probabilities
from fedgram.moments.moments import described, study_of
from fedgram.nets import admit
from fedgram.studies.encoding import open_for
from fedgram.studies.loading import TABLES
from fedgram.studies.model import ROWS, StudyModel

_SPECIAL = re.compile('[,"\r\n]')
PROBLEM = "problem"  # name of the last column, with the problems of a row


@dataclass
class Tally:
    """Counts of samples, of bad samples, of samples with a known label, and of right predictions among the latter.

    `errors` are those in numeric outcomes, by outcome, over the samples whose outcome is known.
    """

    samples: int = 0
    bad: int = 0
    known: int = 0
    right: int = 0
    errors: dict[str, Errors] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions, None if no label is known."""
        return self.right / self.known if self.known else None

    def fields(self) -> dict[str, Any]:
        """Return the counts and the errors as plain values for JSON."""
        told: dict[str, Any] = {"samples": self.samples, "bad": self.bad, "accuracy": self.accuracy}
        errors = {name: errors.plain() for name, errors in self.errors.items()}
        return told | ({"errors": errors} if errors else {})

    def compare(self, name: str, predicted: Array, values: Array) -> None:
        """Add the errors of predicted numbers (n,) of an outcome; values (n,) are NaN where it is not known."""
        known = ~np.isnan(values)
        if known.any():
            errors = Errors.of(predicted[known], values[known])
            self.errors[name] = self.errors[name] + errors if name in self.errors else errors


@dataclass(frozen=True)
class Lines:
    """Predictions for some samples, None for a bad sample, and their output lines as text.

    `ids` and `probabilities` are those of the samples, where there are any, and `problems` their faults.
    """

    labels: Sequence[Any]
    text: str
    ids: Sequence[str] | None = None
    probabilities: Sequence[list[float] | None] | None = None
    problems: Sequence[str] = ()


def plain(labels: Sequence[Label | None]) -> Lines:
    """Return one label per line; the line of a bad sample is empty."""
    return Lines(labels, "".join(f"{'' if label is None else guarded(str(label))}\n" for label in labels))


def header(key: str | None, outcomes: Sequence[str], classes: Classes) -> str:
    """Return the first line of a table of predictions."""
    names = [*([] if key is None else [key]), *outcomes, *(f"p({label})" for label in classes), PROBLEM]
    return _csv([list(map(guarded, names))])


def table(
    keys: Sequence[str] | None,
    labels: Sequence[Label | None] | None,
    numbers: Array,
    reasons: Sequence[str],
    head: str = "",
) -> Lines:
    """Return a line of CSV for each sample: its key, its label, numbers (n, …), and its fault.

    The numbers are a probability per class, or numeric outcomes; with outcomes, `labels` is None. `head` goes first.
    """
    texts = [list(map(_cell, column)) for column in (keys, labels) if column is not None]
    fine = [None if reason else value for value, reason in zip(numbers.tolist(), reasons, strict=True)]
    found: Sequence[Any] = fine if labels is None else labels
    plain: dict[str, Any] = {"ids": keys, "probabilities": None if labels is None else fine, "problems": reasons}
    if not any(reasons):
        # One format for all lines takes a third of the time that a line at a time does.
        form = ",".join(["%s"] * len(texts) + ["%.8g"] * numbers.shape[1] + ["\n"])
        cells = chain.from_iterable(zip(*texts, *numbers.T.tolist(), strict=True))
        return Lines(found, head + form * len(reasons) % tuple(cells), **plain)
    rows = (
        [*before, *("" if reason else f"{number:.8g}" for number in some), _cell(reason)]
        for *before, some, reason in zip(*texts, numbers.tolist(), reasons, strict=True)
    )
    return Lines(found, head + "".join(f"{','.join(row)}\n" for row in rows), **plain)


@lru_cache(maxsize=1 << 12)
def _cell(value: Label | None) -> str:
    """Return a cell as CSV has it; None is an empty one."""
    text = "" if value is None else guarded(str(value))
    return _csv([[text]]).removesuffix("\n") if _SPECIAL.search(text) else text


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def of_study(
    model: StudyModel, data: TableFile, key: str | None, on_bad: OnBad | None, tally: Tally
) -> Iterator[Lines]:
    """Yield the lines of a table of any size, block by block; bad rows are marked, unless they are to be refused."""
    study = model.study
    if on_bad == "refuse":  # before a line is printed, which takes a pass of its own
        for _ in open_for(study, data, labelled=False, key=key).good_rows(on_bad):
            pass
    head = header(key, study.outcomes, model.classes if study.classes else ())
    for block in model.read(data, key=key):
        bad = [place for place, reason in enumerate(block.reasons) if reason] if any(block.reasons) else []
        found = block.found.tolist()
        for place in bad:
            found[place] = None
        tally.samples += len(found)
        tally.bad += len(bad)
        if block.known is not None:
            judged = block.known.map(lambda label: label in model.classes, bool)
            judged[bad] = False
            tally.known += int(judged.sum())
            tally.right += int((judged & (block.found == block.known.map(str, np.str_))).sum())
        if block.values is not None:
            fine = np.array([not reason for reason in block.reasons], dtype=bool)
            for place, name in enumerate(study.numeric_outcomes):
                tally.compare(name, block.found[fine, place], block.values[fine, place])
        keys = None if block.keys is None else block.keys.tolist()
        if block.probabilities is None:
            yield table(keys, None, block.found, block.reasons, head)
        else:
            yield table(keys, found, block.probabilities, block.reasons, head)
        head = ""
    if head:  # there was not a single row
        yield Lines((), head)


@dataclass(frozen=True)
class Samples:
    """Samples to be scored.

    `good` marks the good ones among all; `x` (n, …) and `known` are the good samples and their known labels, None for
    an unknown label. `keys` has a key for every sample, good or bad; None if the user asked for no key column.
    """

    good: Mask
    x: Any
    known: Sequence[Label | None]
    keys: Sequence[str] | None


def of_samples(
    model: Model, samples: Iterable[Samples], key: str | None, tally: Tally, *, as_table: bool
) -> Iterator[Lines]:
    """Yield the lines of samples, block by block; a bad sample keeps its line."""
    head = header(key, ("label",), model.classes) if as_table else ""
    for some in _few_at_once(samples):
        scores = finite(model.scores(some.x))
        found = [model.classes[place] for place in scores.argmax(axis=1).tolist()]
        judged = [(one, other) for one, other in zip(found, some.known, strict=True) if other is not None]
        tally.samples, tally.bad = tally.samples + len(some.good), tally.bad + len(some.good) - len(found)
        tally.known, tally.right = tally.known + len(judged), tally.right + sum(one == other for one, other in judged)
        rest = iter(found)
        labels = [next(rest) if good else None for good in some.good.tolist()]
        if not as_table:
            yield plain(labels)
            continue
        whole = np.zeros((len(labels), len(model.classes)))
        whole[some.good] = probabilities(model, scores)
        yield table(some.keys, labels, whole, ["" if good else "bad" for good in some.good.tolist()], head)
        head = ""


def _few_at_once(samples: Iterable[Samples]) -> Iterator[Samples]:
    """Yield the samples in small blocks: the output for a sample may take more memory than the sample."""
    for some in samples:
        end = 0
        for start in range(0, len(some.good), ROWS):
            good = some.good[start : start + ROWS]
            first, end = end, end + int(np.count_nonzero(good))
            keys = None if some.keys is None else some.keys[start : start + ROWS]
            yield Samples(good, some.x[first:end], some.known[first:end], keys)


def keys_of(data: str, key: str) -> Iterator[str]:
    """Return the cells of a table's key column."""
    source = open_table(data)
    if key not in source.names:
        raise Mismatch(f"{data} has no id column {key!r}: it has {', '.join(source.names[:8])}")
    return (cell for block in source.blocks([], [key]) for cell in block.texts[key].stripped().tolist())


def put(lines: Iterable[Lines], out: Path | None, *, collect: bool) -> dict[str, list[Any]]:
    """Write the lines to a file, whole or not at all, or print them, or `collect` and return their plain values."""
    kept: dict[str, list[Any]] = {"labels": []}
    # Bars and lines on one terminal would get into each other's way.
    show = None if out is not None or collect or not sys.stdout.isatty() else False
    with ExitStack() as stack:
        file = None
        if out is not None:
            stack.enter_context(writing(out))
            file = stack.enter_context(replacing(out))
        advance = stack.enter_context(count_bar("predicting", None, show, transient=True))
        for some in lines:
            if file is not None:
                file.write(some.text.encode())
            elif collect:
                columns = {"labels": some.labels, "ids": some.ids, "probabilities": some.probabilities}
                for name, values in {**columns, "problems": some.problems}.items():
                    if values is not None:
                        kept.setdefault(name, []).extend(values)
            else:
                echo(some.text, end="")
            advance(len(some.labels))
    return kept


def predict(
    model: Annotated[
        Path,
        typer.Argument(help="A model that a node kept, a fit (its global model, or --client's own), or a .fgm file."),
    ],
    data: Annotated[
        str, typer.Argument(help="A folder of images per class, an .npz, CSV or Parquet file; with labels or without.")
    ],
    label: Annotated[
        str | None, typer.Option("--outcome", "--label", help="The column of your table with the true outcome.")
    ] = None,
    key: Annotated[str | None, typer.Option("--id", help="A column of ids to copy into the output.")] = None,
    client: Annotated[str | None, typer.Option(help="Use the personal model of this client of a fit.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write a table with a probability per class.")
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The backbone that turns samples into features. Default: the model's own, if it comes with fedgram."
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
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    out: Annotated[Path | None, typer.Option(help="Write the labels to this file instead of printing them.")] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Predict the labels of samples, one line for each; where the data have labels, also say how many are right.

    Where they have a numeric outcome, say how far off the predictions are: RMSE, MAE and R².

    A text that a spreadsheet could take for a formula gets an apostrophe in front: '=1+1 in the file is the id =1+1.

    Columns of a table are found by name where the model was made from a table, in any order. With --id,
    --probabilities or a model of a study, the lines are a table: key, label, a probability per class, and what is wrong
    with a row. --json without --out has the same as lists.

    Exit code 1 if not a single sample could be used.

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
    scorer, tally, notation = model_of(model, client), Tally(), Notation(decimal, thousands)
    as_table = probabilities or key is not None or isinstance(scorer, StudyModel) or (as_json and out is None)
    if isinstance(scorer, StudyModel):
        _refuse_for_studies(outcome=label, backbone=backbone)
        lines = of_study(scorer, open_table(data, notation), key, on_bad, tally)
    else:
        if study_of(scorer.features):
            raise InvalidParameter(
                f"{model} holds a model of {described(scorer.features)}, without that study: save study.model(model)"
            )
        name, path, on_bad = backbone or _backbone_of(scorer, model), Path(data).expanduser(), on_bad or "refuse"
        if name is None and path.suffix.lower() in TABLES and path.exists():
            samples = _of_table(scan_for(path, label, scorer.columns, on_bad, notation), data, key, scorer)
        else:
            raw = open_samples(data, label, on_bad, columns=scorer.columns, notation=notation)
            samples = _in_memory(raw, data, key, scorer, name, given=backbone is not None, path=model)
        lines = of_samples(scorer, samples, key, tally, as_table=as_table)
    kept = put(lines, out, collect=as_json)
    if as_json:
        outcomes = scorer.study.numeric_outcomes if isinstance(scorer, StudyModel) else ()
        names = {"outcomes": list(outcomes)} if outcomes else {"classes": list(scorer.classes)}
        typer.echo(json.dumps(tally.fields() | ({"file": str(out)} if out else names | kept)))
    else:
        _say(tally, out, as_table=as_table)
    if tally.bad == tally.samples:
        raise typer.Exit(1)


def _say(tally: Tally, out: Path | None, *, as_table: bool) -> None:
    """Print the counts, and the scores where labels are known, on standard error."""
    if out is not None:
        echo(f"wrote {out}: {tally.samples:,} samples", err=True)
    if tally.bad:
        marked = "say what is wrong" if as_table else "are empty"
        echo(f"{tally.bad:,} of {tally.samples:,} samples are bad: their lines {marked}", err=True)
    if tally.accuracy is not None:
        echo(f"{tally.accuracy:.2%} of {tally.known:,} samples are right", err=True)
    for name, errors in tally.errors.items():
        figures = f"{errors.rmse:.4g}, MAE {errors.mae:.4g}, R² {errors.r2:.4f}"
        echo(f"RMSE of {name} {figures}, over {errors.n:,} samples", err=True)
    if tally.bad == tally.samples:
        echo("none of them could be used", err=True)


def _refuse_for_studies(**given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidParameter(f"this model has a study, which names its columns: leave out --{name} {value}")


def _of_table(found: Scan, data: str, key: str | None, model: Model) -> Iterator[Samples]:
    """Yield the samples of a table of any size, block by block; bad rows are refused by `found`."""
    known: dict[str, Label] = {}
    if found.labels is not None:
        known = {text: label.item() for text, label in known_labels(found.labels.rows(found.good), data).items()}
    _say_unused(found.roles.unused, labelled=bool(known))
    _warn_of_unknown(known.values(), model, data)
    keys, end = None if key is None else keys_of(data, key), 0
    for good, x in found.blocks():
        start, end = end, end + len(good)
        texts = [""] * len(good) if found.labels is None else found.labels.rows(slice(start, end)).tolist()
        own = None if keys is None else list(islice(keys, len(good)))
        yield Samples(good, x, [known.get(text) for text in compress(texts, good.tolist())], own)


def _in_memory(
    raw: Dataset,
    data: str,
    key: str | None,
    model: Model,
    backbone: str | None,
    *,
    given: bool,
    path: Path,
) -> Iterator[Samples]:
    """Yield samples that are all in memory, as features of a backbone if there is one."""
    _say_unused(raw.unused, labelled=bool((raw.y >= 0).any()))
    samples = featurize(raw, backbone).pooled()
    _check_features(model, path, samples, data, given=given)
    known = [samples.classes[i] if i >= 0 else None for i in samples.y.tolist()]
    _warn_of_unknown((name for name in known if name is not None), model, data)
    good = np.ones(len(known) + len(samples.left_out), dtype=bool)
    good[list(samples.left_out)] = False
    keys = None if key is None else list(keys_of(data, key))
    if keys is not None and len(keys) != len(good):
        raise Mismatch(
            f"{data} has {len(keys)} rows with an id, and {len(good)} samples: remove rows that are not whole"
        )
    yield Samples(good, samples.x, known, keys)


def _say_unused(unused: Columns, *, labelled: bool) -> None:
    if unused:
        hint = "" if labelled else "; if one of them is the label, name it: --outcome"
        echo(f"not used: {listed(unused)}{hint}", err=True)


def _warn_of_unknown(occurring: Iterable[Label], model: Model, data: str) -> None:
    """Warn of labels that the model does not know: they make its accuracy look worse than it is."""
    if unknown := sorted(map(repr, set(occurring).difference(model.classes))):
        named, more = ", ".join(unknown[:5]), ", …" if len(unknown) > 5 else ""
        known = ", ".join(repr(name) for name in model.classes[:5]) + (", …" if len(model.classes) > 5 else "")
        warnings.warn(
            f"{data} has labels that the model does not know: {named}{more}; it knows {known}", Doubtful, stacklevel=2
        )


def _backbone_of(model: Model, path: Path) -> str | None:
    """Return the name of the model's backbone, None without one; raise if it does not come with fedgram."""
    name = model.features.partition("@")[0]
    if name and not in_catalogue(name):
        raise InvalidParameter(
            f"{path} was made with the backbone {name!r}, which does not come with fedgram, and a file does not choose "
            "what is loaded here: if you have and trust it, name it with --backbone"
        )
    return name or None


def _check_features(model: Model, path: Path, samples: Dataset, data: str, *, given: bool) -> None:
    """Raise for features of another backbone; if the user named it, only its weights must agree, not its name."""
    wanted, got = model.features, samples.features
    if given:
        wanted, got = wanted.rpartition("@")[2], got.rpartition("@")[2]
    if wanted != got:
        raise Mismatch(f"{path} was made from features {model.features!r}, {data} has {samples.features!r}")
