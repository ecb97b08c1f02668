"""The other table of the DALI recipe: the largest batch that fits in a GPU's memory, by network and back end.

Found by doubling and bisection; each size is tried in a process of its own, with the memory of a V100 of 16 GB.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.backends import TITLES, gpu_name, training_child
from benchmarks.measure import NotInstalled, Unmeasurable, kind_of, pillow_build, print_table, real_list, scratch
from benchmarks.rounds import has_gpu
from benchmarks.training import ALONE, BACKENDS, NETWORKS, STEPS
from benchmarks.workloads import LINES, QUICK_LINES, WORKLOADS, prepare

MEMORY: Final = 16_160 << 20
"""The bytes that a V100 of 16 GB has; what a larger GPU has beyond is occupied."""
SECONDS: Final = 120.0
"""After this time no further size is tried; the brackets say how far it got."""
QUICK_SECONDS: Final = 20.0
START: Final = {"resnet18": 512, "shufflenet_v2_x0_5": 2048}
"""The first size that is tried."""
STEP: Final = 32
"""All sizes are multiples of this."""
FINENESS: Final = 1 / 32
"""Width at which a bracket is narrow enough, as a part of the size."""
AUTHORS: Final = {
    ("resnet18", "dali-gpu"): "640 to 928",
    ("resnet18", "dali-cpu"): "800 to 1,216",
    ("resnet18", "files"): "1,248",
}
"""Figures of the recipe's author on a V100, with Pillow-SIMD."""

Case = TypeVar("Case", bound=Hashable)


@dataclass
class Bracket:
    """Bounds of the largest size that fits.

    Attributes:
        start: The first size to try.
        fits: The largest size that fitted; 0 if none was tried or none did.
        fails: The smallest size that did not; None if all did.
    """

    start: int
    fits: int = 0
    fails: int | None = None

    @property
    def width(self) -> float:
        """The part of the larger size that is not decided."""
        return math.inf if self.fails is None else (self.fails - self.fits) / self.fails

    @property
    def size(self) -> int | None:
        """The next size to try; None if the bracket is narrow enough."""
        if self.fails is None:
            return self.fits * 2 or self.start
        middle = (self.fits + self.fails) // 2 // STEP * STEP
        return middle if self.fits < middle and self.width > FINENESS else None

    def record(self, size: int, *, fitted: bool) -> None:
        if fitted:
            self.fits = size
        else:
            self.fails = size


def search(
    brackets: Mapping[Case, Bracket], fits: Callable[[Case, int], bool], seconds: float
) -> dict[Case, list[tuple[int, bool]]]:
    """Tries sizes, always where the bracket is widest, until all are narrow or the time is over.

    Args:
        brackets: What is known of each case; changed in place.
        fits: True if a case fits with this size. It raises `NotInstalled` for a case that cannot be tried.
        seconds: After this time no further size is tried.

    Returns:
        The sizes that were tried, in their order, and whether they fitted; none for a case that cannot be tried.
    """
    tried: dict[Case, list[tuple[int, bool]]] = {case: [] for case in brackets}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        wanted = {case: size for case in tried if (size := brackets[case].size) is not None}
        if not wanted:
            break
        case = max(wanted, key=lambda case: brackets[case].width)
        try:
            fitted = fits(case, wanted[case])
        except NotInstalled:
            del tried[case]
            continue
        tried[case].append((wanted[case], fitted))
        brackets[case].record(wanted[case], fitted=fitted)
    return tried


def measure(*, quick: bool = False) -> dict[str, Any]:
    """The largest batch of each network with each back end.

    Raises:
        Unmeasurable: There is no GPU.
    """
    if not has_gpu():
        raise Unmeasurable("no GPU here: it asks how large a batch fits in the memory of one")
    networks = [name for name in NETWORKS["cuda"] if name != ALONE]
    brackets = {(network, name): Bracket(START[network]) for network in networks for name in BACKENDS}
    missing: dict[str, str] = {}
    with scratch() as outer:
        folder, output = outer / "data", kind_of(outer)
        described = prepare(WORKLOADS["jpeg"], real_list(), folder, QUICK_LINES if quick else LINES)

        def fits(case: tuple[str, str], size: int) -> bool:
            network, name = case
            return _fits(name, folder, network, size, missing)

        tried = search(brackets, fits, QUICK_SECONDS if quick else SECONDS)
    found = {
        network: {
            name: {
                "fits": brackets[network, name].fits,
                "fails": brackets[network, name].fails,
                "tried": [list(pair) for pair in tried[network, name]],
            }
            for name in BACKENDS
            if tried.get((network, name))
        }
        for network in networks
    }
    return {
        **pillow_build(),
        "gpu": gpu_name(),
        "input": described,
        "output": output,
        "settings": {
            "memory_bytes": MEMORY,
            "steps": STEPS,
            "step": STEP,
            "fineness": FINENESS,
            "precision": "float16",
        },
        "missing": missing,
        "largest_batch": found,
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    gib = result["settings"]["memory_bytes"] / (1 << 30)
    for network, found in result["largest_batch"].items():
        rows = [[BACKENDS[name], *_bounds(found.get(name)), AUTHORS.get((network, name), "-")] for name in BACKENDS]
        title = f"{TITLES[network]}; {result['gpu']}, {gib:.1f} GiB of it"
        print_table([title, "largest batch that fits", "does not fit", "V100 of the recipe's author"], rows)
        print()
    for name, reason in result["missing"].items():
        print(f"- {BACKENDS[name]}: {reason.splitlines()[0]}")


def _bounds(found: Mapping[str, Any] | None) -> tuple[str, str]:
    if found is None:
        return "-", "-"
    return f"{found['fits']:,}", "-" if found["fails"] is None else f"{found['fails']:,}"


def _fits(name: str, folder: Path, network: str, size: int, missing: dict[str, str]) -> bool:
    try:
        return bool(training_child("fits", name, folder, network, size, MEMORY))
    except NotInstalled as error:
        missing[name] = f"{error} is missing"
        raise
    except RuntimeError as error:
        missing[name] = f"failed: {str(error).strip().splitlines()[-1]}"
        raise NotInstalled(name) from error
