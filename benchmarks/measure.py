"""What the benchmarks share: alternating repetitions, child processes, the real images, the machine, result files."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeVar

from packtrain._codec.pillow import pillow_version
from packtrain._core.mounts import file_system

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
MiB: Final = 1 << 20

_LIBRARIES: Final = (
    "packtrain",
    "crc32c",
    "h5py",
    "lmdb",
    "mosaicml-streaming",
    "numpy",
    "pillow",
    "pillow-simd",
    "simplejpeg",
    "torch",
    "webdataset",
)

Figures = TypeVar("Figures")


class NotInstalled(Exception):
    """A peer is not installed in the interpreter that should run it."""


class Unmeasurable(Exception):
    """This machine cannot run a benchmark; the message says why and what to do."""


def alternate(
    cases: Mapping[str, Callable[[], Figures]], repetitions: int, *, warm_up: int = 1
) -> dict[str, list[Figures]]:
    """Runs all cases in turn, A B C A B C ..., so that whatever else the machine does falls on all of them.

    Args:
        cases: Each measures something once and returns it. One that raises `NotInstalled` is left out.
        repetitions: Rounds whose figures are kept.
        warm_up: Rounds before them; 0 for cases that warm up by themselves.

    Returns:
        The figures of each case in the order in which they were measured.
    """
    samples: dict[str, list[Figures]] = {name: [] for name in cases}
    for _ in range(warm_up + repetitions):
        for name in list(samples):
            try:
                samples[name].append(cases[name]())
            except NotInstalled:
                del samples[name]
    return {name: figures[warm_up:] for name, figures in samples.items()}


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each case."""
    return {name: statistics.median(figures) for name, figures in samples.items()}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median of the ratios in each round: what disturbs a machine for some seconds falls on both sides of them."""
    return statistics.median(over / under for over, under in zip(numerators, denominators, strict=True))


def child(module: str, *arguments: object, python: str = sys.executable) -> Any:
    """Runs `benchmarks.<module>` in a fresh process and returns what it prints last, parsed as JSON.

    Raises:
        NotInstalled: It printed ``{"missing": ...}``.
        RuntimeError: It failed.
    """
    command = [python, "-m", f"benchmarks.{module}", *map(str, arguments)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{process.stdout}{process.stderr}")
    answer = json.loads(process.stdout.splitlines()[-1])
    if isinstance(answer, dict) and "missing" in answer:
        raise NotInstalled(answer["missing"])
    return answer


@contextmanager
def scratch(*, on_disk: bool = False) -> Iterator[Path]:
    """A folder in /dev/shm, so that no disk is measured; `on_disk` or without one, where temporary files usually go."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() and not on_disk else None
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-", dir=parent) as folder:
        yield Path(folder)


def kind_of(folder: Path) -> str:
    """The type of file system that holds `folder`; its path is nobody's business."""
    return file_system(folder)


def pillow_build() -> dict[str, str]:
    """Which Pillow this interpreter has: what sets a result's file apart, and what is in it."""
    version = pillow_version()
    return {"variant": version.split()[0].lower(), "pillow": version}


def real_list() -> Path:
    """The list of real images that PACKTRAIN_IMAGES names."""
    name = os.environ.get("PACKTRAIN_IMAGES")
    if not name:
        sys.exit("PACKTRAIN_IMAGES names no list of real images (`path label` per line): set it and run again")
    return Path(name).resolve()


def describe_list(images: Path) -> dict[str, Any]:
    """Number and size of the images of a list, and the list's hash."""
    lines = images.read_text().splitlines()
    sizes = [(images.parent / line.rsplit(None, 1)[0]).stat().st_size for line in lines]
    return {
        "images": len(sizes),
        "bytes": sum(sizes),
        "list_sha256": hashlib.sha256(images.read_bytes()).hexdigest(),
    }


def repeated_list(images: Path, lines: int) -> tuple[str, int, int]:
    """A list, repeated to about `lines` lines: its text, how often it is repeated, and how many lines that makes."""
    text = images.read_text().rstrip("\n") + "\n"
    repeats = max(1, round(lines / text.count("\n")))
    return text * repeats, repeats, text.count("\n") * repeats


def versions() -> dict[str, str]:
    """Python and the libraries of this interpreter that a benchmark may use."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "libraries": versions(),
    }


def target(what: str, measured: float, *, most: float | None = None, least: float | None = None) -> dict[str, Any]:
    """A figure against its bound."""
    met = (most is None or measured <= most) and (least is None or measured >= least)
    bound = {"at_most": most} if most is not None else {"at_least": least}
    return {"what": what, "measured": measured, **bound, "met": met}


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a Markdown table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for number, row in enumerate([header, *rows]):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"| {' | '.join(cells)} |")
        if number == 0:
            print(f"| {'-' * widths[0]} | {' | '.join('-' * (width - 1) + ':' for width in widths[1:])} |")


def print_targets(targets: Sequence[Mapping[str, Any]]) -> None:
    """Prints each target with its figure."""
    print()
    for item in targets:
        bound = f"at most {item['at_most']:g}" if "at_most" in item else f"at least {item['at_least']:g}"
        print(f"{'met   ' if item['met'] else 'MISSED'} {item['what']}: {item['measured']:.3g} ({bound})")


def save(
    name: str, before: Mapping[str, Any], result: Mapping[str, Any], *, command: str = "", folder: Path = RESULTS
) -> Path:
    """Writes the raw figures of a benchmark.

    Args:
        name: Of the benchmark.
        before: What `machine` said when it began.
        result: What it measured. What its `variant` names, if anything, is part of the file's name: runs under one
            Pillow do not replace those under the other.
        command: What was run, unless that is ``run.py NAME``.
        folder: Where to.
    """
    body = {
        "benchmark": name,
        "command": command or f"python benchmarks/run.py {name}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": before,
        **result,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{'-'.join(filter(None, (name, result.get('variant'))))}.json"
    # A list of figures on one line.
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), json.dumps(_rounded(body), indent=1))
    path.write_text(text + "\n")
    return path


def saved(name: str) -> list[dict[str, Any]]:
    """The results of a benchmark that were written last, one for each variant."""
    return [
        json.loads(path.read_text())
        for path in sorted([*RESULTS.glob(f"{name}.json"), *RESULTS.glob(f"{name}-*.json")])
    ]


def _rounded(value: Any) -> Any:
    """Six digits of every float: more were never measured."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
