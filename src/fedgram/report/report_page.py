"""The page: one HTML file that holds results, style and program, and loads nothing from the network."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from fedgram.core.errors import InvalidParameter
from fedgram.core.filesystem import replace_file, slug, writing
from fedgram.experiments.results import METRICS, Result, Results
from fedgram.experiments.variants import show
from fedgram.protocol.registry import registry
from fedgram.report import formats
from fedgram.report.charts import Chart, Index, Panel, Series, describe, known_clients, one_seed
from fedgram.report.metrics import Metric, beside, chosen, metric_in, metric_of, metrics_of
from fedgram.report.result_tables import (
    SITES_NOTE,
    TRIVIAL,
    Cell,
    Table,
    about,
    accuracy_caption,
    accuracy_table,
    capitalised,
    cells,
    marks,
    reach_tables,
    span_texts,
    tables_by_column,
    test_table,
    trivial,
    with_names,
)

_SCRIPTS = (
    "dom.js",
    "model.js",
    "address.js",
    "save.js",
    "axes.js",
    "marks.js",
    "table.js",
    "scatter.js",
    "lines.js",
    "strip.js",
    "heat.js",
    "reliability.js",
    "tiles.js",
    "sections.js",
    "main.js",
)
_STYLES = ("base.css", "controls.css", "tables.css", "charts.css", "screens.css")
# Most figures of single clients on a page. For more, bytes are given as a mean, and if need be the last ones are cut;
# further seeds are left out.
MOST_DETAILS = 300_000
# Entries of all matrices of methods together; further matrices are only mentioned as being in the results.
MOST_ENTRIES = 200_000
MOST_ROUNDS = 80
MOST_BANDS = 12_000  # points of bands around curves; further charts have curves alone


def write_page(results: Results, path: Path, *, title: str, metric: str | None = None) -> Path:
    """Write the page, whole or not at all, and return its path; `metric` is shown first."""
    page = render_page(results, title=title, metric=metric)
    with writing(path, InvalidParameter):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, page.encode(), mode=0o644)
    return path


def render_page(results: Results, *, title: str, metric: str | None = None) -> str:
    """Return the page as text."""
    from fedgram import __version__

    metric = chosen(results, metric)
    payload = json.dumps(_payload(results, metric), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        lede=escape(_lede(results)),
        version=escape(__version__),
        style="\n".join(map(_asset, _STYLES)),
        plain=formats.html(accuracy_table(results, metric)),
        # Inside a script element only "<" could end it; in JSON it may be written so.
        data=payload.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        script=script(),
    )


def script() -> str:
    """Return the page's program: the files of JavaScript, which share one scope of their own."""
    program = "\n".join(map(_asset, _SCRIPTS))
    return f'(() => {{\n"use strict";\n{program}}})();\n'


def _asset(name: str) -> str:
    return files("fedgram.report").joinpath("assets", name).read_text(encoding="utf-8")


def _lede(results: Results) -> str:
    columns = results.columns
    methods = len({run.label for run in results.runs if not run.reference})
    data = ", ".join(dict.fromkeys(about(column) for column in columns))
    tests = ", ".join(dict.fromkeys(_protocol(column) for column in columns))
    return f"{methods} method{'s' * (methods != 1)} on {data}. {tests}"


def _protocol(column: Any) -> str:
    if column.test == "standard":
        return "The global model is scored on the data set's own test set."
    if column.test == "held-out":
        return "The global model is scored on samples that no client has, the same ones in every setting."
    held = "some" if column.test_fraction is None else f"{column.test_fraction:.0%}"
    return f"Each client holds back {held} of its samples to test on."


def _payload(results: Results, metric: str) -> dict[str, Any]:
    index, keys = Index.of(results), metrics_of(results)
    return {
        "metric": metric,
        "numeric": any(run.is_numeric for run in results.runs),
        "dagger": TRIVIAL,
        "metrics": {key: _metric(results, key) for key in keys},
        "captions": {key: accuracy_caption(results, key) for key in keys},
        "tests": {key: _tests(results, key) for key in keys},
        "exports": {key: _exports(results, key) for key in keys},
        "methods": _methods(results, index),
        "columns": [
            {
                "group": group,
                "crowd": column.crowd,
                "spread": column.spread,
                "about": about(column),
                "seed": index.seed[column],
            }
            for column, group in zip(index.column, span_texts(list(index.column)), strict=True)
        ],
        "seeds": len({run.seed for run in results.runs}),
        "cells": _cells(results, index),
        "runs": [_run(run, index, [metric_of(key) for key in keys]) for run in results.runs],
        "charts": (charts := embedded(describe(results))),
        "others": _other_seeds(results, index, _size(charts)),
        "reach": {key: _reach(results, index, key) for key in METRICS},
        "sites": {index.column[column]: _sites(tables) for column, tables in tables_by_column(results).items()},
        "clients": known_clients(results, index),
        "failures": [[run.label, f"{_where(run)}, seed {run.seed}", run.error] for run in results.failed],
        "damaged": [f"{damage.path.name}, line {damage.line}: {damage.reason}" for damage in results.damaged],
        "facts": _facts(results),
    }


