"""The chart of `packtrain tune`: images per second by decoder, by workers and by prefetch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.installing import extra_command

if TYPE_CHECKING:
    from packtrain._extras.tuning import Setting, SettingResult, TuneResult

INK: Final = "#52606d"
PLAIN: Final = "#9aa5b1"
BEST: Final = "#e07a1f"
# matplotlib depends on Pillow, which pip would install over pillow-simd. Without its dependencies it runs with either.
_BESIDE_PILLOW_SIMD: Final = (
    "pip install contourpy cycler fonttools kiwisolver packaging pyparsing python-dateutil && "
    "pip install --no-deps matplotlib"
)


class _Panel(NamedTuple):
    """A group of bars; `names` are the labels below them, `paced` is True if their trials had a training step."""

    title: str
    results: Sequence[SettingResult]
    names: Sequence[str]
    paced: bool


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
    """Draws the chart of `result` into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [panel for panel in _panels(result) if len(panel.results) > 1] or [_single_bar(result)]
    widths = [1.0 + 0.6 * len(panel.results) for panel in panels]
    figure = Figure(figsize=(max(6.5, sum(widths) + 0.8), 4.2), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    top = max(_needed_rate(result), *(rate for panel in panels for each in panel.results for rate in each.rates))
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, result)
        axes.set_ylim(0, 1.15 * top)
    grid[0].set_ylabel("images/s", color=INK)
    target, options = result.target, result.options
    name = Path(target.path).resolve().name
    figure.suptitle(name, x=0.02, y=0.975, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.text(0.02, 0.875, _subtitle(result), fontsize=8.5, color=INK)
    dashes = "; dashed line: a step that never waits" if options.consumer_ms else ""
    figure.text(
        0.02,
        0.02,
        f"bars are medians, dots are measurements ({len(result.trials)}); {options.transform}, batches of "
        f"{options.batch_size}, {target.cores} core(s), {target.store}{dashes}",
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
    """Decoders at one setting, then workers and prefetch factors with the best decoder."""
    best = result.best.setting
    paced = bool(result.options.consumer_ms)
    compared = result.results_without_step or result.results
    start = compared[0].setting if result.default is None else result.default.setting
    usual = best.prefetch if result.default is None else start.prefetch
    decoders = [each for each in compared if each.setting[1:] == (start.workers, usual)]
    workers = sorted(
        (each for each in result.results if (each.setting.decoder, each.setting.prefetch) == (best.decoder, usual)),
        key=lambda each: each.setting.workers,
    )
    prefetch = sorted(
        (each for each in result.results if each.setting[:2] == best[:2]), key=lambda each: each.setting.prefetch
    )
    title = "decoder, without the step" if result.results_without_step else "decoder"
    return [
        _Panel(title, decoders, [each.setting.decoder for each in decoders], paced and not result.results_without_step),
        _Panel("workers", workers, [str(each.setting.workers) for each in workers], paced),
        _Panel("prefetch_factor", prefetch, [str(each.setting.prefetch) for each in prefetch], paced),
    ]


def _single_bar(result: TuneResult) -> _Panel:
    """The only panel if tuning was stopped before there was anything to compare."""
    return _Panel("workers", [result.best], [str(result.best.setting.workers)], bool(result.options.consumer_ms))


def _draw_panel(axes: Any, panel: _Panel, result: TuneResult) -> None:
    axes.bar(
        range(len(panel.results)),
        [each.rate for each in panel.results],
        width=0.62,
        color=[BEST if each.setting == result.best.setting else PLAIN for each in panel.results],
        zorder=2,
    )
    for place, each in enumerate(panel.results):
        # Side by side, so that equal measurements do not hide each other.
        last = len(each.rates) - 1
        places = [place + 0.05 * (number - last / 2) for number in range(last + 1)]
        axes.plot(places, each.rates, "o", ms=2.6, color=INK, mew=0, alpha=0.8, zorder=3)
        top, style = (place, max(each.rates)), {"ha": "center", "fontsize": 8, "color": INK}
        axes.annotate(f"{each.rate:,.0f}", top, (0, 5), textcoords="offset points", **style)
    names = [
        f"{name}\ndefault" if _is_default(each.setting, result) else name
        for name, each in zip(panel.names, panel.results, strict=True)
    ]
    axes.set_xticks(range(len(panel.results)), names, fontsize=8)
    axes.set_xlim(-0.6, len(panel.results) - 0.4)
    axes.set_title(panel.title, loc="left", fontsize=9.5, color=INK)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color="#e4e7eb", zorder=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelleft=axes.get_subplotspec().is_first_col())
    if panel.paced:
        axes.axhline(_needed_rate(result), color=INK, lw=0.8, ls="--", zorder=1)


def _needed_rate(result: TuneResult) -> float:
    """Images per second that the training step takes if it never waits; 0 if there is no step."""
    options = result.options
    return 1000 * options.batch_size / options.consumer_ms if options.consumer_ms else 0.0


def _is_default(setting: Setting, result: TuneResult) -> bool:
    return result.default is not None and setting == result.default.setting


def _has_pillow_simd() -> bool:
    from packtrain._codec.pillow import pillow_version

    return pillow_version().startswith("pillow-simd")
