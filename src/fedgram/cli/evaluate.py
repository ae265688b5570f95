"""`fedgram evaluate`: the scores of a model of a study on a table with the outcome."""

import json
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgram.cli.output_files import Force, check_free, check_output
from fedgram.cli.summarize import DecimalOption, JsonOption, OnBadOption, ThousandsOption
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.core.filesystem import writing
from fedgram.core.terminal import one_line
from fedgram.exchange.rounds.party_side import model_of
from fedgram.inference.binary_predictions import Estimate, EventScores
from fedgram.studies import Notation, open_table
from fedgram.studies.model import Judged, StudyModel, judge


def evaluate(
    model: Annotated[Path, typer.Argument(help="A .fgm file of a model, a fit, or a model that a node kept.")],
    table: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the outcome.", show_default=False)],
    client: Annotated[str | None, typer.Option(help="Use the personal model of this client of a fit.")] = None,
    event: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="The class whose probability is judged. Default: the last of two classes."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="The event is predicted from this probability on.", show_default="0.5"),
    ] = None,
    level: Annotated[float, typer.Option(help="The confidence level of intervals.")] = 0.95,
    plot: Annotated[
        Path | None, typer.Option(help="Write a calibration plot of the event to this .svg, .pdf or .png file.")
    ] = None,
    decimal: DecimalOption = ".",
    thousands: ThousandsOption = "",
    on_bad: OnBadOption = "refuse",
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Score a model on rows that it was not made from, with confidence intervals.

    Classes: accuracy, AUROC, sensitivity, specificity, predictive values, Brier score and calibration. Numbers: RMSE,
    MAE and R², in the outcome's unit.

    Examples:
      fedgram evaluate mine.fgm held-out.csv

      fedgram evaluate mine.fgm held-out.csv --event ill --threshold 0.2 --plot calibration.svg

    """
    scorer = model_of(model, client)
    if not isinstance(scorer, StudyModel):
        raise InvalidParameter(
            f"{model} holds a model without a study: `fedgram predict {model} DATA` says how many labels are right"
        )
    if plot is not None:
        _check_plot(plot, scorer, event, model, table, force=force)
    judged = judge(
        scorer,
        open_table(table, Notation(decimal, thousands)),
        on_bad=on_bad,
        event=event,
        threshold=threshold,
        level=level,
    )
    if as_json:
        typer.echo(json.dumps(judged.fields()))
    else:
        _show(judged)
    if plot is not None:
        _draw(plot, judged)
        if not as_json:
            terminal.console(soft_wrap=True, highlight=False).print(one_line(f"wrote {plot}"))


def _check_plot(plot: Path, model: StudyModel, event: str | None, *inputs: Path, force: bool) -> None:
    """Raise before anything is computed if the plot cannot be drawn."""
    from fedgram.report.plots import FORMATS  # which few need

    if plot.suffix.lower() not in FORMATS:
        raise InvalidParameter(f"--plot: expected a name that ends in {', '.join(FORMATS)}, got {plot}; give another")
    if not model.study.classes:
        raise InvalidParameter("--plot: expected a model of classes, got one of a numeric outcome; leave --plot out")
    if event is None and len(model.classes) > 2:
        raise InvalidParameter(
            f"--plot: expected --event, because there are {len(model.classes)} classes, got none; name one"
        )
    check_output("--plot", plot, *inputs)
    check_free("--plot", plot, force=force)
    require("matplotlib", "plot", "drawing plots")


def _draw(plot: Path, judged: Judged) -> None:
    from fedgram.report.plots import write_calibration

    assert judged.event is not None
    assert judged.event_scores is not None
    with writing(plot):
        write_calibration(plot, judged.event_scores.groups, judged.event, judged.level)


def _show(judged: Judged) -> None:
    console = terminal.console(highlight=False, soft_wrap=True)
    console.print(f"{judged.samples:,} samples, {100 * judged.level:.4g} % confidence intervals")
    if judged.classes is not None:
        _show_classes(console, judged)
    if judged.event_scores is not None:
        _show_event(console, judged, judged.event_scores)
    if judged.errors is not None:
        _show_errors(console, judged)


def _show_classes(console: Console, judged: Judged) -> None:
    assert judged.classes is not None
    console.print(f"accuracy           {judged.accuracy:.2%} (the most frequent class alone: {judged.usual:.2%})")
    console.print(f"Brier score        {judged.brier:.4f} over all classes")
    console.print(f"calibration error  {judged.calibration:.4f}")
    areas = judged.auroc or {}
    several = len(judged.classes) > 2
    heads = ["class", "samples", "right", *(["AUROC against the rest"] if several else [])]
    table = Table(*heads, box=None, header_style="bold", pad_edge=False)
    for label, (count, right) in judged.classes.items():
        own = [_told(areas[label])] if several else []
        table.add_row(escape(label), f"{count:,}", f"{right:,}" + (f" ({right / count:.1%})" if count else ""), *own)
    console.print(table)
    if several and judged.macro is not None:
        undefined = sum(area.value is None for area in areas.values())
        left_out = f", {undefined} of {len(areas)} classes left out" if undefined else ""
        console.print(f"mean AUROC of the classes  {judged.macro:.4f}{left_out}")
    _explain(console, areas if several else {})


def _show_event(console: Console, judged: Judged, scores: EventScores) -> None:
    rule = f"predicted from probability {scores.threshold:g} on"
    console.print()
    console.print(one_line(f"event: {judged.event} ({rule}; --event and --threshold choose others)"))
    hits, missed, alarms, rejected = scores.hits, scores.missed, scores.false_alarms, scores.rejected
    rows = (
        ("AUROC", scores.auroc, ""),
        ("sensitivity", scores.sensitivity, f"{hits:,} of {hits + missed:,}"),
        ("specificity", scores.specificity, f"{rejected:,} of {rejected + alarms:,}"),
        ("PPV", scores.ppv, f"{hits:,} of {hits + alarms:,}"),
        ("NPV", scores.npv, f"{rejected:,} of {rejected + missed:,}"),
        ("Brier score of the event", Estimate(scores.brier), "0 is best"),
        ("calibration in the large", scores.intercept, "0 is best"),
        ("calibration slope", scores.slope, "1 is best"),
    )
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, found, beside in rows:
        table.add_row(name, _told(found), beside)
    console.print(table)
    _explain(console, {name: found for name, found, _ in rows})
    groups = Table("predicted", "observed", "samples", box=None, header_style="bold", pad_edge=False)
    for group in scores.groups:
        groups.add_row(f"{group.predicted:.3f}", _told(group.observed), f"{group.samples:,}")
    console.print()
    console.print("calibration by tenths of the probability")
    console.print(groups)


def _show_errors(console: Console, judged: Judged) -> None:
    assert judged.errors is not None
    assert judged.units is not None
    assert judged.intervals is not None
    table = Table("outcome", "measure", "value", "interval", box=None, header_style="bold", pad_edge=False)
    for name, errors in judged.errors.items():
        unit = f" {judged.units[name]}" if judged.units[name] else ""
        shown = {
            "RMSE": f"{errors.rmse:.4g}{unit}",
            "MAE": f"{errors.mae:.4g}{unit}",
            "R²": "none" if isnan(errors.r2) else f"{errors.r2:.4f}",
        }
        for (measure, text), ends in zip(shown.items(), judged.intervals[name].values(), strict=True):
            interval = "none" if ends is None else f"{ends[0]:.4g} to {ends[1]:.4g}"
            table.add_row(escape(name), measure, escape(text), interval)
    console.print(table)
    if judged.resamples:
        console.print(f"intervals: percentiles of {judged.resamples:,} bootstrap resamples of the rows")


def _told(found: Estimate) -> str:
    """Return a figure with its interval."""
    if found.value is None:
        return "none"
    interval = "" if found.low is None or found.high is None else f" ({found.low:.4f} to {found.high:.4f}, {found.how})"
    return f"{found.value:.4f}{interval}"


def _explain(console: Console, estimates: Mapping[str, Estimate]) -> None:
    """Print why figures are missing, or have another interval than the usual one."""
    reasons: dict[str, list[str]] = {}
    for name, found in estimates.items():
        if found.why:
            told = f"not defined ({found.why})" if found.value is None else f"{found.why}; {found.how}'s was taken"
            reasons.setdefault(told, []).append(name)
    for told, names in reasons.items():
        console.print(one_line(f"{', '.join(names)}: {told}"))
