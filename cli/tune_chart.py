"""The chart of `packtrain tune`: images per second by decoder, by workers and by prefetch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from packtrain._core.errors import MissingDependency, UsageError

if TYPE_CHECKING:
    from packtrain._readers.tuning import Row, Setting, TuneResult

INK: Final = "#52606d"
PLAIN: Final = "#9aa5b1"
BEST: Final = "#e07a1f"
# matplotlib asks for Pillow, which pip would put over pillow-simd: without its dependencies it takes either.
_COMMANDS: Final = {
    False: "pip install 'packtrain[plot]'",
    True: "pip install contourpy cycler fonttools kiwisolver packaging pyparsing python-dateutil && "
    "pip install --no-deps matplotlib",
}


class _Panel(NamedTuple):
    title: str
    rows: Sequence[Row]
    names: Sequence[str]


def require_drawable(path: Path) -> None:
    """Checks that a chart can be drawn before an hour is spent on what is to be on it.

    Raises:
        UsageError: `path` does not end in .png, or its folder is missing.
        MissingDependency: matplotlib is not installed.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: expected a name that ends in .png")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"--plot needs matplotlib ({error}): `{_COMMANDS[_has_simd()]}`") from error


def draw(result: TuneResult, path: Path) -> None:
    """Draws the chart of `result` into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [panel for panel in _panels(result) if len(panel.rows) > 1] or [_only(result)]
    widths = [1.0 + 0.6 * len(panel.rows) for panel in panels]
    figure = Figure(figsize=(max(6.5, sum(widths) + 0.8), 4.2), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    top = max(_needed(result), *(rate for panel in panels for row in panel.rows for rate in row.rates))
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, result)
        axes.set_ylim(0, 1.15 * top)
    grid[0].set_ylabel("images/s", color=INK)
    subject, options = result.subject, result.options
    name = Path(subject.path).resolve().name
    figure.suptitle(name, x=0.02, y=0.975, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.text(0.02, 0.875, _subtitle(result), fontsize=8.5, color=INK)
    pace = "; dashed: a step that never waits" if options.consumer_ms else ""
    figure.text(
        0.02,
        0.02,
        f"bars: medians; dots: {len(result.trials)} measurements; {options.transform}, batches of "
        f"{options.batch_size}, {subject.cores} core(s), {subject.store}{pace}",
        fontsize=7.5,
        color=PLAIN,
    )
    figure.subplots_adjust(left=0.1, right=0.98, top=0.78, bottom=0.19, wspace=0.12)
    figure.savefig(path)


def _subtitle(result: TuneResult) -> str:
    decoder, workers, prefetch = result.best.setting
    best = f"best: {workers} worker{'' if workers == 1 else 's'}, {decoder}"
    best += f", prefetch_factor {prefetch}" if workers else ""
    if result.options.consumer_ms:
        return f"{best}: a step of {result.options.consumer_ms:g} ms waits {result.best.wait_share:.1%} of the time"
    return f"{best}: {result.best.rate:,.0f} images/s"


def _panels(result: TuneResult) -> list[_Panel]:
    best = result.best.setting
    usual = result.default.setting.prefetch if result.default else best.prefetch
    apart = ", without the step" if result.raw_rows else ""
    start = (result.raw_rows or result.rows)[0].setting if result.default is None else result.default.setting
    contestants = [row for row in result.raw_rows or result.rows if row.setting[1:] == (start.workers, usual)]
    workers = sorted(
        (row for row in result.rows if (row.setting.decoder, row.setting.prefetch) == (best.decoder, usual)),
        key=lambda row: row.setting.workers,
    )
    prefetch = sorted((row for row in result.rows if row.setting[:2] == best[:2]), key=lambda row: row.setting.prefetch)
    return [
        _Panel(f"decoder{apart}", contestants, [row.setting.decoder for row in contestants]),
        _Panel("workers", workers, [str(row.setting.workers) for row in workers]),
        _Panel("prefetch_factor", prefetch, [str(row.setting.prefetch) for row in prefetch]),
    ]


def _only(result: TuneResult) -> _Panel:
    """Where nothing can be compared, because it ended early."""
    return _Panel("workers", [result.best], [str(result.best.setting.workers)])


def _draw_panel(axes: Any, panel: _Panel, result: TuneResult) -> None:
    axes.bar(
        range(len(panel.rows)),
        [row.rate for row in panel.rows],
        width=0.62,
        color=[BEST if row.setting == result.best.setting else PLAIN for row in panel.rows],
        zorder=2,
    )
    for place, row in enumerate(panel.rows):
        # Side by side, as dots on each other say nothing of how many there are.
        last = len(row.rates) - 1
        places = [place + 0.05 * (number - last / 2) for number in range(last + 1)]
        axes.plot(places, row.rates, "o", ms=2.6, color=INK, mew=0, alpha=0.8, zorder=3)
        top, style = (place, max(row.rates)), {"ha": "center", "fontsize": 8, "color": INK}
        axes.annotate(f"{row.rate:,.0f}", top, (0, 5), textcoords="offset points", **style)
    names = [
        f"{name}\ndefault" if _is_default(row.setting, result) else name
        for name, row in zip(panel.names, panel.rows, strict=True)
    ]
    axes.set_xticks(range(len(panel.rows)), names, fontsize=8)
    axes.set_xlim(-0.6, len(panel.rows) - 0.4)
    axes.set_title(panel.title, loc="left", fontsize=9.5, color=INK)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color="#e4e7eb", zorder=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelleft=axes.get_subplotspec().is_first_col())
    if result.options.consumer_ms and "without" not in panel.title:
        axes.axhline(_needed(result), color=INK, lw=0.8, ls="--", zorder=1)


def _needed(result: TuneResult) -> float:
    """Images per second that a step takes which never waits; 0 without one."""
    options = result.options
    return 1000 * options.batch_size / options.consumer_ms if options.consumer_ms else 0.0


def _is_default(setting: Setting, result: TuneResult) -> bool:
    return result.default is not None and setting == result.default.setting


def _has_simd() -> bool:
    from packtrain._codec.pillow import pillow_version

    return pillow_version().startswith("pillow-simd")
