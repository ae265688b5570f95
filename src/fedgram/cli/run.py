"""`fedgram run`: one method in one scenario."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedgram.cli import describe as describing
from fedgram.cli import options
from fedgram.cli.options import already_in, progress_bar
from fedgram.cli.output_files import Force, check_free
from fedgram.cli.report import RESULTS, print_tables
from fedgram.cli.table_options import HeterogeneityOption, Level, Ml, RidgeOption, Robust, SiteEffectsOption, request_of
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import one_line
from fedgram.evaluation import Evaluation, NumericErrors
from fedgram.experiments import Loader, Run, Scenario
from fedgram.experiments.prepared import TEST_SET, Prepared
from fedgram.experiments.results import Judged, Result
from fedgram.experiments.runner import Kept, attempt
from fedgram.experiments.variants import read_variants
from fedgram.inference.table import Coefficients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.fit import Fit
from fedgram.protocol.named_methods import resolve
from fedgram.protocol.parameters import read_settings
from fedgram.report.result_tables import few_clients, site_tables
from fedgram.studies import Study, table_one
from fedgram.studies.design import Request
from fedgram.studies.table_one import TableOne


@options.shared
def run(
    method: Annotated[
        str | None,
        typer.Option(
            help="Which method: a name (see [b]fedgram methods[/]), your own file.py, or module:Class. Default: the "
            "study's, or afl."
        ),
    ] = None,
    *,
    settings: dict[str, Any],
    running: options.Running,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients. Default: 20, or the groups there are.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help=f"How the data is spread: {options.PARTITIONS}")] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Add the result to results.jsonl of this folder, for [b]fedgram report[/].")
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Also describe the study's columns by client, of the rows for training.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the fit to this file.")] = None,
    force: Force = False,
    coefficients: Annotated[
        bool,
        typer.Option(
            "--coefficients", help="Print the regression table of each numeric outcome, of the rows for training."
        ),
    ] = False,
    site_effects: SiteEffectsOption = "none",
    ml: Ml = False,
    robust: Robust = None,
    heterogeneity: HeterogeneityOption = False,
    ridge: RidgeOption = None,
    level: Level = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")] = False,
) -> None:
    """Run one method on one data set. Without --data it is digits.

    Examples:
      fedgram run --method afl --data digits --clients 20 --partition dirichlet:0.1

      fedgram run --data digits --clients 100 --partition shards:2 --set gamma=10 --set ri=false --json

      fedgram run --data cifar10 --backbone lite0:96 --clients 100 --test standard --out results/cifar

      fedgram run --data patients.csv --outcome diagnosis --client-column hospital --save fit.safetensors

      fedgram run --data patients.csv --outcome cost --client-column hospital --coefficients --site-effects random

    """
    if save is not None:
        _check_target(save, force=force)
    request = request_of(
        outcome=None,
        columns=None,
        site_effects=site_effects,
        ml=ml,
        robust=robust,
        heterogeneity=heterogeneity,
        ridge=ridge,
        level=level,
    )
    _check_asked(request, coefficients=coefficients)
    if method is None:
        # A study's method is a name, so this never runs code that came with the study.
        method = Study.read(settings["study"]).method if settings.get("study") else "afl"
    hyper_parameters = read_settings(resolve(method), options.split_settings(set_ or []))
    (variant,) = read_variants([{"name": method} | hyper_parameters])
    others = {"clients": clients, "partition": partition}
    settings |= {name: value for name, value in others.items() if value is not None}
    settings.setdefault("data", "digits")
    loader, require = Loader(), "all" if running.require is None else running.require
    one = Run(Scenario(seed=seed, **settings), variant.label, variant.method, require).resolve(loader)
    errors = terminal.console(stderr=True, highlight=False, soft_wrap=True)
    with _results_in(out, running, errors) as kept:
        prepared = one.scenario.prepare(loader)
        if prepared.data.about:
            terminal.echo(prepared.data.about, err=True)
        if clients not in (None, len(prepared.clients)):
            raise InvalidParameter(
                f"--clients {clients}, but the data has {len(prepared.clients)} groups: leave --clients out, or say "
                "with --partition how the samples are spread"
            )
        _check_study(prepared, wanted=describe)
        if kept is not None:
            kept.begin(one.scenario, prepared)
        with progress_bar(one.label) as progress:
            record, fit, evaluation, error = attempt(one, prepared, running.engine, progress)
        if kept is not None:
            kept.append(record)
    for message in record.get("warnings", ()):
        errors.print(f"[yellow]warning:[/] {one_line(message)}")
    if error is not None:
        raise error
    assert fit is not None
    assert evaluation is not None
    if save is not None:
        fit.save(save)
    tables = _tables(fit, prepared, request) if coefficients else []
    descriptives = _described(prepared, fit) if describe else None
    if as_json:
        told: dict[str, Any] = {"coefficients": [table.to_dict() for table in tables]} if tables else {}
        told |= {} if descriptives is None else {"descriptives": descriptives.fields()}
        typer.echo(json.dumps(record | told, allow_nan=False, default=str))
    else:
        _show(fit, evaluation, prepared)
        _show_sites(Result.of(record).judged)
        terminal.echo("".join(f"\n{table.text()}\n" for table in tables), end="")
        if descriptives is not None:
            typer.echo()
            describing.show(descriptives)


def _check_asked(request: Request, *, coefficients: bool) -> None:
    """Raise for options of a table without `--coefficients`."""
    if request != Request() and not coefficients:
        raise InvalidParameter(
            "site effects, robust errors, heterogeneity, ridge and level: expected --coefficients with them; add it"
        )


def _tables(fit: Fit, prepared: Prepared, request: Request) -> list[Coefficients]:
    """Return the regression table of each numeric outcome."""
    outcomes = () if fit.study is None else fit.study.numeric_outcomes
    # Their moments are only computed for figures by site.
    clients = None if fit.total is None else [each for each in prepared.clients if each.name in fit.contributors]
    return [
        fit.coefficients(clients=clients, **asdict(replace(request, outcome=outcome)))
        for outcome in outcomes or (None,)
    ]


def _check_study(prepared: Prepared, *, wanted: bool) -> None:
    """Raise if descriptives are wanted of data that no study describes."""
    if wanted and prepared.study is None:
        raise InvalidParameter(
            f"--describe: expected a table under a study, which has kinds and units, got {prepared.data.name}; name a "
            "study with --study"
        )


def _described(prepared: Prepared, fit: Fit) -> TableOne:
    """Return the descriptives of the contributors' rows for training, from their moments."""
    study = prepared.study
    assert study is not None
    about: dict[str, Any] = {"classes": study.targets.classes, "columns": study.sent}
    contributors = [client for client in prepared.clients if client.name in fit.contributors]
    return table_one.describe(study, ((each.name, ClientSide(each, **about).moments()) for each in contributors))


