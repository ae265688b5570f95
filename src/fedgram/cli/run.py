"""`fedgram run`: one method on one data set, spread one way."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedgram.cli.progress import progress_bar
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.terminal import one_line
from fedgram.data.client import Client, make_clients
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.shift import shifted
from fedgram.data.spread import client_names, spread, usual_partition
from fedgram.evaluation import Evaluation, count_correct
from fedgram.features import featurize, load_features, load_samples
from fedgram.protocol.fit import Fit, outcome
from fedgram.protocol.method import Engine, engines
from fedgram.protocol.parameters import read_require, read_settings
from fedgram.protocol.sources import resolve


class Test(StrEnum):
    """Where the test samples come from."""

    local = "local"
    standard = "standard"


def run(
    method: Annotated[
        str, typer.Option(help="Which method: a name (see [b]fedgram methods[/]), your own file.py, or module:Class.")
    ] = "afl",
    data: Annotated[
        str,
        typer.Option(
            help="A data set by name (see [b]fedgram data list[/]), or a path: a folder of images per class, "
            "an .npz, CSV or Parquet file."
        ),
    ] = "digits",
    backbone: Annotated[
        str | None,
        typer.Option(help="What turns samples into features: lite0:96, FILE.onnx, hub:NAME, minilm, pixels, …"),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Use only so many of the samples.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column of your table.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column that names each sample's client.")] = None,
    on_bad: Annotated[OnBad, typer.Option(help="What to do with bad images or rows of yours.")] = "refuse",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients. Default: 20, or the groups there are.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="How the data is spread: dirichlet:ALPHA, shards:PER_CLIENT, pathological:CLASSES "
            "(or pathological:CLASSES:unbalanced), iid, by_group. "
            "Default: the data set's own groups, or else dirichlet:0.1."
        ),
    ] = None,
    shift: Annotated[
        str | None,
        typer.Option(help="Give each client's images a change of its own: camera:STRENGTH or rotation:DEGREES."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; repeatable."),
    ] = None,
    test: Annotated[
        Test, typer.Option(help="local: split inside each client; standard: the data set's own.")
    ] = Test.local,
    test_fraction: Annotated[float, typer.Option(help="Share of each client's samples held back (local).")] = 0.2,
    require: Annotated[str, typer.Option(help="Clients that must take part: all, a number, or a fraction.")] = "all",
    engine: Annotated[
        str, typer.Option(help="What carries the messages: inprocess, or flower-sim (Flower's simulation).")
    ] = "inprocess",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Clients side by side: threads of the in-process engine (default: as many as pay off), "
            "processes of flower-sim (default: one per processor)."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the fit to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")] = False,
) -> None:
    """Run one method on one data set.

    Examples:
      fedgram run --method afl --data digits --clients 20 --partition dirichlet:0.1

      fedgram run --data digits --clients 100 --partition shards:2 --set gamma=10 --set ri=false --json

      fedgram run --data cifar10 --backbone lite0:96 --clients 100 --test standard

      fedgram run --data patients.csv --label diagnosis --client-column hospital --save fit.safetensors

    """
    if engine not in engines:
        raise UnknownName("engine", engine, engines)
    if workers is not None and workers < 1:
        raise InvalidParameter(f"workers must be at least 1, got {workers}")
    if clients is not None and clients < 1:
        raise InvalidParameter(f"clients must be at least 1, got {clients}")
    if save is not None and not save.absolute().parent.is_dir():
        raise InvalidParameter(f"cannot write {save}: there is no folder {save.parent}")
    if save is not None and save.is_dir():
        raise InvalidParameter(f"cannot write {save}: it is a folder")
    chosen = resolve(method)
    configured = chosen(**read_settings(chosen, split_settings(set_ or [])))
    options: dict[str, Any] = {"samples": samples, "own_test": test is Test.standard, "clients": clients or 20}
    options |= {"seed": seed, "label": label, "group": client_column, "on_bad": on_bad}
    # A change depends on whose image it is, so the backbone has to wait until the images are spread.
    dataset = load_samples(data, **options) if shift else load_features(data, backbone=backbone, **options)
    if dataset.about:
        typer.echo(dataset.about, err=True)
    partition = partition or usual_partition(dataset)
    parts = spread(dataset, partition, clients=clients or 20, seed=seed)
    if clients is not None and clients != len(parts):
        raise InvalidParameter(f"--clients {clients}, but the data has {len(parts)} groups: leave one of both out")
    names = client_names(dataset, partition, len(parts))
    if shift:
        dataset = featurize(shifted(dataset, parts, names, shift, seed=seed), backbone)
    fraction = test_fraction if test is Test.local else 0.0
    parties = make_clients(dataset, parts, test_fraction=fraction, seed=seed, names=names)
    with progress_bar() as progress:
        fit = configured.fit(
            parties,
            classes=dataset.classes,
            seed=seed,
            engine=_engine(engine, workers),
            require=read_require(require),
            progress=progress,
        )
    evaluation = fit.evaluation if test is Test.local else _standard(fit, dataset)
    if save is not None:
        fit.save(save)
    if as_json:
        typer.echo(
            json.dumps(_record(fit, evaluation, data, dataset.features, parties, partition, shift), allow_nan=False)
        )
    else:
        _show(fit, evaluation, dataset, parties)


def _engine(name: str, workers: int | None) -> Engine:
    return engines[name]() if workers is None else engines[name](workers=workers)


def split_settings(texts: list[str]) -> dict[str, str]:
    """Return what `--set NAME=VALUE` gives, by name."""
    for text in texts:
        if "=" not in text:
            raise InvalidParameter(f"--set takes NAME=VALUE, got {text!r}")
    settings = dict(text.split("=", 1) for text in texts)
    if len(settings) < len(texts):
        raise InvalidParameter(f"--set names a parameter twice: {' '.join(texts)}")
    return settings


def _standard(fit: Fit, data: Dataset) -> Evaluation:
    """Score the global model on the data set's own test set, as AFL does."""
    if fit.model is None:
        raise InvalidParameter(f"{fit.method} gives no global model to score on the test set: use --test local")
    assert data.y_test is not None
    return Evaluation({"test set": count_correct(fit.model, data.x_test, data.y_test)}, {"test set": len(data.y_test)})


