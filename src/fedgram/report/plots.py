"""Pictures for papers, drawn from the charts' descriptions; PNG and SVG, each with a text alternative inside."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from fedgram.core.extras import require
from fedgram.core.files import replace_file
from fedgram.core.terminal import visible
from fedgram.experiments.results import Results
from fedgram.report.charts import Chart, Panel, Series
from fedgram.report.describe import describe
from fedgram.report.heatmaps import draw_heat
from fedgram.report.panels import add_legend, literal, panels_of, set_axis

Picture: TypeAlias = tuple[str, Any, str]  # a file's name, a matplotlib figure, and its text alternative

_STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.edgecolor": "#6b7280",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedgram",
}


def write_plots(results: Results, folder: Path, metric: str) -> Iterator[Path]:
    """Write every picture that the results allow, as PNG and SVG, and yield each file as it is there."""
    with _matplotlib():
        for name, figure, alternative in draw(results, metric):
            for ending, save in (("png", _save_png), ("svg", _save_svg)):
                path = folder / f"{name}.{ending}"
                replace_file(path, save(figure, name, alternative))
                yield path


@contextmanager
def _matplotlib() -> Iterator[None]:
    with require("matplotlib", "plot", "drawing plots").rc_context(_STYLE):
        yield


def _save_png(figure: Any, name: str, alternative: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Title": name, "Description": alternative})
    return out.getvalue()


def _save_svg(figure: Any, name: str, alternative: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue().decode()
    end = text.index(">", text.index("<svg"))
    told = escape(visible(alternative))
    told = f' role="img" aria-label="{told}"><title>{told}</title>'
    return (text[:end] + told + text[end + 1 :]).encode()


def draw(results: Results, metric: str) -> Iterator[Picture]:
    """Draw the pictures one by one."""
    kinds = {"scatter": _scatter, "lines": _lines, "strip": _strip, "heat": draw_heat, "reliability": _reliability}
    for chart in describe(results, [metric]):
        figure = kinds[chart.kind](chart)
        if figure is not None:
            yield chart.name, figure, _told(chart)


def _told(chart: Chart) -> str:
    parts = [": ".join(filter(None, (", ".join(panel.title.split("\n")), panel.words))) for panel in chart.panels]
    return f"{chart.title}. {'; '.join(parts)}."


def _scatter(chart: Chart) -> Any:
    figure, panels = panels_of(chart.panels)
    for panel, axes in panels:
        for series in panel.series:
            colour, y = series.look.colour, fmean(series.y)
            if series.draw == "reference":
                axes.axhline(y, color=colour, linestyle="--", linewidth=1, label=series.label)
                continue
            style = {"color": colour, "marker": series.look.shape, "linestyle": "none"}
            x = fmean(value for value in series.x if value is not None)
            if len(series.y) > 1:
                axes.plot(series.x, series.y, markersize=3.5, alpha=0.35, **style)
            else:
                _interval(axes, x, y, series)
            axes.plot([x], [y], markersize=9, markeredgecolor="white", label=series.label, **style)
    return _finished(chart, figure, panels, one_y=False)


def _finished(chart: Chart, figure: Any, panels: Sequence[tuple[Panel, Any]], *, one_y: bool = True) -> Any:
    """Return the figure with its axes named and one legend; `one_y` is a title for the y axes of all panels."""
    for _, axes in panels:
        set_axis(axes, "x", chart.x)
        if one_y:
            axes.label_outer()
        else:
            set_axis(axes, "y", chart.y)
    if one_y:
        figure.supylabel(chart.y.title, fontsize=9)
    add_legend(figure, panels)
    return figure


def _interval(axes: Any, x: float, y: float, series: Series) -> None:
    if series.half and series.half[0]:
        axes.errorbar([x], [y], yerr=[series.half[0]], color=series.look.colour, linewidth=1, capsize=3, alpha=0.7)


def _lines(chart: Chart) -> Any:
    figure, panels = panels_of(chart.panels, share_y=True)
    for panel, axes in panels:
        for series in panel.series:
            style = {"color": series.look.colour, "label": series.label}
            match series.draw:
                case "reference":
                    axes.axhline(series.y[0], linestyle="--", linewidth=1, **style)
                case "star":
                    axes.plot(series.x, series.y, "*", markersize=12, markeredgecolor="white", **style)
                case _ if chart.x.ticks:
                    axes.plot(series.x, series.y, marker=series.look.shape, markersize=4, **style)
                case _:
                    axes.plot(series.x, series.y, linewidth=1.6, **style)
    return _finished(chart, figure, panels)


def _reliability(chart: Chart) -> Any:
    figure, panels = panels_of(chart.panels, share_y=True)
    for panel, axes in panels:
        axes.plot([0, 100], [0, 100], "--", color="#6b7280", linewidth=1)
        for series in panel.series:
            samples = series.facts["samples"]
            assert not isinstance(samples, int)
            sizes = [10 + 50 * n / max(samples) for n in samples]
            axes.plot(series.x, series.y, color=series.look.colour, linewidth=1)
            style = {"color": series.look.colour, "marker": series.look.shape, "edgecolors": "white"}
            axes.scatter(series.x, series.y, sizes, label=series.label, zorder=3, **style)
    return _finished(chart, figure, panels)


def _strip(chart: Chart) -> Any:
    figure, panels = panels_of(chart.panels, share_y=True)
    for panel, axes in panels:
        boxes = axes.boxplot(
            [[value for value in series.x if value is not None] for series in panel.series],
            patch_artist=True,
            medianprops={"color": "#111827"},
            flierprops={"markersize": 2.5, "markeredgecolor": "#6b7280"},
        )
        for box, series in zip(boxes["boxes"], panel.series, strict=True):
            box.set(facecolor=series.look.colour, alpha=0.65)
        names = [literal(series.label) for series in panel.series]
        axes.set_xticks(range(1, len(names) + 1), names, rotation=45, ha="right", rotation_mode="anchor")
    # Boxes stand side by side on paper, where the page has them below one another.
    figure.supylabel(chart.x.title, fontsize=9)
    return figure
