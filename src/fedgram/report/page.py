"""The page: one HTML file that holds results, style and program, and asks the network for nothing."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from fedgram.core.errors import InvalidParameter
from fedgram.core.files import replace_file, writing
from fedgram.experiments.results import METRICS, Column, Result, Results
from fedgram.experiments.variants import show
from fedgram.report import formats
from fedgram.report.clientwise import details, matrices, spread
from fedgram.report.palette import COLOURS, SHAPES, looks
from fedgram.report.series import is_number, learning_curves, sweeps
from fedgram.report.tables import Cell, about, accuracy_caption, accuracy_table, cells, span_texts

_SCRIPTS = (
    "dom.js",
    "model.js",
    "axes.js",
    "table.js",
    "costs.js",
    "rounds.js",
    "sweeps.js",
    "clients.js",
    "matrices.js",
    "sections.js",
    "main.js",
)
MOST_ROUNDS = 80


def write_page(results: Results, path: Path, *, title: str, metric: str = "client_mean") -> Path:
    """Write the page, whole or not at all, and return its path."""
    page = render_page(results, title=title, metric=metric)
    with writing(path, InvalidParameter):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, page.encode(), mode=0o644)
    return path


def render_page(results: Results, *, title: str, metric: str = "client_mean") -> str:
    """Return the page as text."""
    from fedgram import __version__

    payload = json.dumps(_payload(results, metric), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        lede=escape(_lede(results)),
        version=escape(__version__),
        style=_asset("style.css"),
        plain=formats.html(accuracy_table(results, metric)),
        # Inside a script element only "<" could end it; in JSON it may be written so.
        data=payload.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


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
    columns, labels = results.columns, results.labels
    place = {column: index for index, column in enumerate(columns)}
    number = {label: index for index, label in enumerate(labels)}
    seeds = _seeds(results)
    chosen = [run for run in results.finished if run.seed == seeds[run.column]]
    picked = {(number[run.label], place[run.column]): run for run in chosen}
    return {
        "metric": metric,
        "metrics": METRICS,
        "captions": {name: accuracy_caption(results, name) for name in METRICS},
        "exports": {name: _exports(results, name) for name in METRICS},
        "palette": COLOURS,
        "shapes": SHAPES,
        "methods": _methods(results),
        "columns": [
            {
                "group": group,
                "crowd": column.crowd,
                "spread": column.spread,
                "about": about(column),
                "seed": seeds[column],
            }
            for column, group in zip(columns, span_texts(columns), strict=True)
        ],
        "seeds": len({run.seed for run in results.runs}),
        "cells": _cells(results, number, place),
        "runs": [_run(run, number[run.label], place[run.column]) for run in results.runs],
        "curves": [
            {"m": number[label], "c": place[column], **_thinned(curve)}
            for (label, column), curve in learning_curves(results).items()
        ],
        "details": details(picked),
        "tested": [
            next((list(run.tested) for run in chosen if run.column == column and run.tested), None)
            for column in columns
        ],
        "spreads": [spread(results, column, seeds[column]) for column in columns],
        "matrices": matrices(picked),
        "sweeps": [_sweep(sweep, place) for sweep in sweeps(results)],
        "failures": [[run.label, f"{_where(run)}, seed {run.seed}", run.error] for run in results.failed],
        "damaged": [f"{damage.path.name}, line {damage.line}: {damage.reason}" for damage in results.damaged],
        "facts": _facts(results),
    }


def _seeds(results: Results) -> dict[Column, int]:
    """Return the seed whose single clients are shown in each column: the lowest of those that most methods finished."""
    finished: dict[Column, Counter[int]] = defaultdict(Counter)
    for run in results.runs:
        finished[run.column][run.seed] += run.error is None
    return {column: min(counts, key=lambda seed: (-counts[seed], seed)) for column, counts in finished.items()}


def _exports(results: Results, metric: str) -> dict[str, str]:
    table = accuracy_table(results, metric)
    return {
        "Markdown": formats.markdown(table),
        "LaTeX": formats.latex(table),
        "CSV": formats.comma_separated(results, metric),
    }


def _methods(results: Results) -> list[dict[str, Any]]:
    runs = {run.label: run for run in reversed(results.runs)}
    look = looks(results.labels, [label for label in results.labels if runs[label].reference])
    return [
        {
            "label": label,
            "name": runs[label].method,
            "reference": runs[label].reference,
            "look": look[label],
            "settings": [[name, show(value)] for name, value in runs[label].settings.items()],
        }
        for label in results.labels
    ]


def _cells(results: Results, number: dict[str, int], place: dict[Column, int]) -> list[dict[str, Any]]:
    """Return means and deviations by metric as tables show them, so that the page and they never disagree."""
    by_metric = [cells(results, name) for name in METRICS]
    found = {
        (label, column): [known.get((label, column), Cell()) for known in by_metric]
        for label, column in dict.fromkeys((run.label, run.column) for run in results.runs)
    }
    return [
        {
            "m": number[label],
            "c": place[column],
            "means": [cell.mean for cell in row],
            "deviations": [None if cell.deviation is None else round(cell.deviation, 2) for cell in row],
        }
        for (label, column), row in found.items()
    ]


def _shown(values: Sequence[float]) -> float | None:
    """Return the mean of accuracies in percent, rounded as in tables; None where none was written down."""
    return Cell([100 * value for value in values]).mean


def _run(run: Result, method: int, column: int) -> dict[str, Any]:
    """Return what the page needs of a run."""
    return {
        "m": method,
        "c": column,
        "seed": run.seed,
        "accuracy": [_shown([run.accuracy[name]] if name in run.accuracy else []) for name in METRICS],
        "up": round(fmean(run.up)) if run.up else None,
        "down": round(fmean(run.down)) if run.down else None,
        "cpu": None if run.cpu is None else float(f"{run.cpu:.4g}"),
        **({"failed": True} if run.error is not None else {}),
    }


def _thinned(curve: dict[str, list[float]]) -> dict[str, Any]:
    """Return a learning curve with as many rounds as a reader can see, by the metrics that are known in all rounds."""
    length = max(map(len, curve.values()))
    step = max(1, (length - 1) / (MOST_ROUNDS - 1))
    kept = sorted({round(i * step) for i in range(MOST_ROUNDS) if round(i * step) < length})
    whole = {name: known for name, known in curve.items() if known and len(known) == length}
    values = {name: [_shown([known[i]]) for i in kept] for name, known in whole.items()}
    return {"rounds": [i + 1 for i in kept], "values": values}


def _sweep(sweep: Any, place: dict[Any, int]) -> dict[str, Any]:
    values = list(sweep.values)
    curves = [
        {
            "c": place[column],
            "rest": rest,
            "points": [
                [index, [_shown(points[value].get(name, ())) for name in METRICS]]
                for index, value in enumerate(values)
                if value in points
            ],
        }
        for (column, rest), points in sweep.curves.items()
    ]
    return {
        "method": sweep.method,
        "parameter": sweep.parameter,
        "values": [show(value) for value in values],
        "numbers": values if all(map(is_number, values)) else None,
        "curves": sorted((curve for curve in curves if curve["points"]), key=lambda curve: curve["c"]),
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
