"""Draws a chart of the kept figures, one panel for each workload, with an interpreter that has matplotlib.

python -m benchmarks.plot OUT.png RESULT.json ...
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import PACKTRAIN
from benchmarks.environments import ROOT, interpreter, why_missing

NAME: Final = "peers.png"
WIDTH: Final = 9.0
ROW: Final = 0.3
"""Height of a bar and the gap below it, in inches."""
HEAD: Final = 0.75
"""Height of a panel's title and the gap above it, in inches."""
# The same contrast, at least 4 to 1, on a white page and on a dark one.
INK: Final = "#7b8794"
PLAIN: Final = "#9aa5b1"
OURS: Final = "#e07a1f"


def draw(names: Sequence[str], folder: Path) -> str:
    """Draws the results of some benchmarks in a folder; returns a line that says where, or why there is no chart."""
    paths = [path for name in names for path in latest(name, folder)]
    if not paths:
        return f"no chart: {folder.name}/ has no figures of the peers"
    out = folder / NAME
    command = [interpreter("chart"), "-m", "benchmarks.plot", str(out), *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        return f"no chart: {why_missing('chart') if 'matplotlib' in last else last}"
    return f"chart: {out.relative_to(ROOT)}"


def latest(name: str, folder: Path) -> list[Path]:
    """The newest result file of a benchmark, from a run under either Pillow; none if there is no result."""
    found = [*folder.glob(f"{name}.json"), *folder.glob(f"{name}-pillow*.json")]
    return sorted(found, key=lambda path: str(json.loads(path.read_text())["date"]))[-1:]


def bars(result: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Name, images/s and label of each bar, the fastest first.

    >>> bars({"median_images_per_second": {"a": 500.0, "packtrain": 1000.0}, "ratios": {"a": 2.0, "packtrain": 1.0}})
    [('packtrain', 1000.0, '1,000'), ('a', 500.0, '500  (packtrain: 2.0 x)')]
    """
    rates, ratios = result["median_images_per_second"], result["ratios"]
    return [
        (
            name,
            rates[name],
            f"{rates[name]:,.0f}"
            + (f"  ({PACKTRAIN}: {ratios[name]:.1f} x)" if not name.startswith(PACKTRAIN) else ""),
        )
        for name in sorted(rates, key=lambda name: -rates[name])
    ]


def main() -> None:
    # By name, so that types can be checked without matplotlib.
    mpl, pyplot = import_module("matplotlib"), import_module("matplotlib.pyplot")
    mpl.use("Agg")
    out, *paths = sys.argv[1:]
    results = [json.loads(Path(path).read_text()) for path in paths]
    panels = [bars(result) for result in results]
    heights = [len(panel) * ROW + HEAD for panel in panels]
    mpl.rcParams.update({"font.family": "sans-serif", "font.size": 9.5, "text.color": INK})
    figure = pyplot.figure(figsize=(WIDTH, sum(heights) + 0.4))
    top = figure.get_figheight()
    for result, panel, height in zip(results, panels, heights, strict=True):
        _panel(figure, result["title"], panel, top, height)
        top -= height
    machine, rounds = results[0]["machine"], results[0]["settings"]["repetitions"]
    said = f"images/s, medians of {rounds} rounds; {machine['cores']} cores, {machine['cpu']}"
    figure.text(0.02, 0.12 / figure.get_figheight(), said, fontsize=8)
    figure.savefig(out, dpi=160, transparent=True)


def _panel(figure: Any, title: str, panel: Sequence[tuple[str, float, str]], top: float, height: float) -> None:
    whole = figure.get_figheight()
    axes = figure.add_axes((0.25, (top - height + 0.05) / whole, 0.56, (height - HEAD) / whole))
    names, rates, labels = zip(*panel, strict=True)
    ours = [name.startswith(PACKTRAIN) for name in names]
    drawn = axes.barh(names, rates, height=0.66, color=[OURS if one else PLAIN for one in ours])
    axes.invert_yaxis()
    axes.bar_label(drawn, labels, padding=4, fontsize=8.5, color=INK)
    axes.set_title(title, loc="left", x=-0.41, pad=8, fontsize=11, fontweight="bold", color=INK)
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    for one, label in zip(ours, axes.get_yticklabels(), strict=True):
        label.set(color=OURS if one else INK, fontweight="bold" if one else "normal")


if __name__ == "__main__":
    main()
