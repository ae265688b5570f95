"""A regression table as one HTML page that works offline: coefficients, tests, forest plots, gaps, and the source.

Plots are SVG inside the page. It needs no program and no network.
"""

import re
from collections.abc import Sequence
from math import floor, log10, sqrt
from statistics import NormalDist, median
from typing import NamedTuple

from fedgram.core.terminal import visible
from fedgram.exchange.pages.page_parts import escaped, pairs, section, source, table_of, whole_page
from fedgram.exchange.store.ledger import Entry
from fedgram.inference.table import (
    DIFFERENCES,
    FIGURES,
    RATIOS,
    Coefficient,
    Coefficients,
    Heterogeneity,
    figure_text,
    p_text,
)
from fedgram.studies.study import Study

TILES = ("residual_sd", "r_squared", "pseudo_r_squared")  # figures that are shown large
MOST_LINES = 14  # of a smaller table; a longer one is folded
MOST_ESTIMATES = 2_000  # of single sites that are drawn; plots of further terms are left out
NOTHING = "–"
_IS_FIGURE = re.compile(r"[-+<\d.,e% ]*").fullmatch


def coefficients_page(table: Coefficients, *, study: Study | None = None, entry: Entry | None = None) -> str:
    """Return the page of a regression table as HTML.

    Parameters
    ----------
    table
        The regression table.
    study
        The study under which the rows were summed; None if there is none.
    entry
        The last entry of the store's ledger; None for a table that was not made from a store.

    """
    return whole_page(
        f"{table.title}{f', {study.name}' if study else ''}",
        [
            f"<h1>{escaped(table.title)}</h1>",
            _lede(table, study),
            _tiles(table),
            section("Coefficients", _coefficients(table, study) + _notes(table)),
            section("The model", pairs([*table.facts(), *table.figures(), *_left_out(table)])),
            *(
                section(heading, _small_table(heading, grid)) + (_forests(table) if heading == DIFFERENCES else "")
                for heading, grid in table.sections()
            ),
            _sites(table),
            source(study, entry),
        ],
        "results.css",
    )


def _lede(table: Coefficients, study: Study | None) -> str:
    sites = len(table.sites.rows)
    said = [
        *([f"Study {study.name}"] if study else ()),
        f"{table.method}{f' on the rows of {sites:,} sites' if sites > 1 else ''}",
        f"standard errors: {table.errors}",
    ]
    return f'<p class="soft">{escaped(" · ".join(said))}</p>'


def _tiles(table: Coefficients) -> str:
    shown = [(f"{int(table.summary['n']):,}", "Rows")] if "n" in table.summary else []
    if table.sites.rows:
        shown.append((f"{len(table.sites.rows):,}", "Sites"))
    unit = f" {table.unit}" if table.unit else ""
    for name in TILES:
        if name in table.summary:
            text = f"{table.summary[name]:,.4g}" + (unit if name == "residual_sd" else "")
            shown.append((text, FIGURES[name]))
    boxes = "".join(f"<div><b>{escaped(figure)}</b><span>{escaped(name)}</span></div>" for figure, name in shown)
    return f'<section class="figures" aria-label="The model in short">{boxes}</section>'


def _coefficients(table: Coefficients, study: Study | None) -> str:
    heads = [escaped(head) for head in table.heads()]
    lines = []
    for row, (term, *figures) in zip(table.rows, table.cells(), strict=True):
        unit = f" <i>{escaped(_unit(row, study))}</i>" if _unit(row, study) else ""
        lines.append([escaped(term) + unit, *(escaped(figure) or NOTHING for figure in figures)])
    return table_of(heads, lines, range(1, len(heads)), label=f"Coefficients of the {table.title}")


def _unit(row: Coefficient, study: Study | None) -> str:
    """Return the unit of a row's column; "" for rows of levels, which have none."""
    return "" if study is None or row.term != row.column else getattr(study.columns.get(row.column), "unit", "")


def _notes(table: Coefficients) -> str:
    return f"<ol>{''.join(f'<li>{escaped(note)}</li>' for note in table.notes)}</ol>" if table.notes else ""


def _left_out(table: Coefficients) -> list[tuple[str, str]]:
    return [("Left out", ", ".join(table.aliased))] if table.aliased else []


def _small_table(heading: str, grid: Sequence[Sequence[str]]) -> str:
    heads, *lines = [[escaped(text) for text in row] for row in grid]
    numbers = [place for place, texts in enumerate(zip(*grid[1:], strict=True)) if all(map(_IS_FIGURE, texts))]
    found = f'<div class="small">{table_of(heads, lines, numbers, label=heading)}</div>'
    return _folded(f"{len(lines):,} rows", found) if len(lines) > MOST_LINES else found


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"


