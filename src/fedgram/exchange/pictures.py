"""Bars as inline SVG, for pages that ask the network for nothing."""

from collections.abc import Mapping
from html import escape

_ROW, _LABEL, _BAR, _VALUE = 22, 190, 330, 110  # pixels
_LONGEST = 26  # characters of a label; all of it shows when the pointer rests on it


def bars(counts: Mapping[str, int], *, of: int, title: str) -> str:
    """Return a bar for each count, all in proportion to `of`, with its number and share beside it."""
    height, width = _ROW * len(counts), _LABEL + _BAR + _VALUE
    rows = [_bar(place, label, count, of) for place, (label, count) in enumerate(counts.items())]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}">{"".join(rows)}</svg>'


def _bar(place: int, label: str, count: int, of: int) -> str:
    top, share = place * _ROW, count / of if of else 0.0
    shown = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
    middle, length = top + _ROW / 2, _BAR * min(share, 1.0)
    return (
        f"<g><title>{escape(label)}: {count:,}</title>"
        f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end" dominant-baseline="central">{escape(shown)}</text>'
        f'<rect class="whole" x="{_LABEL}" y="{top + 4}" width="{_BAR}" height="{_ROW - 8}"/>'
        f'<rect class="part" x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}"/>'
        f'<text x="{_LABEL + _BAR + 8}" y="{middle}" dominant-baseline="central">{count:,} ({share:.1%})</text></g>'
    )
