"""Charts' descriptions as the page holds them: no more than a reader can see, and a page can hold."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from statistics import fmean
from typing import Any

from fedgram.report.charts import Chart, Panel, Series

# Figures of single clients that a page may hold; beyond that, bytes are given as a mean, and then the last figures go.
MOST_DETAILS = 300_000
# Entries of all matrices of methods together; of those beyond, the page says only that they are in the results.
MOST_ENTRIES = 200_000
MOST_ROUNDS = 80


def embedded(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return charts ready for JSON, without what is at its default."""
    entries, details = 0, MOST_DETAILS
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
        found.append(_plain(replace(chart, panels=[_thinned(panel) for panel in panels])))
    return found


def _bounded(panels: Sequence[Panel], most: int) -> list[Panel]:
    """Keep the first figures of single clients that fit; bytes are listed only if all do."""
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


def _fewer(series: Series) -> Series:
    """Return a curve with as many points as a reader can see, the first and the last among them."""
    length = len(series.y)
    step = max(1, (length - 1) / (MOST_ROUNDS - 1))
    kept = sorted({round(i * step) for i in range(MOST_ROUNDS) if round(i * step) < length})
    return replace(series, x=[series.x[i] for i in kept], y=[series.y[i] for i in kept])


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
