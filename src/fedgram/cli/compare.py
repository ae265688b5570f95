"""`fedgram compare`: many methods in many scenarios, from a file or from options."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgram.cli import options
from fedgram.cli.options import Pace, already_in, duration, watching
from fedgram.cli.report import PAGE, RESULTS, show_tables, tell_outdated
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import echo, one_line
from fedgram.experiments import Experiment, Loader, Run, execute, read_file, runs_of
from fedgram.experiments.results import Result, load_results, read_results
from fedgram.experiments.variants import from_options, show
from fedgram.protocol.method import Engine, Require
from fedgram.report.metrics import chosen
from fedgram.report.report_page import write_page


@options.shared
def compare(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; options below take precedence.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, with commas: afl,local; also your own file.py, or module:Class. "
            "Methods that FILE names keep their settings from there; others get their defaults."
        ),
    ] = None,
    *,
    settings: dict[str, Any],
    running: options.Running,
    clients: Annotated[str | None, typer.Option(help="Numbers of clients, with commas.")] = None,
    partition: Annotated[
        str | None, typer.Option(help=f"How the data is spread, with commas: {options.PARTITIONS}")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, with commas.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A hyper-parameter, or several values with commas."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results and the page.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the runs and stop. Runs that are finished in --out tell how long the others take."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is there; repeat nothing.")] = False,
    skip_failed: Annotated[
        bool,
        typer.Option(
            "--skip-failed", help="With --resume, repeat no run that failed, unless its data could not be prepared."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away the results that are there.")] = False,
) -> None:
    """Compare methods, and end with a table and a page.

    Results go to results.jsonl as each run ends, so an interrupted comparison goes on with --resume.
    One comparison at a time writes to a folder; [b]fedgram report[/] may read it at any time.

    Examples:
      fedgram compare examples/digits.toml

      fedgram compare examples/digits.toml --methods local,fedgram

      fedgram compare --data digits --clients 10,50 --partition dirichlet:0.1,iid --methods afl,local --seeds 0,1,2

      fedgram compare --data digits --methods afl --set afl.ri=false --set afl.gamma=0.1,1,10 --dry-run

      fedgram compare --data patients.csv --outcome diagnosis --client-column hospital --methods fedgram,local

    """
    if skip_failed and not resume:
        raise InvalidParameter("--skip-failed needs --resume: without it nothing has failed yet")
    experiment = described(file, methods, settings, clients, partition, seeds, set_, running.require)
    loader = Loader()
    runs = list(runs_of(experiment, loader))
    folder = out or Path("results") / (file.stem if file else "compare")
    if dry_run:
        _show_runs(runs, folder / RESULTS)
        return
    console = terminal.console(stderr=True, highlight=False, soft_wrap=True)
    with running.sole_writer(folder, console):
        how = {"resume": resume, "skip_failed": skip_failed, "overwrite": overwrite}
        _run(experiment, runs, folder, console, **how, engine=running.engine, loader=loader)


def described(
    file: Path | None,
    methods: str | None,
    settings: dict[str, Any],
    clients: str | None,
    partition: str | None,
    seeds: str | None,
    set_: Sequence[str] | None,
    require: Require | None,
) -> Experiment:
    """Return the experiment that a file and options describe."""
    if set_ and methods is None:
        raise InvalidParameter("--set needs --methods; in a file, write the hyper-parameter beside the method's name")
    table = read_file(file) if file else {}
    others = {
        "clients": _numbers("clients", clients),
        "partitions": partition and _pieces(partition),
        "methods": methods and from_options(_pieces(methods), set_ or [], table.get("methods", ())),
        "seeds": _numbers("seeds", seeds),
        "require": require,
    }
    return Experiment.of(table | settings | {key: value for key, value in others.items() if value is not None})


def _run(
    experiment: Experiment,
    runs: list[Run],
    folder: Path,
    console: Console,
    *,
    resume: bool,
    skip_failed: bool,
    overwrite: bool,
    engine: Engine,
    loader: Loader,
) -> None:
    path = folder / RESULTS
    done = None
    if path.exists() and path.stat().st_size and not overwrite:
        if not resume:
            raise InvalidParameter(
                f"{path} has results already: go on with --resume, or throw them away by --overwrite"
            )
        done = already_in(path, console)
        if skip_failed:
            done = replace(done, keys=done.keys | done.failed)
    try:
        with watching(runs, done.keys if done else frozenset(), console) as watcher:
            title = experiment.title
            outcome = execute(runs, path, done=done, watcher=watcher, engine=engine, title=title, loader=loader)
    except KeyboardInterrupt:
        console.print(f"[yellow]interrupted:[/] what is finished is kept in {one_line(path)}; go on with --resume")
        raise typer.Exit(130) from None
    for data, used in outcome.used.items():
        console.print(f"{one_line(data)}: {one_line(used)}")
    for message, count in outcome.warnings.items():
        console.print(f"[yellow]warning:[/] {one_line(message)} ({count} run{'s' * (count != 1)})")
    labels = {run.key: run.label for run in runs}
    results = load_results([path], labels)
    if others := sum(run.key not in labels and not run.is_trivial for run in results.runs):
        console.print(f"{one_line(path)} also holds {others} run{'s' * (others != 1)} of other experiments")
    tell_outdated(results, console)
    page = write_page(results, folder / PAGE, title=experiment.title)
    show_tables(results, chosen(results, None))
    console.print(f"\nresults  {one_line(path)}\npage     {one_line(page)}")
    if outcome.failed:
        for error, (first, *more) in _by_error(outcome.failed).items():
            also = f" and {len(more)} more run{'s' * (len(more) != 1)}" if more else ""
            console.print(f"[red]failed:[/] {one_line(first)}{also}: {one_line(error)}")
        console.print(f"{len(outcome.failed)} of {outcome.done} runs failed; --resume tries them again")
        raise typer.Exit(1)


def _by_error(failed: dict[str, str]) -> dict[str, list[str]]:
    """Return the runs that failed by error: data that cannot be read fail every method alike."""
    runs: dict[str, list[str]] = {}
    for what, error in failed.items():
        runs.setdefault(error, []).append(what)
    return runs


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(piece) for piece in _pieces(text)]
    except ValueError:
        raise InvalidParameter(f"--{name} takes whole numbers with commas, got {text!r}") from None


def _show_runs(runs: list[Run], path: Path) -> None:
    for run in runs:
        settings = ", ".join(f"{name}={show(value)}" for name, value in run.settings.items())
        echo(f"{run.key}  {run.scenario.describe()}  {run.label}: {settings}")
    echo(f"{len(runs)} runs, {sum(run.method is None for run in runs)} of them the centralised reference")
    echo(_outlook(runs, path))


def _outlook(runs: list[Run], path: Path) -> str:
    """Return how long the runs will take, by those that have finished; methods are not guessed from other methods."""
    lines = read_results(path) if path.exists() else ()
    finished = [line for line in lines if isinstance(line, Result) and line.error is None]
    if not finished:
        return f"time: unknown, since no run is finished in {path}"
    pace, done = Pace(), {run.key for run in finished}
    for run in finished:
        if run.total_seconds is not None:
            pace.add(run, run.total_seconds)
    left = [run for run in runs if run.key not in done]
    known = {run.key: seconds for run in left if isfinite(seconds := pace.of(run))}
    strangers = list(dict.fromkeys(run.label for run in left if run.key not in known))
    parts = [f"{len(runs) - len(left)} of {len(runs)} runs are finished in {path}"]
    if known:
        parts.append(f"{len(known)} more take about {duration(sum(known.values()))}, as those of the same methods did")
    if strangers:
        parts.append(f"the time of {len(left) - len(known)} is unknown: none of {', '.join(strangers)} is finished")
    return "; ".join(parts)
