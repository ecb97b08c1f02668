"""Draws what train.py has measured. Needs matplotlib.

python examples/growing_cache/chart.py figures.json chart.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

INK: Final = "#7b8794"
PLAIN: Final = "#9aa5b1"
BEST: Final = "#e07a1f"


def draw(measured: dict[str, Any], path: Path) -> None:
    """Draws a panel for the cache, for evictions, for waiting and for the loss."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = measured["figures"]
    seconds = [row["seconds"] for row in rows]
    budget = measured["budget_bytes"] / 1e6
    figure = Figure(figsize=(9, 5.4), dpi=120)
    figure.patch.set_alpha(0)
    FigureCanvasAgg(figure)
    (cache, evicted), (waited, loss) = figure.subplots(2, 2, sharex=True)

    def column(name: str, scale: float = 1.0) -> Sequence[float]:
        return [row[name] * scale for row in rows]

    _panel(cache, "size of the cache, MB")
    cache.plot(seconds, column("used_bytes", 1e-6), color=BEST)
    cache.axhline(budget, color=INK, lw=0.8, ls="--")
    cache.annotate(
        "budget", (seconds[-1], budget), (0, -10), textcoords="offset points", ha="right", fontsize=8, color=INK
    )
    _panel(evicted, "shards that made room")
    evicted.plot(seconds, column("evicted_shards"), color=BEST)
    _panel(waited, "share of the time that training waited, %")
    waited.plot(seconds, column("wait_share", 100), color=BEST)
    waited.set_ylim(0, max(10, *column("wait_share", 110)))
    _panel(loss, "loss on pictures that are not for training")
    loss.plot(seconds, column("loss"), color=BEST, label="trained on the cache")
    loss.plot(seconds, column("loss_of_first"), color=PLAIN, label="trained on the first samples only")
    loss.legend(frameon=False, fontsize=8, labelcolor=INK)
    for axes in (cache, evicted, loss):
        axes.set_ylim(bottom=0)
    for axes in (waited, loss):
        axes.set_xlabel("seconds", color=INK, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def _panel(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.patch.set_alpha(0)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color=PLAIN, alpha=0.3)


def main() -> None:
    figures, chart = map(Path, sys.argv[1:])
    draw(json.loads(figures.read_text()), chart)


if __name__ == "__main__":
    main()
