"""Rounds of contestants, or of the sides of a benchmark, which take turns, each in a fresh process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.contestants import CONTESTANTS, PACKTRAIN, TORCH_PILLOW
from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import MiB, NotInstalled, alternate, child, kind_of, pillow_build, ratio, scratch
from benchmarks.peers.common import BATCH, WORKERS
from benchmarks.workloads import LINES, QUICK_LINES, Workload

REPETITIONS: Final = 5
WARM_UP: Final = 8
"""Batches before the clock starts: those that are prefetched at the start."""
QUICK_SECONDS: Final = 1.0

Side = TypeVar("Side", bound=Hashable)
Figures = TypeVar("Figures")


def take_turns(
    sides: Iterable[Side],
    prepare: Callable[[Path, int], dict[str, Any]],
    measured: Callable[[Side, Path, float], Figures],
    *,
    quick: bool,
    seconds: float,
) -> tuple[dict[Side, list[Figures]], dict[str, Any]]:
    """Measures the sides of a benchmark in alternating rounds.

    Args:
        sides: The sides.
        prepare: Writes what they read into a folder that does not exist yet, from a list repeated to about so many
            lines, and describes it.
        measured: Images per second of a side over this folder, or several such figures, each measured for at least so
            many seconds, in a fresh process, which warms up by itself. It raises `NotInstalled` for a side that cannot
            be run.
        quick: True for one short round over a short list.
        seconds: How long each figure is measured.

    Returns:
        The figures of each side that can be run, and what the result file says of all of them.
    """
    repetitions, seconds, lines = (1, QUICK_SECONDS, QUICK_LINES) if quick else (REPETITIONS, seconds, LINES)
    with scratch() as outer:
        folder, output = outer / "data", kind_of(outer)
        described = prepare(folder, lines)
        samples = alternate({side: partial(measured, side, folder, seconds) for side in sides}, repetitions, warm_up=0)
    return samples, {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": {
            "batch_size": BATCH,
            "workers": WORKERS,
            "warm_up_batches": WARM_UP,
            "seconds": seconds,
            "repetitions": repetitions,
            "order": "alternating, each in a fresh process",
        },
    }


class Field:
    """The contestants that can be run, and why the others cannot.

    Args:
        names: The contestants to try.
        gpu: True if there is a GPU, for the contestants that need one.

    Attributes:
        contestants: Versions and options of each contestant that can be run.
        missing: For each of the others the reason why it cannot.
    """

    def __init__(self, names: Iterable[str], *, gpu: bool) -> None:
        self.contestants: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        for name in names:
            if CONTESTANTS[name].gpu and not gpu:
                continue
            if (answer := self.tried(name, partial(run, name, "versions"))) is not None:
                self.contestants[name] = answer

    def tried(self, name: str, call: Callable[[], Any]) -> Any | None:
        """Return the result of `call`; None if the contestant cannot be run, and so is out. packtrain must not fail."""
        try:
            return call()
        except NotInstalled:
            self._out(name, why_missing(CONTESTANTS[name].environment))
        except RuntimeError as error:
            if name == PACKTRAIN:
                raise
            self._out(name, f"failed: {str(error).strip().splitlines()[-1]}")
        return None

    def write(self, workload: Workload, folder: Path) -> None:
        """Has every contestant write the images in its own format."""
        written = set()
        for name in list(self.contestants):
            if (module := CONTESTANTS[name].module) not in written:
                written.add(module)
                self.tried(name, partial(run, name, "write", workload.stream, folder))

    def rates(
        self, workload: Workload, folder: Path, *, repetitions: int = REPETITIONS, seconds: float | None = None
    ) -> dict[str, list[float]]:
        """Images per second in alternating rounds; a contestant that fails in one of them is out.

        Args:
            workload: The comparison.
            folder: What `workloads.prepare` wrote.
            repetitions: Number of rounds.
            seconds: How long to measure after a short warm-up; None for the workload's own warm-up and time.
        """

        def once(name: str) -> float:
            if workload.cold:
                forget(folder)
            what = ("epoch",) if workload.cold else ("rate",)
            limit = () if workload.cold or seconds is None else (seconds,)
            answer = self.tried(name, partial(run, name, *what, workload.stream, folder, *limit))
            if answer is None:
                raise NotInstalled(name)
            return float(answer["images_per_second"])

        # Each contestant warms up by itself.
        return alternate({name: partial(once, name) for name in self.contestants}, repetitions, warm_up=0)

    def _out(self, name: str, reason: str) -> None:
        self.contestants.pop(name, None)
        self.missing[name] = reason


def run(name: str, *arguments: object) -> Any:
    """Runs a contestant in its interpreter, see `loaders`.

    Raises:
        NotInstalled: It is not installed.
        RuntimeError: It failed.
    """
    what, *rest = arguments
    environment = CONTESTANTS[name].environment
    python = interpreter(environment)
    if environment == "pillow" and python == interpreter(None):
        raise NotInstalled(TORCH_PILLOW)
    return child("loaders", what, name, *rest, python=python)


def ratios_of(samples: Mapping[str, list[float]], ours: str = PACKTRAIN) -> dict[str, float]:
    """By what factor `ours` is faster than each contestant."""
    return {name: ratio(samples[ours], figures) for name, figures in samples.items()}


def has_gpu() -> bool:
    """True if there is a GPU. The driver's tool is asked, since torch would take memory of the device."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except OSError:
        return False


def forget(folder: Path) -> None:
    """Drops all files of a folder from the page cache; no process may have them mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def read_through(path: Path) -> int:
    """Reads a file as dd does; returns its size in bytes."""
    size = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(MiB):
            size += len(data)
    return size