def _other_seeds(results: Results, index: Index, size: int) -> list[dict[str, Any]]:
    """Return the charts and clients of each other seed, with the seed by setting; as many as fit beside `size` figures.

    The charts that describe all seeds are not repeated.
    """
    figures, found = [metric_in(results, key) for key in metrics_of(results)], []
    for other in index.other_seeds(results):
        charts = embedded(one_seed(results, other, figures))
        size += _size(charts)
        if size > MOST_DETAILS:
            break
        seeds = [other.seed.get(column) for column in index.column]
        found.append({"seeds": seeds, "charts": charts, "clients": known_clients(results, other)})
    return found


def _size(charts: Any) -> int:
    """Return how many figures embedded charts have."""
    if isinstance(charts, Mapping | list):
        return sum(map(_size, charts.values() if isinstance(charts, Mapping) else charts))
    return isinstance(charts, int | float)


def _metric(results: Results, key: str) -> dict[str, Any]:
    """Return a metric's name and format, and the metrics shown beside it."""
    metric = metric_in(results, key)
    return {
        "name": capitalised(metric.name if ":" in key else metric.short),
        "about": metric.about,
        "what": metric.name,
        "unit": metric.unit,
        "decimals": metric.decimals,
        "lower": metric.lower,
        "file": f"accuracy-{key}" if metric.is_accuracy else slug(key),
        "beside": beside(results, key),
    }


def _sites(tables: Sequence[Table]) -> list[dict[str, Any]]:
    return [
        {
            "caption": table.caption,
            "heads": table.heads,
            "rows": [[entry.text for entry in row] for row in table.rows],
            "note": SITES_NOTE,
        }
        for table in tables
    ]


def _tests(results: Results, metric: str) -> dict[str, Any]:
    table = test_table(results, metric)
    rows = [[entry.text for entry in row] for row in table.rows]
    return {"caption": table.caption, "heads": table.full_heads, "rows": rows}


def _exports(results: Results, metric: str) -> dict[str, str]:
    table = accuracy_table(results, metric)
    return {
        "Markdown": formats.markdown(table),
        "LaTeX": formats.latex(accuracy_table(with_names(results), metric)),
        "CSV": formats.comma_separated(results, metric),
    }


def _methods(results: Results, index: Index) -> list[dict[str, Any]]:
    runs = {run.label: run for run in reversed(results.runs)}
    return [
        {
            "label": label,
            "reference": label in index.references,
            "trivial": runs[label].is_trivial,
            "personal": is_personal(runs[label]),
            "look": index.look[label],
            "settings": [[name, show(value)] for name, value in runs[label].settings.items()],
        }
        for label in index.method
    ]


def _cells(results: Results, index: Index) -> list[dict[str, Any]]:
    """Return means and half widths (±) by metric, rounded as tables show them, so that page and tables agree."""
    by_metric = [cells(results, key) for key in metrics_of(results)]
    marked = [trivial(results, known) for known in by_metric]
    ranked = [marks(results, key) for key in metrics_of(results)]
    return [
        {
            "m": index.method[label],
            "c": index.column[column],
            "means": [known.get((label, column), Cell()).mean for known in by_metric],
            "halves": [known.get((label, column), Cell()).half for known in by_metric],
            "trivial": [(label, column) in found for found in marked],
            "marks": [found.get((label, column), 0) for found in ranked],
        }
        for label, column in dict.fromkeys((run.label, run.column) for run in results.runs)
    ]


def _reach(results: Results, index: Index, metric: str) -> dict[int, dict[str, Any]]:
    """Return the cost of reaching an accuracy, by setting: methods by place, and their texts."""
    return {
        index.column[column]: {
            "targets": [text for text, _ in table.spans],
            "rows": [[index.method[row[0].text], *(entry.text for entry in row[1:])] for row in table.rows],
        }
        for column, table in reach_tables(results, metric).items()
    }


