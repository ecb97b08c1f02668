"""Rounds of contestants, each in a fresh process of its own interpreter, on what `workloads.prepare` wrote."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, PACKTRAIN, TORCH_PILLOW
from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import MiB, NotInstalled, alternate, child, ratio
from benchmarks.workloads import Workload

REPETITIONS: Final = 5


class Field:
    """Who competes, and why the others do not.

    Attributes:
        contestants: Versions and options of whoever can be run.
        missing: Reasons of whoever cannot.
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
        """What `call` returns; None, and the contestant is out, if it cannot be run. packtrain may not fail."""
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
        """Everybody writes the images in the format of their own."""
        written = set()
        for name in list(self.contestants):
            if (module := CONTESTANTS[name].module) not in written:
                written.add(module)
                self.tried(name, partial(run, name, "write", workload.stream, folder))

    def rates(
        self, workload: Workload, folder: Path, *, repetitions: int = REPETITIONS, seconds: float | None = None
    ) -> dict[str, list[float]]:
        """Images per second out of alternating rounds; whoever fails in one of them is out.

        Args:
            workload: What is read.
            folder: Where it is.
            repetitions: Rounds.
            seconds: How long to measure after a short warm-up; None: as long as the figure needs.
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

        # Each has its own warm-up.
        return alternate({name: partial(once, name) for name in self.contestants}, repetitions, warm_up=0)

    def _out(self, name: str, reason: str) -> None:
        self.contestants.pop(name, None)
        self.missing[name] = reason


def run(name: str, *arguments: object) -> Any:
    """Runs a contestant in its interpreter, see `loaders`.

    Raises:
        NotInstalled: It is not there.
        RuntimeError: It failed.
    """
    what, *rest = arguments
    environment = CONTESTANTS[name].environment
    python = interpreter(environment)
    if environment == "pillow" and python == interpreter(None):
        raise NotInstalled(TORCH_PILLOW)
    return child("loaders", what, name, *rest, python=python)


def ratios_of(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """How many times as fast as each contestant packtrain is."""
    return {name: ratio(samples[PACKTRAIN], figures) for name, figures in samples.items()}


def has_gpu() -> bool:
    """Whether torch sees one. Asked of the driver's tool, since torch would take memory of the device."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except OSError:
        return False


def forget(folder: Path) -> None:
    """Drops all files of a folder from memory. They must not be mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def read_through(path: Path) -> int:
    """Reads a file as dd does; its size."""
    size = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(MiB):
            size += len(data)
    return size
