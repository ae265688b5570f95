"""`fedgram coefficients`: the regression table of all who have joined."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.output_files import Force, check_free
from fedgram.cli.store_options import Json, StoreFolder, Wait, check_outside, existing
from fedgram.cli.table_options import HeterogeneityOption, Level, Ml, RidgeOption, Robust, SiteEffectsOption, request_of
from fedgram.core.errors import InvalidParameter
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.progress_bars import count_bar
from fedgram.core.terminal import echo
from fedgram.exchange.store.store_table import table_of


def coefficients(
    store: StoreFolder,
    study: Annotated[Path | None, typer.Option(help="Refuse a store of another study than this file's.")] = None,
    outcome: Annotated[str | None, typer.Option(help="The outcome, in a study with several.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="The model's columns, with commas; '' for the intercept alone. Default: all."),
    ] = None,
    site_effects: SiteEffectsOption = "none",
    ml: Ml = False,
    robust: Robust = None,
    heterogeneity: HeterogeneityOption = False,
    ridge: RidgeOption = None,
    level: Level = 0.95,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file instead of printing it.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="The coefficients as CSV, with all digits.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="The coefficients as a LaTeX table.")] = False,
    force: Force = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Print the regression table of all contributions: coefficients, standard errors, tests and intervals.

    It is exact, the table of all rows in one place, and no party is asked again: any columns of the study can be
    chosen, and sites can have effects. The outcome of the study must be a number.

    Examples:
      fedgram coefficients store/

      fedgram coefficients store/ --columns age,sex --site-effects random

      fedgram coefficients store/ --robust site --heterogeneity --csv --out table.csv

    """
    request = request_of(
        outcome=outcome,
        columns=columns,
        site_effects=site_effects,
        ml=ml,
        robust=robust,
        heterogeneity=heterogeneity,
        ridge=ridge,
        level=level,
    )
    forms = [name for name, chosen in (("--csv", as_csv), ("--latex", as_latex), ("--json", as_json)) if chosen]
    if len(forms) > 1:
        raise InvalidParameter(f"{' and '.join(forms)}: expected one form of the table, got {len(forms)}; choose one")
    if out is not None:
        check_outside("--out", out, store)
        check_free("--out", out, force=force)
    kept = existing(store, wait=wait, study=study)
    with count_bar("reading contributions", len(kept.contributions()), transient=True) as progress:
        table = table_of(kept, request, progress=progress)
    if as_json:
        text = json.dumps(table.to_dict(), allow_nan=False) + "\n"
    else:
        text = table.to_csv() if as_csv else table.to_latex() if as_latex else f"{table.text()}\n"
    if out is None:
        echo(text, end="")
        return
    with writing(out):
        replace_file(out, text.encode())
