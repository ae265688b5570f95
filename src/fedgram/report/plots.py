"""Pictures for papers, drawn from the charts' descriptions; PDF, PNG and SVG, each with a text alternative inside."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from math import ceil
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any, Literal, TypeAlias

import numpy as np

from fedgram.core.extras import require
from fedgram.core.filesystem import replace_file
from fedgram.core.terminal import visible
from fedgram.experiments.results import Results
from fedgram.inference.binary_predictions import Group
from fedgram.report.charts import BAND_NOTE, REFERENCE, ROUNDS, Axis, Chart, Heat, Panel, Series, describe
from fedgram.report.result_tables import with_names

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
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3 fonts
    "svg.fonttype": "none",
    "svg.hashsalt": "fedgram",
}
MOST_NAMES = 20
MOST_PANELS = 12
Width: TypeAlias = Literal["column", "text"]
# Inches of a paper's column and of its text, with the points of a picture's texts.
_WIDTHS: dict[Width, tuple[float, float]] = {"column": (3.4, 7.0), "text": (7.0, 8.0)}


def write_plots(results: Results, folder: Path, metric: str, width: Width | None = None) -> Iterator[Path]:
    """Write every picture that the results allow, as PDF, PNG and SVG, and yield each file as it is there.

    Parameters
    ----------
    results : Results
        All runs; methods are called as people write them.
    folder : Path
        The folder for the files, which exists.
    metric : str
        The figure that is drawn.
    width : "column", "text" or None
        The width of every picture: 3.4 inches, 7 inches, or what its panels need.

    """
    with _matplotlib():
        for name, figure, alternative in draw(with_names(results), metric, width):
            for ending, save in FORMATS.items():
                path = folder / f"{name}{ending}"
                replace_file(path, save(figure, name, alternative))
                yield path


@contextmanager
def _matplotlib() -> Iterator[None]:
    with require("matplotlib", "plot", "drawing plots").rc_context(_STYLE):
        yield


def write_calibration(path: Path, groups: Sequence[Group], event: str, level: float) -> None:
    """Write a calibration plot as PDF, PNG or SVG, by the ending of the file's name.

    Parameters
    ----------
    path : Path
        The file.
    groups : Sequence[Group]
        Samples of similar probability, with the observed share of events and its interval.
    event : str
        The name of the event.
    level : float
        The level of the intervals.

    """
    save = FORMATS[path.suffix.lower()]
    with _matplotlib():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], "--", color="#6b7280", linewidth=1, label="perfect")
        x, y = zip(*((group.predicted, group.observed.value) for group in groups), strict=True)
        low, high = zip(*((group.observed.low, group.observed.high) for group in groups), strict=True)
        # Rounding may bring the share beyond a very narrow interval.
        apart = np.maximum([np.subtract(y, low), np.subtract(high, y)], 0.0)
        axes.errorbar(x, y, apart, fmt="o", markersize=5, capsize=2, label=f"observed, {100 * level:.4g} % interval")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", ylabel="observed share")
        axes.set_xlabel(literal(f"predicted probability of {event}"))
        axes.legend(loc="upper left")
        listed = ", ".join(f"{one:.2f} predicted, {two:.2f} observed" for one, two in zip(x, y, strict=True))
        replace_file(path, save(figure, f"calibration of {event}", f"Calibration plot of {event}: {listed}"))


def _save_pdf(figure: Any, name: str, alternative: str) -> bytes:
    out = io.BytesIO()
    # Without a date, the same results give the same bytes.
    about = {"Title": name, "Subject": visible(alternative), "CreationDate": None}
    figure.savefig(out, format="pdf", metadata=about)
    return out.getvalue()


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


FORMATS = {".pdf": _save_pdf, ".png": _save_png, ".svg": _save_svg}


def draw(results: Results, metric: str, width: Width | None = None) -> Iterator[Picture]:
    """Draw the pictures one by one, as wide as they need or as a paper's column or text."""
    kinds = {"scatter": _scatter, "lines": _lines, "strip": _strip, "heat": draw_heat, "reliability": _reliability}
    for chart in describe(results, [metric], on_paper=True):
        figure = kinds[chart.kind](chart, width)
        if figure is not None:
            yield chart.name, figure, _told(chart)


def _told(chart: Chart) -> str:
    parts = [": ".join(filter(None, (", ".join(panel.title.split("\n")), panel.words))) for panel in chart.panels]
    lines = [series for panel in chart.panels for series in panel.series if series.draw == "line"]
    band = BAND_NOTE if any(series.half for series in lines) else ""
    return " ".join(filter(None, (f"{chart.title}. {'; '.join(parts)}.", chart.note, band)))


