"""The chart of `packtrain tune`: images per second by workers and by prefetch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.installing import extra_command

if TYPE_CHECKING:
    from packtrain._extras.tune import SettingResult, TuneResult

INK: Final = "#52606d"
PLAIN: Final = "#9aa5b1"
BEST: Final = "#e07a1f"
# matplotlib depends on Pillow, which pip would install over pillow-simd. Without its dependencies it runs with either.
_BESIDE_PILLOW_SIMD: Final = (
    "pip install contourpy cycler fonttools kiwisolver packaging pyparsing python-dateutil && "
    "pip install --no-deps matplotlib"
)


def require_drawable(path: Path) -> None:
    """Checks that a chart can be drawn, before time is spent on measuring what it will show.

    Raises:
        UsageError: `path` does not end in .png, or its folder is missing.
        MissingDependency: matplotlib is not installed.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: expected a file name that ends in .png")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        command = _BESIDE_PILLOW_SIMD if _has_pillow_simd() else extra_command("plot")
        raise MissingDependency(f"--plot needs matplotlib ({error}): `{command}`") from error


def draw(result: TuneResult, path: Path) -> None:
    """Draws the chart of `result` into a PNG file: bars are medians, dots are measurements."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    options, rows = result.options, sorted(result.results, key=lambda row: row.setting)
    figure = Figure(figsize=(max(6.5, 1.8 + 0.6 * len(rows)), 4.2), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    colours = [BEST if row == result.best else PLAIN for row in rows]
    axes.bar(range(len(rows)), [row.rate for row in rows], width=0.62, color=colours, zorder=2)
    for place, row in enumerate(rows):
        axes.plot([place] * len(row.rates), row.rates, "o", ms=2.6, color=INK, mew=0, alpha=0.8, zorder=3)
        top, style = (place, max(row.rates)), {"ha": "center", "fontsize": 8, "color": INK}
        axes.annotate(f"{row.rate:,.0f}", top, (0, 5), textcoords="offset points", **style)
    axes.set_xticks(range(len(rows)), [_name(row, result) for row in rows], fontsize=8)
    axes.set_xlabel("workers x prefetch_factor", color=INK)
    axes.set_ylabel("images/s", color=INK)
    title = f"{Path(result.path).resolve().name}: {options.transform}, batches of {options.batch_size}"
    if options.consumer_ms:
        # The dashed line is a step that never waits.
        axes.axhline(1000 * options.batch_size / options.consumer_ms, color=INK, lw=0.8, ls="--", zorder=1)
        title += f", a step of {options.consumer_ms:g} ms"
    axes.set_title(title, loc="left", color=INK)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color="#e4e7eb", zorder=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.tight_layout()
    figure.savefig(path)


def _name(row: SettingResult, result: TuneResult) -> str:
    workers, prefetch = row.setting
    return (f"{workers} x {prefetch}" if workers else "0") + "\ndefault" * (row == result.default)


def _has_pillow_simd() -> bool:
    from packtrain._codec.pillow import pillow_version

    return pillow_version().startswith("pillow-simd")
