"""Charts as SVG inside a page: no scripts, and the colours of the page, light or dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from packtrain._core.printable import one_line

from .figures import Histogram

_WIDTH: Final = 400
_HEIGHT: Final = 110
_ROW: Final = 18
_NAME: Final = 130
_VALUE: Final = 50
_LONGEST: Final = 22


class Bar(NamedTuple):
    """A row of a bar chart: its name, its value, how that is written, and whether it stands out."""

    name: str
    value: float
    shown: str
    best: bool = False


def text(value: object) -> str:
    """A text of a stranger, fit to stand anywhere in a page."""
    return html.escape(one_line(str(value)))


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Draws horizontal bars."""
    most = max((row.value for row in rows), default=0) or 1
    room = _WIDTH - _NAME - _VALUE
    drawn = "".join(_bar(row, place * _ROW, max(1.0, row.value / most * room)) for place, row in enumerate(rows))
    return _svg(title, len(rows) * _ROW, drawn)


def _bar(row: Bar, top: float, wide: float) -> str:
    middle = top + _ROW * 0.68
    short = row.name if len(row.name) <= _LONGEST else f"{row.name[: _LONGEST - 1]}…"
    return (
        f"<g><title>{text(row.name)}: {text(row.shown)}</title>"
        f'<text x="{_NAME - 8}" y="{middle}" text-anchor="end">{text(short)}</text>'
        f'<rect class="{"best" if row.best else "bar"}" x="{_NAME}" y="{top + 3}" width="{wide:.1f}" '
        f'height="{_ROW - 6}" rx="2"/><text x="{_NAME + wide + 6:.1f}" y="{middle}">{text(row.shown)}</text></g>'
    )


def columns(title: str, histogram: Histogram, shown: Iterable[str]) -> str:
    """Draws the counts of a histogram, and below them its edges, as `shown` writes them."""
    names = list(shown)
    most, wide = max(histogram.counts), _WIDTH / len(histogram.counts)
    drawn = "".join(
        f'<rect class="bar" x="{place * wide + 1:.1f}" y="{_HEIGHT - high:.1f}" width="{wide - 2:.1f}" '
        f'height="{high:.1f}"><title>{text(names[place])} to {text(names[place + 1])}: {count:,}</title></rect>'
        for place, count in enumerate(histogram.counts)
        if (high := count / most * (_HEIGHT - 18))
    )
    at = {0: "start", len(names) // 2: "middle", len(names) - 1: "end"}
    labels = "".join(
        f'<text x="{place * wide:.1f}" y="{_HEIGHT + 14}" text-anchor="{anchor}">{text(names[place])}</text>'
        for place, anchor in at.items()
    )
    return _svg(title, _HEIGHT + 20, f'{drawn}<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>{labels}')


def _svg(title: str, height: float, content: str) -> str:
    return (
        f'<figure><figcaption>{text(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{text(title)}">{content}</svg></figure>'
    )
