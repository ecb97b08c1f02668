"""`packtrain tune`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from packtrain._core.errors import UsageError
from packtrain._core.files import file_errors
from packtrain._core.sizes import size

from .output import changing_line, print_json, say
from .paths import PAGE, PATH

if TYPE_CHECKING:
    from packtrain._extras.tune import SettingResult, Trial, TuneResult

_INTERRUPTED: Final = 130


@click.command("tune", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("dataset", type=PATH)
@click.option(
    "--transform",
    default="rrc224",
    metavar="NAME",
    help="rrc224: random resized crop and flip; center224: resize and center crop; crop224: random crop and flip, "
    "without resizing; any other size in place of 224; none; or module:attribute.",
)
@click.option("--batch-size", type=click.IntRange(1), default=64, help="Images per batch.")
@click.option(
    "--consumer-ms",
    type=click.FloatRange(0),
    default=0.0,
    metavar="N",
    help="Duration of a training step: find the cheapest setting that a step of N ms per batch does not wait for.  "
    "[default: find the fastest]",
    show_default=False,
)
@click.option("--seconds", type=click.FloatRange(1), default=60.0, help="Time to measure for.")
@click.option(
    "--max-workers", type=click.IntRange(0), help="Largest number of workers to try.  [default: one more than cores]"
)
@click.option("--out", type=PAGE, metavar="FILE.html", help="Also write the result there, as a page with a chart.")
@click.option("--json", "as_json", is_flag=True, help="Print all measurements as JSON.")
def command(dataset: Path, out: Path | None, as_json: bool, **choices: Any) -> int:
    """Measure how fast DATASET can be read here with different numbers of workers and prefetch factors.

    Prints the best setting as a line of Python. Ctrl-C stops early and prints what was found so far.
    """
    from packtrain._extras.tune import TuneOptions, conclude, tune

    # For --transform module:attribute: like `python -m`, find modules in the current folder.
    sys.path.insert(0, "")
    options = TuneOptions(**choices)
    trials: list[Trial] = []
    with nullcontext() if as_json else changing_line() as show:

        def on_trial(trial: Trial, passed: float) -> None:
            trials.append(trial)
            if show is not None:
                workers, prefetch = trial.setting
                time = f"{min(passed, options.seconds):.0f} of {options.seconds:.0f} s"
                show(f"tune: {time}: {workers} x {prefetch}: {trial.rate:,.0f} images/s")

        try:
            result, code = tune(dataset, options, on_trial=on_trial), 0
        except KeyboardInterrupt:
            code = _INTERRUPTED
    if code:
        say("stopped; what was found so far:" if trials else "stopped before anything was found", err=True)
        if not trials:
            return code
        result = conclude(str(dataset), options, trials)
    if out is not None:
        from packtrain._extras.report.page import tune_page

        with file_errors(out, UsageError):
            out.write_text(tune_page(result), encoding="utf-8")
    if as_json:
        print_json(result)
    else:
        _show(result)
        if out is not None:
            say(f"\npage: {out}")
    return code


def _show(result: TuneResult) -> None:
    options = result.options
    step = f", a step of {options.consumer_ms:g} ms" if options.consumer_ms else ""
    say(
        f"{result.path}: {options.transform}, batches of {options.batch_size}{step}; {len(result.trials)} measurements"
        f"\n\n  {'workers':>7}{'prefetch':>10}{'images/s':>10}{'spread':>9}{'trials':>8}{'memory':>12}{'waiting':>9}"
    )
    for row in result.results:
        say(_line(row, result))
    say(f"\n{result.imports}\nloader = {result.line}", colour="green")
    say("\n".join(["", *result.findings]))


def _line(row: SettingResult, result: TuneResult) -> str:
    (workers, prefetch), rates = row.setting, row.rates
    spread = f"{(max(rates) - min(rates)) / 2 / row.rate:.1%}" if len(rates) > 1 else "-"
    ahead = prefetch if workers else "-"
    note = ", and the " * (row == result.best == result.default) or "  "
    return (
        f"{'*' if row == result.best else ' '} {workers:>7}{ahead:>10}{row.rate:>10,.0f}{spread:>9}{len(rates):>8}"
        f"{size(row.memory):>12}{row.wait_share:>9.1%}"
        + "  best" * (row == result.best)
        + f"{note}default" * (row == result.default)
    )