def _scatter(chart: Chart, width: Width | None) -> Any:
    figure, panels = panels_of(chart.panels, width)
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
    several = any(len(series.y) > 1 and series.draw == "marks" for panel, _ in panels for series in panel.series)
    sizes = {"mean of settings": 9, "one setting": 3.5} if several else {}
    return _finished(chart, figure, panels, width, one_y=False, sizes=sizes)


def _finished(
    chart: Chart,
    figure: Any,
    panels: Sequence[tuple[Panel, Any]],
    width: Width | None,
    *,
    one_y: bool = True,
    sizes: Mapping[str, float] | None = None,
) -> Any:
    """Return the figure with its axes named and one legend; `one_y` is a title for the y axes of all panels."""
    for _, axes in panels:
        set_axis(axes, "x", chart.x)
        if one_y:
            axes.label_outer()
        else:
            set_axis(axes, "y", chart.y)
    if one_y:
        figure.supylabel(chart.y.title, fontsize=_points(width))
    add_legend(figure, panels, width, sizes or {})
    return figure


def _interval(axes: Any, x: float, y: float, series: Series) -> None:
    if series.half and series.half[0]:
        axes.errorbar([x], [y], yerr=[series.half[0]], color=series.look.colour, linewidth=1, capsize=3, alpha=0.7)


def _lines(chart: Chart, width: Width | None) -> Any:
    figure, panels = panels_of(chart.panels, width, share_y=True)
    for panel, axes in panels:
        for series in panel.series:
            style = {"color": series.look.colour, "label": series.label}
            if series.draw == "line" and series.half:
                _band(axes, series)
            match series.draw:
                case "reference":
                    axes.axhline(series.y[0], linestyle="--", linewidth=1, **style)
                case "star":
                    axes.plot(series.x, series.y, "*", markersize=12, markeredgecolor="white", clip_on=False, **style)
                case _ if chart.x.ticks:
                    axes.plot(series.x, series.y, marker=series.look.shape, markersize=4, **style)
                case _:
                    axes.plot(series.x, series.y, linewidth=1.6, **style)
    return _finished(chart, figure, panels, width)


def _band(axes: Any, series: Series) -> None:
    around = [(y - (half or 0), y + (half or 0)) for y, half in zip(series.y, series.half, strict=True)]
    low, high = zip(*around, strict=True)
    axes.fill_between(series.x, low, high, color=series.look.colour, alpha=0.18, linewidth=0)


def _reliability(chart: Chart, width: Width | None) -> Any:
    figure, panels = panels_of(chart.panels, width, share_y=True)
    for panel, axes in panels:
        axes.plot([0, 100], [0, 100], "--", color="#6b7280", linewidth=1)
        for series in panel.series:
            samples = series.facts["samples"]
            assert not isinstance(samples, int)
            sizes = [10 + 50 * n / max(samples) for n in samples]
            axes.plot(series.x, series.y, color=series.look.colour, linewidth=1)
            style = {"color": series.look.colour, "marker": series.look.shape, "edgecolors": "white"}
            axes.scatter(series.x, series.y, sizes, label=series.label, zorder=3, **style)
    return _finished(chart, figure, panels, width)


def _strip(chart: Chart, width: Width | None) -> Any:
    figure, panels = panels_of(chart.panels, width, share_y=True)
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
    figure.supylabel(chart.x.title, fontsize=_points(width))
    return figure


def draw_heat(chart: Chart, width: Width | None) -> Any | None:
    """Return a figure with a panel for each matrix that has colours; None if no matrix has."""
    drawn = [panel for panel in chart.panels if panel.heat and panel.heat.range]
    if not drawn:
        return None
    figure, panels = panels_of(drawn, width)
    if any(panel.heat and panel.heat.own for panel in drawn):
        figure.set_layout_engine("compressed")  # panels are squares, and stay together
    for panel, axes in panels:
        if panel.heat:
            _draw(figure, axes, panel.heat)
        axes.set(xlabel=chart.x.title, ylabel=chart.y.title)
    return figure


def _draw(figure: Any, axes: Any, heat: Heat) -> None:
    from matplotlib.colors import PowerNorm

    low, high = heat.range or (0.0, 1.0)
    values = [[float("nan") if value is None else value for value in row] for row in heat.values]
    scale: dict[str, Any] = {"norm": PowerNorm(0.5, low, high)} if heat.shade == "root" else {"vmin": low, "vmax": high}
    aspect = "equal" if heat.own else "auto"
    image = axes.imshow(values, cmap="Blues", interpolation="nearest", aspect=aspect, **scale)
    axes.grid(visible=False)
    _name(axes, "y", heat.rows)
    if heat.own or heat.clients != "columns":
        _name(axes, "x", heat.columns)
    own = [v for i, row in enumerate(heat.values) if heat.own and (v := row[i]) is not None]
    over, under = max(own, default=high) > high, min(own, default=low) < low
    extend = "both" if over and under else "max" if over else "min" if under else "neither"
    bar = figure.colorbar(image, ax=axes, extend=extend)
    bar.ax.tick_params(labelsize=7)
    if over or under:
        bar.set_label("the diagonal is clamped", fontsize=7)


