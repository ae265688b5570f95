"""`fedgram compare`: many methods in many settings, from a file or from options."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgram.cli.report import PAGE, RESULTS, show_tables
from fedgram.cli.watching import watching
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import echo, one_line
from fedgram.engines import InProcess
from fedgram.experiments import Experiment, Run, execute, finished, read_file, runs_of
from fedgram.experiments.journal import heal
from fedgram.experiments.lock import only_writer
from fedgram.experiments.results import load_results
from fedgram.experiments.variants import from_options, show
from fedgram.report.page import write_page


def compare(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; options below take precedence.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, as for [b]fedgram run[/].")] = None,
    backbone: Annotated[str | None, typer.Option(help="Frozen backbone that makes the features.")] = None,
    samples: Annotated[int | None, typer.Option(help="Use only so many of the samples.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column of your table.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column that names each sample's client.")] = None,
    clients: Annotated[str | None, typer.Option(help="Numbers of clients, with commas.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partitions, with commas: dirichlet:0.1,iid.")] = None,
    shift: Annotated[
        str | None, typer.Option(help="Each client's own change of its images: camera:STRENGTH, rotation:DEGREES.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, with commas: afl,local; also your own file.py, or module:Class.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A hyper-parameter, or several values with commas."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, with commas.")] = None,
    test: Annotated[str | None, typer.Option(help="local, standard (as for [b]fedgram run[/]) or held-out.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Share of each client's samples held back.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results and the page.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Clients that work side by side (default: as many as pay off); same result.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is there; repeat nothing.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away the results that are there.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for another comparison that writes to the folder; else stop at once.")
    ] = False,
) -> None:
    """Compare methods, and end with a table and a page.

    Results go to results.jsonl as each run ends, so an interrupted comparison goes on with --resume.
    One comparison at a time writes to a folder; [b]fedgram report[/] may read it at any time.

    Examples:
      fedgram compare examples/digits.toml

      fedgram compare --data digits --clients 10,50 --partition dirichlet:0.1,iid --methods afl,local --seeds 0,1,2

      fedgram compare --data digits --methods afl --set afl.ri=false --set afl.gamma=0.1,1,10 --dry-run

    """
    if set_ and methods is None:
        raise InvalidParameter("--set needs --methods; in a file, write the hyper-parameter beside the method's name")
    options: dict[str, Any] = {
        "data": data,
        "backbone": backbone,
        "samples": samples,
        "label_column": label,
        "client_column": client_column,
        "clients": _numbers("clients", clients),
        "partitions": partition and _pieces(partition),
        "shift": shift,
        "methods": methods and from_options(_pieces(methods), set_ or []),
        "seeds": _numbers("seeds", seeds),
        "test": test,
        "test_fraction": test_fraction,
    }
    given = {key: value for key, value in options.items() if value is not None}
    engine = InProcess() if workers is None else InProcess(workers=workers)
    experiment = Experiment.of((read_file(file) if file else {}) | given)
    runs = list(runs_of(experiment))
    if dry_run:
        _show_runs(runs)
        return
    folder = out or Path("results") / (file.stem if file else "compare")
    console = terminal.console(stderr=True, highlight=False, soft_wrap=True)

    def told(busy: str) -> None:
        console.print(f"waiting: {one_line(busy)}")

    with only_writer(folder, wait=told if wait else None):
        _run(experiment, runs, folder, console, resume=resume, overwrite=overwrite, engine=engine)


def _run(
    experiment: Experiment,
    runs: list[Run],
    folder: Path,
    console: Console,
    *,
    resume: bool,
    overwrite: bool,
    engine: InProcess,
) -> None:
    path = folder / RESULTS
    done = None
    if path.exists() and path.stat().st_size and not overwrite:
        if not resume:
            raise InvalidParameter(
                f"{path} has results already: go on with --resume, or throw them away by --overwrite"
            )
        if healed := heal(path):
            console.print(f"[yellow]warning:[/] {one_line(healed)}")
        done, damaged = finished(path)
        for damage in damaged:
            console.print(f"[yellow]warning:[/] {one_line(damage)}; left out")
    try:
        with watching(runs, done.keys if done else frozenset(), console) as watcher:
            outcome = execute(runs, path, done=done, watcher=watcher, engine=engine, title=experiment.title)
    except KeyboardInterrupt:
        console.print(f"[yellow]interrupted:[/] what is finished is kept in {one_line(path)}; go on with --resume")
        raise typer.Exit(130) from None
    for data, used in outcome.used.items():
        console.print(f"{one_line(data)}: {one_line(used)}")
    for message, count in outcome.warnings.items():
        console.print(f"[yellow]warning:[/] {one_line(message)} ({count} run{'s' * (count != 1)})")
    labels = {run.key: run.label for run in runs}
    results = load_results([path], labels)
    if others := sum(run.key not in labels for run in results.runs):
        console.print(f"{one_line(path)} also holds {others} run{'s' * (others != 1)} of other experiments")
    page = write_page(results, folder / PAGE, title=experiment.title)
    show_tables(results, "client_mean")
    console.print(f"\nresults  {one_line(path)}\npage     {one_line(page)}")
    if outcome.failed:
        for what, error in outcome.failed.items():
            console.print(f"[red]failed:[/] {one_line(what)}: {one_line(error)}")
        console.print(f"{len(outcome.failed)} of {outcome.done} runs failed; --resume tries them again")
        raise typer.Exit(1)


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(piece) for piece in _pieces(text)]
    except ValueError:
        raise InvalidParameter(f"--{name} takes whole numbers with commas, got {text!r}") from None


def _show_runs(runs: list[Run]) -> None:
    for run in runs:
        settings = ", ".join(f"{name}={show(value)}" for name, value in run.settings.items())
        echo(f"{run.key}  {run.setting.describe()}  {run.label}: {settings}")
    echo(f"{len(runs)} runs, {sum(run.method is None for run in runs)} of them the centralised reference")
