"""`tune`: searches for the best loader setting by measuring the loader itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from packtrain._core.arguments import checks_names
from packtrain._core.errors import UsageError

from .conclusion import TuneResult, conclude
from .options import TuneOptions, TuneTarget
from .search import search
from .trials import Trial


@checks_names(options=TuneOptions)
def tune(
    path: str | os.PathLike[str],
    options: TuneOptions | None = None,
    *,
    on_trial: Callable[[Trial, float, TuneTarget], None] | None = None,
) -> TuneResult:
    """Finds the best loader setting for a dataset on this host, in about ``options.seconds`` seconds.

    Without ``options.consumer_ms`` the best setting is the fastest one, with it the cheapest one that a training step
    of this length does not wait for. Other work on the host distorts the measurements. Workers are forked, so call this
    before the program starts threads.

    Args:
        path: Path of the dataset.
        options: What to look for, and how long.
        on_trial: Called after each measurement with the trial, the seconds since the start, and the dataset and host.

    Raises:
        DatasetError: The dataset is missing or damaged.
        LoaderError: The transform fails, or returns images of different sizes.
        UsageError: The transform is unknown, or there is too little time to measure everything once.
    """
    start = time.monotonic()
    from .bench import Bench

    options = options or TuneOptions()
    bench = Bench(path, options)
    trials: list[Trial] = []

    def keep(trial: Trial, seconds: float) -> None:
        trials.append(trial)
        if on_trial is not None:
            on_trial(trial, seconds, bench.target)

    search(bench.target, options, bench.run_trial, time.monotonic, keep, start)
    result = conclude(bench.target, options, trials)
    if result is None:
        raise UsageError(
            f"nothing could be measured in {options.seconds:g} s, although the first trial suggested otherwise: the "
            "host is probably busy. Give more `seconds`"
        )
    return result
