"""`fedgram evaluate`: the scores of a model of a study on a table with the outcome."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedgram.cli.summarize import DecimalOption, JsonOption, OnBadOption, ThousandsOption
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.exchange.rounds.party_side import model_of
from fedgram.studies import Notation, open_table
from fedgram.studies.model import Judged, StudyModel, judge


def evaluate(
    model: Annotated[Path, typer.Argument(help="A .fgm file of a model, a fit, or a model that a node kept.")],
    table: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the outcome.", show_default=False)],
    client: Annotated[str | None, typer.Option(help="Use the personal model of this client of a fit.")] = None,
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    on_bad: OnBadOption = "refuse",
    as_json: JsonOption = False,
) -> None:
    """Score a model on rows that it was not made from: accuracy and probabilities, or errors of numbers.

    Brier score and calibration error are best at 0.

    Example:
      fedgram evaluate mine.fgm held-out.csv

    """
    scorer = model_of(model, client)
    if not isinstance(scorer, StudyModel):
        raise InvalidParameter(
            f"{model} holds a model without a study: `fedgram predict {model} DATA` says how many labels are right"
        )
    judged = judge(scorer, open_table(table, Notation(decimal, thousands)), on_bad=on_bad)
    if as_json:
        typer.echo(json.dumps(judged.fields()))
    else:
        _show(judged)


def _show(judged: Judged) -> None:
    console = terminal.console(highlight=False)
    console.print(f"{judged.samples:,} samples")
    if judged.classes is not None:
        console.print(f"accuracy           {judged.accuracy:.2%} (the most frequent class alone: {judged.usual:.2%})")
        console.print(f"Brier score        {judged.brier:.4f}")
        console.print(f"calibration error  {judged.calibration:.4f}")
        table = Table("class", "samples", "right", box=None, header_style="bold", pad_edge=False)
        for label, (count, right) in judged.classes.items():
            table.add_row(escape(label), f"{count:,}", f"{right:,}" + (f" ({right / count:.1%})" if count else ""))
        console.print(table)
    if judged.errors is not None:
        table = Table("outcome", "RMSE", "MAE", "R²", box=None, header_style="bold", pad_edge=False)
        for name, errors in judged.errors.items():
            table.add_row(escape(name), f"{errors.rmse:.4g}", f"{errors.mae:.4g}", f"{errors.r2:.4f}")
        console.print(table)