def _sites(table: Coefficients) -> str:
    """Return the section with the rows of each site, and their residuals."""
    sites = table.sites
    if not sites.rows:
        return ""
    heads = ["", "rows", *(["residual SD"] if sites.residual_sd else ())]
    lines = [
        [name, f"{rows:,}", *([figure_text(sites.residual_sd.get(name))] if sites.residual_sd else ())]
        for name, rows in sites.rows.items()
    ]
    return section("Sites", _small_table("Sites", [heads, *lines]))


# Forest plots
class _Line(NamedTuple):
    """A line of a forest plot: an estimate with its interval, and the weight of a site (None: a pooled estimate)."""

    name: str
    estimate: float
    low: float
    high: float
    se: float | None = None
    weight: float | None = None
    look: str = "site"


def _forests(table: Coefficients) -> str:
    if not table.heterogeneity:
        return ""
    shown, drawn = list[Heterogeneity](), 0
    known = [one for one in table.heterogeneity if one.sites]
    for one in known:
        drawn += len(one.sites)
        if drawn > MOST_ESTIMATES:
            break
        shown.append(one)
    cards = "".join(_forest_card(one, table, place) for place, one in enumerate(shown))
    nowhere = ", ".join(one.term for one in table.heterogeneity if not one.sites)
    left = f"<p>No site can estimate {escaped(nowhere)} by itself.</p>" if nowhere else ""
    if len(shown) < len(known):
        left += f"<p>Of {len(known):,} terms {len(shown):,} are drawn; the table above has all.</p>"
    said = (
        f"A square is the estimate of a site alone, with its {100 * table.level:g} % interval by the normal "
        "distribution; larger squares have more weight. The filled diamond is this table’s coefficient, from the sums "
        "of all rows. The empty diamond is the inverse-variance mean of the sites’ estimates, which a meta-analysis "
        "would report."
    )
    return section("Forest plots", f'<p class="soft">{said}</p><div class="forests">{cards}</div>{left}')


def _forest_card(one: Heterogeneity, table: Coefficients, place: int) -> str:
    lines = _lines_of(one, table)
    heads = ("", "estimate", "std err", "low", "high", "weight")
    grid = [
        [
            line.name,
            *(figure_text(value) or NOTHING for value in (line.estimate, line.se, line.low, line.high)),
            NOTHING if line.weight is None else f"{line.weight:.1%}",
        ]
        for line in lines
    ]
    reasons: dict[str, list[str]] = {}
    for site, reason in one.left_out.items():
        reasons.setdefault(reason, []).append(site)
    left = "".join(
        f"<p>Not shown: {escaped(', '.join(sites))} ({escaped(reason)}).</p>" for reason, sites in reasons.items()
    )
    differ = ""
    if one.q is not None and one.p is not None and one.i_squared is not None:
        differ = _tested(one.q, one.df, one.p, one.i_squared)
    return (
        f'<div class="forest"><h3>{escaped(one.term)}</h3>'
        + forest_plot(one.term, lines, identity=f"forest-{place}", axis=_axis_title(table))
        + f"{differ}{left}"
        + _folded("The numbers", table_of(heads, [[*map(escaped, row)] for row in grid], range(1, 6), label=one.term))
        + "</div>"
    )


def _tested(q: float, df: int, p: float, i_squared: float) -> str:
    equals = "" if p_text(p).startswith("<") else "= "
    return f"<p>{escaped(f'Q = {q:.2f} with {df} df, p {equals}{p_text(p)}; I² = {i_squared:.0%}')}</p>"


def _axis_title(table: Coefficients) -> str:
    if (ratio := RATIOS.get(table.kind)) is not None:
        return f"coefficient, log {ratio}"
    return f"coefficient [{table.unit}]" if table.unit else "coefficient"


def _lines_of(one: Heterogeneity, table: Coefficients) -> list[_Line]:
    """Return the sites' lines, then the pooled ones."""
    wide = NormalDist().inv_cdf((1 + table.level) / 2)

    def line(name: str, estimate: float, se: float, weight: float | None, look: str) -> _Line:
        return _Line(name, estimate, estimate - wide * se, estimate + wide * se, se, weight, look)

    pooled, pooled_se = one.pooled, one.pooled_se
    assert pooled is not None
    assert pooled_se is not None
    found = [line(each.site, each.estimate, each.se, (pooled_se / each.se) ** 2, "site") for each in one.sites]
    row = next((row for row in table.rows if row.term == one.term), None)
    if row is not None and row.low is not None and row.high is not None:
        found.append(_Line("this table", row.estimate, row.low, row.high, row.se, None, "table"))
    return [*found, line("meta-analysis", pooled, pooled_se, None, "meta")]


WIDTH, ROW, PAD = 360, 36, 12  # pixels of a forest plot, which a telephone shows at full size
LONGEST = 22  # characters of a name; the table of numbers has all of it
AXIS = 42