def _check_target(save: Path, *, force: bool) -> None:
    """Raise before anything is computed if the file cannot be written, or exists and must not be overwritten."""
    if not save.absolute().parent.is_dir():
        raise InvalidParameter(f"cannot write {save}: there is no folder {save.parent}")
    if save.is_dir():
        raise InvalidParameter(f"cannot write {save}: it is a folder")
    check_free("--save", save, force=force)


@contextmanager
def _results_in(folder: Path | None, running: options.Running, errors: Console) -> Iterator[Kept | None]:
    """Open the results of a folder to add to them; None without a folder."""
    if folder is None:
        yield None
        return
    with running.sole_writer(folder, errors), Kept(folder / RESULTS, already_in(folder / RESULTS, errors)) as kept:
        yield kept


def _show(fit: Fit, evaluation: Evaluation, prepared: Prepared) -> None:
    clients, data = prepared.clients, prepared.data
    table = Table(title=f"{fit.method} on {one_line(data.name)}", title_justify="left", box=None, pad_edge=False)
    table.show_header = False
    taken_part = f"{len(fit.contributors)} of {len(clients)} contributed"
    table.add_row("clients", taken_part + one_line(_why_not(fit)))
    samples = sum(len(client.x) for client in clients)
    kind = f"of {', '.join(prepared.units)}" if prepared.units else f"in {len(data.classes)} classes"
    table.add_row("samples", f"{samples:,} for training {kind}")
    if not evaluation:
        table.add_row("errors" if prepared.units else "accuracy", "no test samples")
    else:
        for name, value in _figures(evaluation, prepared):
            table.add_row(one_line(name), value)
        for name, reason in list(evaluation.failed.items())[:3]:
            table.add_row("not tested", one_line(f"{name}: {reason}"))
        if evaluation.untested:
            table.add_row("", f"{evaluation.untested} clients without test samples are left out of the mean")
        if evaluation.few and prepared.tested_by_clients and not prepared.units:
            table.add_row("", few_clients(evaluation.few, len(evaluation.by_client)) + " in the mean")
    per_client = max(len(fit.traffic.by_client), 1)
    for direction, total in (("up", fit.traffic.up), ("down", fit.traffic.down)):
        table.add_row(f"traffic {direction}", f"{total:,} bytes, {total // per_client:,} a client")
    for direction, total in fit.carried.items():
        table.add_row("", f"{total:,} bytes {direction} as {fit.engine} counts them, evaluation included")
    table.add_row("time", f"{fit.seconds:.2f} s on {fit.engine}")
    terminal.console().print(table)


def _figures(evaluation: Evaluation, prepared: Prepared) -> Iterator[tuple[str, str]]:
    """Yield the names of the models' scores, with the scores as text."""
    if evaluation.kind is NumericErrors:
        for name, errors in evaluation.pooled.items():
            unit = one_line(f" {prepared.units[name]}" if prepared.units[name] else "")
            yield f"RMSE of {name}", f"[b]{errors.rmse:.4g}[/]{unit}, MAE {errors.mae:.4g}{unit}, R² {errors.r2:.4f}"
        return
    summary = evaluation.summary()
    # With one common test set, there is one accuracy: the mean of the clients' is the same number.
    for name, value in (summary if prepared.tested_by_clients else {TEST_SET: summary["pooled"]}).items():
        yield f"accuracy, {name.replace('_', ' ')}", f"[b]{value:.2%}[/]"
    if known := evaluation.probabilities:
        yield "probabilities", f"Brier score {known.brier:.4f}, calibration error {known.error:.4f}"


def _show_sites(judged: Judged) -> None:
    """Print how well the model of the other parties predicts each one, or why that is not known."""
    if judged.validation is not None and judged.validation.left_out:
        terminal.echo(f"\nparties were not left out in turn to see how well they fit: {judged.validation.left_out}")
    if tables := site_tables(judged.validation, judged.outcomes):
        typer.echo()
        print_tables(tables)


def _why_not(fit: Fit) -> str:
    reasons = [f"{name}: {reason}" for name, reason in fit.absent.items()]
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    return f" ({shown})" if reasons else ""