def _name(axes: Any, which: str, names: Any) -> None:
    if 0 < len(names) <= MOST_NAMES:
        rotation = 90 if which == "x" else 0
        getattr(axes, f"set_{which}ticks")(range(len(names)), map(literal, names), rotation=rotation, fontsize=7)


def panels_of(
    panels: Sequence[Panel], width: Width | None, *, share_y: bool = False
) -> tuple[Any, list[tuple[Panel, Any]]]:
    """Return a figure with axes for each panel, at most a dozen."""
    from matplotlib.figure import Figure

    shown = panels[:MOST_PANELS]
    across = min(2 if width == "column" else 3, len(shown))
    down = ceil(len(shown) / across)
    if width is None:
        size = (5.2, 3.4) if len(shown) == 1 else (3.1 * across, 2.9 * down)
    else:
        inches = _WIDTHS[width][0]
        size = (inches, min(0.8 * inches / across, 2.6) * down + 0.3)  # a legend adds to it
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=share_y)
    for panel, axes in zip(shown, grid.flat, strict=False):
        axes.set_title(literal(_broken(panel.title, width, across)), fontsize=_points(width))
        if width is not None:
            axes.tick_params(which="both", labelsize=_points(width) - 1)
            axes.xaxis.label.set_size(_points(width))
            axes.yaxis.label.set_size(_points(width))
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    return figure, list(zip(shown, grid.flat, strict=False))


def _points(width: Width | None) -> float:
    """Return the size of a picture's texts."""
    return 9.0 if width is None else _WIDTHS[width][1]


def _broken(title: str, width: Width | None, across: int) -> str:
    """Return a title in lines that are as wide as a panel."""
    if width is None:
        return title
    inches, points = _WIDTHS[width]
    letters = int(0.85 * inches / across * 72 / (0.5 * points))  # a letter is half as wide as it is high
    return "\n".join(piece for line in title.split("\n") for piece in wrap(line, letters) or [""])


def add_legend(
    figure: Any, panels: Sequence[tuple[Panel, Any]], width: Width | None, sizes: Mapping[str, float]
) -> None:
    """Put one legend of all that is drawn beside the panels, or below them; `sizes` are those of marks, explained."""
    from matplotlib.lines import Line2D

    known: dict[str, Any] = {}
    for _, axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    for label, size in sizes.items():
        known[label] = Line2D([], [], color=REFERENCE[0], marker="o", linestyle="none", markersize=size)
    if width is None:
        figure.legend(known.values(), map(literal, known), loc="outside right upper", fontsize=8)
        return
    inches, points = _WIDTHS[width]
    widest = max(map(len, known), default=1) * 0.5 * points / 72 + 0.45
    across = max(1, int(inches / widest))
    figure.set_figheight(figure.get_figheight() + ceil(len(known) / across) * 1.5 * points / 72)
    figure.legend(
        known.values(),
        map(literal, known),
        loc="outside lower center",
        ncols=across,
        fontsize=points,
        columnspacing=1.0,
        handletextpad=0.4,
    )


def set_axis(axes: Any, which: str, axis: Axis) -> None:
    """Give one of the axes ("x" or "y") its title, its scale and its ticks."""
    if axis.scale == "log":
        axes.set(**{f"{which}scale": "log"})
        if not axis.ticks:
            _name_powers(axes, which, axis)
    if axis == ROUNDS.axis:
        axes.locator_params(which, integer=True, nbins=5)
    if axis.ticks and axis.scale == "linear":
        getattr(axes, f"set_{which}ticks")(
            [place for place, _ in axis.ticks], [literal(text) for _, text in axis.ticks]
        )
    unit = {"bytes": ", bytes", "seconds": " in seconds"}.get(axis.unit, "")
    axes.set(**{f"{which}label": literal(axis.title + ("" if unit.strip(" ,") in axis.title else unit))})


def _name_powers(axes: Any, which: str, axis: Axis) -> None:
    """Name few places of a logarithmic axis, so that small panels have room for them."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    low, high = getattr(axes, f"get_{which}lim")()
    line = getattr(axes, f"{which}axis")
    narrow = low > 0 and high / low < 30
    line.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=6))
    is_bytes = axis.unit == "bytes"
    line.set_major_formatter(EngFormatter("B") if is_bytes else FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_formatter(NullFormatter())


def literal(text: str) -> str:
    """Return a text that matplotlib draws as it is: dollars enclose no formula, and control characters are shown."""
    return visible(text, lines=True).replace("$", r"\$")
