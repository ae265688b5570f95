"""`fedgram coefficients`: the regression table of all who have joined."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.output_files import Force
from fedgram.cli.store_options import Json, StoreFolder, Wait, check_targets, existing, write_page
from fedgram.cli.table_options import HeterogeneityOption, Level, Ml, RidgeOption, Robust, SiteEffectsOption, request_of
from fedgram.core.errors import InvalidParameter
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.progress_bars import count_bar
from fedgram.core.terminal import echo
from fedgram.exchange.pages.coefficients_page import coefficients_page
from fedgram.exchange.store.store_table import table_of
from fedgram.exchange.store.study_store import Store


def coefficients(
    store: StoreFolder,
    study: Annotated[Path | None, typer.Option(help="Refuse a store of another study than this file's.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="The published regression to print: logistic or poisson. Default: a linear one, or if the outcome has "
            "classes the last that was published."
        ),
    ] = None,
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
    html: Annotated[
        Path | None,
        typer.Option(help="Also write it as one page that works offline, with forest plots where sites can be seen."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="The coefficients as CSV, with all digits.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="The coefficients as a LaTeX table.")] = False,
    force: Force = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Print the regression table of all contributions: coefficients, standard errors, tests and intervals.

    The table is exact: that of all rows in one place. A numeric outcome has a linear model, for which no party is asked
    again: choose any columns of the study, and site effects. Logistic and Poisson regressions are published first,
    round by round: fedgram publish --method logistic.

    Examples:
      fedgram coefficients store/

      fedgram coefficients store/ --columns age,sex --site-effects random

      fedgram coefficients store/ --method poisson --level 0.99

      fedgram coefficients store/ --robust site --heterogeneity --csv --out table.csv

      fedgram coefficients store/ --html table.html

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
    check_targets({"--out": out, "--html": html}, store, force=force)
    kept = existing(store, wait=wait, study=study)
    entry = kept.index.last()
    if html is not None and method is None and _shows_sites(kept):
        request = replace(request, heterogeneity=request.ridge is None)
    with count_bar("reading contributions", len(kept.contributions()), transient=True) as progress:
        table = table_of(kept, request, method=method, progress=progress)
    if html is not None:
        write_page(html, coefficients_page(table, study=kept.terms.study, entry=entry), kept, entry)
    if as_json:
        text = json.dumps(table.to_dict(), allow_nan=False) + "\n"
    else:
        text = table.to_csv() if as_csv else table.to_latex() if as_latex else f"{table.text()}\n"
    if out is None:
        echo(text, end="")
        return
    with writing(out):
        replace_file(out, text.encode())


def _shows_sites(kept: Store) -> bool:
    """Return whether a linear model of the store can compare sites; a region has one sum of its own only."""
    study, contributions = kept.terms.study, kept.contributions()
    numeric = study is not None and not study.classes
    return numeric and len(contributions) > 1 and all(each.kind != "combined" for each in contributions)