def _run(run: Result, index: Index, metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the part of a run that the page needs."""
    shown = [(metric, metric.shown(run)) for metric in metrics]
    return {
        "m": index.method[run.label],
        "c": index.column[run.column],
        "seed": run.seed,
        "figures": [None if value is None else Cell([value], metric=metric).mean for metric, value in shown],
        "up": round(fmean(run.up)) if run.up else None,
        "down": round(fmean(run.down)) if run.down else None,
        "cpu": None if run.cpu is None else float(f"{run.cpu:.4g}"),
        **({"failed": True} if run.error is not None else {}),
    }


def _where(run: Result) -> str:
    return ", ".join(text for text in (run.column.data, run.column.crowd, run.column.spread) if text)


def _facts(results: Results) -> list[list[str]]:
    facts: dict[str, dict[str, None]] = {}
    for run in results.runs:
        for name, value in run.versions.items():
            facts.setdefault(name, {})[value] = None
        if run.fingerprint:
            facts.setdefault(f"data {run.column.data}", {})[run.fingerprint] = None
    return [[name, ", ".join(values)] for name, values in facts.items()]


def embedded(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return charts ready for JSON, without empty fields."""
    entries, details, bands = 0, MOST_DETAILS, MOST_BANDS
    found = []
    for chart in charts:
        panels: list[Panel] = []
        for panel in chart.panels:
            if panel.heat is not None and panel.method is not None:
                entries += sum(map(len, panel.heat.values))
                fits = entries <= MOST_ENTRIES
                panels.append(panel if fits else replace(panel, heat=replace(panel.heat, values=[])))
            else:
                panels.append(panel)
        if chart.kind == "strip":
            panels = _bounded(panels, details)
            details -= sum(len(series.x) for panel in panels for series in panel.series)
        panels = [_thinned(panel) for panel in panels]
        if chart.kind == "lines":
            points = sum(len(series.half) for panel in panels for series in panel.series if series.draw == "line")
            if points > bands:
                panels = [_without_bands(panel) for panel in panels]
            else:
                bands -= points
        found.append(_plain(replace(chart, panels=panels)))
    return found


def _bounded(panels: Sequence[Panel], most: int) -> list[Panel]:
    """Return the panels with the first `most` figures of single clients; bytes are listed only if all figures fit."""
    accuracies = sum(len(series.x) for panel in panels for series in panel.series)
    counts = sum(_length(fact) for panel in panels for series in panel.series for fact in series.facts.values())
    listed = accuracies + counts <= most
    spent = 0
    kept = []
    for panel in panels:
        fitting = []
        for series in panel.series:
            spent += len(series.x)
            if spent <= most:
                facts = {name: _shortest(fact, listed) for name, fact in series.facts.items()}
                fitting.append(replace(series, facts=facts))
        kept.append(replace(panel, series=fitting))
    return kept


def _length(fact: Sequence[int] | int) -> int:
    return 1 if isinstance(fact, int) else len(fact)


def _shortest(fact: Sequence[int] | int, listed: bool) -> Sequence[int] | int:
    if isinstance(fact, int):
        return fact
    return fact if listed and len(set(fact)) > 1 else round(fmean(fact))


def _thinned(panel: Panel) -> Panel:
    return replace(panel, series=[_fewer(series) if series.draw == "line" else series for series in panel.series])


def _without_bands(panel: Panel) -> Panel:
    return replace(panel, series=[replace(one, half=()) if one.draw == "line" else one for one in panel.series])


def _fewer(series: Series) -> Series:
    """Return a curve with as many points as a reader can see, the first and the last among them."""
    length = len(series.y)
    step = max(1, (length - 1) / (MOST_ROUNDS - 1))
    kept = sorted({round(i * step) for i in range(MOST_ROUNDS) if round(i * step) < length})
    half = [series.half[i] for i in kept] if series.half else ()
    return replace(series, x=[series.x[i] for i in kept], y=[series.y[i] for i in kept], half=half)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        known = {item.name: getattr(value, item.name) for item in fields(value)}
        return {name: _plain(item) for name, item in known.items() if item is not None and item != "" and _has(item)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return [_plain(item) for item in value]


def _has(value: Any) -> bool:
    return not isinstance(value, Sequence | Mapping) or len(value) > 0


def is_personal(run: Result) -> bool | None:
    """Return whether a run's method gives each client its own model, which is not comparable with one global model.

    None for a method that is not registered.
    """
    if run.reference:
        return False
    if run.personal is not None:
        return run.personal
    return registry[run.method].personal if run.method in registry else None