def _record(
    fit: Fit,
    evaluation: Evaluation | None,
    data: str,
    features: str,
    clients: list[Client],
    partition: str,
    shift: str | None,
) -> dict[str, Any]:
    return outcome(fit, evaluation) | {
        "data": data,
        "features": features,
        "partition": partition,
        "shift": shift,
        "clients": len(clients),
        "contributors": len(fit.contributors),
        "untested": evaluation.untested if evaluation else len(clients),
    }


def _show(fit: Fit, evaluation: Evaluation | None, data: Dataset, clients: list[Client]) -> None:
    table = Table(title=f"{fit.method} on {one_line(data.name)}", title_justify="left", box=None, pad_edge=False)
    table.show_header = False
    taken_part = f"{len(fit.contributors)} of {len(clients)} contributed"
    table.add_row("clients", taken_part + one_line(_why_not(fit)))
    samples = sum(len(client.x) for client in clients)
    table.add_row("samples", f"{samples:,} for training in {len(data.classes)} classes")
    if evaluation is None or not any(evaluation.tested.values()):
        table.add_row("accuracy", "no test samples")
    else:
        for name, value in evaluation.summary().items():
            table.add_row(f"accuracy, {name.replace('_', ' ')}", f"[b]{value:.2%}[/]")
        for name, reason in list(evaluation.failed.items())[:3]:
            table.add_row("not tested", one_line(f"{name}: {reason}"))
        if evaluation.untested:
            table.add_row("", f"{evaluation.untested} clients without test samples are left out of the mean")
    per_client = max(len(fit.traffic.by_client), 1)
    for direction, total in (("up", fit.traffic.up), ("down", fit.traffic.down)):
        table.add_row(f"traffic {direction}", f"{total:,} bytes, {total // per_client:,} a client")
    for direction, total in fit.carried.items():
        table.add_row("", f"{total:,} bytes {direction} as {fit.engine} counts them, evaluation included")
    table.add_row("time", f"{fit.seconds:.2f} s on {fit.engine}")
    terminal.console().print(table)


def _why_not(fit: Fit) -> str:
    reasons = [f"{name}: {reason}" for name, reason in fit.absent.items()]
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    return f" ({shown})" if reasons else ""
