"""Matrices in colours, drawn with matplotlib from their descriptions."""

from typing import Any

from fedgram.report.charts import Chart, Heat
from fedgram.report.panels import literal, panels_of

MOST_NAMES = 20


def draw_heat(chart: Chart) -> Any | None:
    """Return a figure with a panel for each matrix that has colours; None where none has."""
    drawn = [panel for panel in chart.panels if panel.heat and panel.heat.range]
    if not drawn:
        return None
    figure, panels = panels_of(drawn)
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