def forest_plot(term: str, lines: Sequence[_Line], *, identity: str, axis: str) -> str:
    """Return a forest plot as SVG: a line of text and a line with estimate and interval for each entry.

    Parameters
    ----------
    term
        The name of the coefficient.
    lines
        The sites, then the pooled estimates.
    identity
        The beginning of the elements' ids, different for each plot of a page.
    axis
        The title of the axis.

    """
    low, high = _window(lines)
    height = ROW * len(lines) + AXIS
    decimals = 2 - floor(log10(high - low))

    def shown(value: float) -> str:
        return f"{round(value, max(decimals, 0)) + 0.0:.{max(decimals, 0)}f}" if -4 < decimals < 8 else f"{value:.4g}"

    def x(value: float) -> float:
        return PAD + (WIDTH - 2 * PAD) * (min(max(value, low), high) - low) / (high - low)

    bottom = height - AXIS + 4
    parts = [_tick(x(value), bottom, text) for value, text in ticks(low, high)]
    if low <= 0 <= high:
        parts.append(f'<line class="null" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="0" y2="{bottom}"/>')
    heaviest = max((line.weight or 0.0 for line in lines), default=1.0) or 1.0
    for place, line in enumerate(lines):
        ends = (x(line.low), x(line.estimate), x(line.high))
        text = f"{shown(line.estimate)} [{shown(line.low)}, {shown(line.high)}]"
        top, middle = ROW * place + 13, ROW * place + 24
        parts += [
            f'<text x="{PAD}" y="{top}">{escaped(_shortened(line.name))}</text>',
            f'<text class="figure" x="{WIDTH - PAD}" y="{top}" text-anchor="end">{escaped(text)}</text>',
            _mark(line, ends, middle, heaviest, cut=(line.low < low, line.high > high)),
        ]
    parts.append(f'<text class="soft" x="{WIDTH / 2:g}" y="{height - 4}" text-anchor="middle">{escaped(axis)}</text>')
    sites = [line for line in lines if line.look == "site"]
    said = "; ".join(f"{line.name} {shown(line.estimate)}" for line in lines if line.look != "site")
    least, most = (shown(pick(line.estimate for line in sites)) for pick in (min, max))
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {height}" aria-labelledby="{identity}-t" '
        f'aria-describedby="{identity}-d">'
        f'<title id="{identity}-t">{escaped(f"Forest plot of {term}")}</title>'
        f'<desc id="{identity}-d">'
        f"{escaped(f'Estimates of {len(sites)} sites from {least} to {most}; {said}. The numbers are in a table.')}"
        f"</desc>{''.join(parts)}</svg>"
    )


def _shortened(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def _window(lines: Sequence[_Line]) -> tuple[float, float]:
    """Return the ends of the axis: all estimates, zero if it is near, and intervals unless they are far wider."""
    usual = 3 * median((line.high - line.low) / 2 for line in lines)
    estimates = [line.estimate for line in lines]
    low = min(max(line.low, min(estimates) - usual) for line in lines)
    high = max(min(line.high, max(estimates) + usual) for line in lines)
    wide = high - low or abs(high) or 1.0
    if 0 < low < wide / 2:
        low = 0.0
    elif -wide / 2 < high < 0:
        high = 0.0
    return low - 0.03 * wide, high + 0.03 * wide


def ticks(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
    """Return the round positions between two ends, with their texts.

    >>> ticks(-0.13, 0.42)
    [(0.0, '0'), (0.2, '0.2'), (0.4, '0.4')]
    """
    power = 10.0 ** floor(log10((high - low) / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) < most)
    first, last = floor(low / step) + 1, floor(high / step)
    return [(step * k, f"{round(step * k, 12 - floor(log10(step))):.15g}") for k in range(first, last + 1)]


def _tick(x: float, bottom: int, text: str) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>'
        f'<text class="soft" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{escaped(text)}</text>'
    )


def _mark(line: _Line, ends: tuple[float, float, float], y: int, heaviest: float, cut: tuple[bool, bool]) -> str:
    """Return the drawing of an estimate: a square on a bar, or a diamond; an arrow where the bar leaves the plot."""
    low, middle, high = ends
    if line.look != "site":
        points = f"{low:.1f},{y} {middle:.1f},{y - 6} {high:.1f},{y} {middle:.1f},{y + 6}"
        return f'<polygon class="{line.look}" points="{points}"/>'
    half = 2 + 3.5 * sqrt((line.weight or 0.0) / heaviest)
    arrows = "".join(
        f'<polyline class="bar" points="{end - way * 5:.1f},{y - 4} {end:.1f},{y} {end - way * 5:.1f},{y + 4}"/>'
        for end, way, is_cut in ((low, -1, cut[0]), (high, 1, cut[1]))
        if is_cut
    )
    return (
        f'<line class="bar" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>{arrows}'
        f'<rect x="{middle - half:.1f}" y="{y - half:.1f}" width="{2 * half:.1f}" height="{2 * half:.1f}"/>'
    )
