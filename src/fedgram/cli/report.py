"""`fedgram report`: tables, plots and a page from results. Nothing is computed again."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement

from fedgram.cli.output_files import Force, check_free
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter, MissingExtra
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.terminal import echo, one_line
from fedgram.experiments.results import Results, load_results
from fedgram.report import formats
from fedgram.report.metrics import chosen
from fedgram.report.plots import write_plots
from fedgram.report.report_page import render_page, write_page
from fedgram.report.result_tables import (
    Table,
    accuracy_table,
    beside_table,
    cost_table,
    reach_tables,
    round_table,
    tables_by_column,
    test_table,
    time_table,
    with_names,
)

Tables = StrEnum("Tables", ["figures", "beside", "tests", "costs", "rounds", "time", "reach", "parties"])
RESULTS, PAGE = "results.jsonl", "report.html"  # what a comparison's folder holds


class PaperWidth(StrEnum):
    """The widths of a paper."""

    column = "column"
    text = "text"


class Format(StrEnum):
    """Formats of a table."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


def report(
    results: Annotated[list[Path], typer.Argument(help="One or more results.jsonl, or the folders that hold them.")],
    metric: Annotated[
        str | None,
        typer.Option(
            help="What the tables show: client_mean, pooled, worst_decile, best_round, brier or calibration_error; for "
            "numeric outcomes rmse, mae, r2 or client_rmse, or rmse:NAME of one of several. Default: client_mean, rmse."
        ),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.terminal,
    table: Annotated[
        Tables | None,
        typer.Option(
            help="Print this table alone: figures, beside (related figures), tests (paired, against the best), costs, "
            "rounds, time, reach (costs to reach an accuracy), or parties (left out in turn)."
        ),
    ] = None,
    width: Annotated[
        PaperWidth | None,
        typer.Option(
            help="Make LaTeX tables and plots fit a paper: column (3.4 inches) or text (7 inches). Default: as wide as "
            "they need."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the page, the tables in all formats and the plots (PDF, PNG, SVG) to this folder."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    force: Force = False,
) -> None:
    """Make tables, plots and a page from results; nothing is computed again.

    Examples:
      fedgram report results/digits

      fedgram report results/digits/results.jsonl --metric worst_decile --format latex > table.tex

      fedgram report results/digits --table figures --format latex --width column > table.tex

      fedgram report results/*/results.jsonl --out report

    """
    errors = terminal.console(stderr=True, highlight=False, soft_wrap=True)
    results = [path / RESULTS if path.is_dir() else path for path in results]
    found = load_results(results)
    metric = chosen(found, metric)
    for damage in found.damaged:
        errors.print(f"[yellow]warning:[/] {one_line(damage)}; left out")
    tell_outdated(found, errors)
    name = title or found.title or results[0].resolve().parent.name
    if table is not None and (out is not None or format_ in (Format.csv, Format.html)):
        other = "--out, which writes all tables" if out is not None else f"--format {format_}, which has all figures"
        raise InvalidParameter(f"--table: expected --format terminal, markdown or latex, got {other}; leave one out")
    if out is not None:
        check_free("--out", out, force=force)
        _write_all(found, metric, out, name, errors, width)
        return
    match format_:
        case Format.terminal:
            print_tables(_tables(found, metric) if table is None else _chosen(found, metric, table))
        case Format.html:
            echo(render_page(found, title=name, metric=metric))
        case _:
            echo(_text(found, metric, format_, table, width), end="")


def tell_outdated(results: Results, console: Console) -> None:
    """Say how many runs are left out because their methods compute something else by now."""
    if n := results.outdated:
        console.print(f"{n} run{'s' * (n != 1)} of older revisions of the methods left out")


def show_tables(results: Results, metric: str) -> None:
    """Print the figures and the costs."""
    print_tables(_tables(results, metric))


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables; one that is too wide comes in parts."""
    console = terminal.console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000  # a file or a pipe has room
    for table in tables:
        if not table.rows:
            continue
        whole = formats.terminal(table)
        needed = Measurement.get(console, console.options.update(max_width=10_000), whole).maximum
        for part in [whole] if needed <= console.width else map(formats.terminal, table.split()):
            console.print(part)
            console.print()


def _write_all(
    results: Results, metric: str, folder: Path, title: str, errors: Console, width: PaperWidth | None
) -> None:
    with writing(folder, InvalidParameter):
        folder.mkdir(parents=True, exist_ok=True)
        echo(write_page(results, folder / PAGE, title=title, metric=metric))
        for format_, ending in ((Format.markdown, "md"), (Format.csv, "csv"), (Format.latex, "tex")):
            path = folder / f"table.{ending}"
            replace_file(path, _text(results, metric, format_, None, width).encode())
            echo(path)
        try:
            for path in write_plots(results, folder, metric, None if width is None else width.value):
                echo(path)
        except MissingExtra as missing:
            errors.print(f"[yellow]warning:[/] {one_line(missing)}")


def _text(results: Results, metric: str, format_: Format, table: Tables | None, width: PaperWidth | None) -> str:
    if format_ is Format.csv:
        return formats.comma_separated(results, metric)
    if format_ is Format.latex:
        results = with_names(results)
    tables = _all_tables(results, metric) if table is None else _chosen(results, metric, table)
    if format_ is Format.latex:
        return "\n".join(formats.latex(one, width) for one in tables if one.rows)
    return "\n".join(formats.markdown(one) for one in tables if one.rows)


def _tables(results: Results, metric: str) -> list[Table]:
    figures = [accuracy_table(results, metric), beside_table(results, metric), test_table(results, metric)]
    return [*figures, cost_table(results), round_table(results), time_table(results)]


def _all_tables(results: Results, metric: str) -> list[Table]:
    # What it takes to reach an accuracy is a table for each setting: too many for a terminal.
    sites = (table for tables in tables_by_column(results).values() for table in tables)
    return [*_tables(results, metric), *reach_tables(results, metric).values(), *sites]


def _chosen(results: Results, metric: str, name: Tables) -> list[Table]:
    """Return the tables of a name, one for each setting where there are several."""
    known = [table for table in _all_tables(results, metric) if table.rows]
    found = [table for table in known if table.name.partition("-")[0] == name]
    if not found:
        names = ", ".join(dict.fromkeys(table.name.partition("-")[0] for table in known))
        raise InvalidParameter(
            f"--table: expected one of {names}, got {name}, which these results lack; choose another"
        )
    return found
