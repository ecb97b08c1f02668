"""Shared by the benchmarks: alternating rounds, child processes, the list of images, the machine, result files."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
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
_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")

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
    "timm",
    "torch",
    "torchvision",
    "webdataset",
)

_PILLOWS: Final = ("pillow", "pillow-simd")

Name = TypeVar("Name")
Figures = TypeVar("Figures")


class NotInstalled(Exception):
    """A contestant is not installed in the interpreter that should run it."""


class Unmeasurable(Exception):
    """This machine cannot run a benchmark; the message says why and what to do."""


def alternate(
    cases: Mapping[Name, Callable[[], Figures]], repetitions: int, *, warm_up: int = 1
) -> dict[Name, list[Figures]]:
    """Runs all cases in turn, A B C A B C ..., so that whatever else the machine does affects all of them.

    Args:
        cases: Functions by name; each measures something once and returns it. One that raises `NotInstalled` is left
            out.
        repetitions: Number of rounds whose figures are kept.
        warm_up: Number of rounds before them; 0 for cases that warm up by themselves.

    Returns:
        The figures of each case in the order in which they were measured.
    """
    samples: dict[Name, list[Figures]] = {name: [] for name in cases}
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
    """Median of the ratios of each round: what disturbs a machine for some seconds affects both sides of a ratio."""
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
    """An empty folder in /dev/shm, so that no disk is measured; with `on_disk`, where temporary files usually go."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() and not on_disk else None
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-", dir=parent) as folder:
        yield Path(folder)


def require_cold() -> None:
    """Checks that `cold_seconds` can work.

    Raises:
        Unmeasurable: Only root may drop the page cache.
    """
    if not os.access(_DROP_CACHES, os.W_OK):
        raise Unmeasurable("dropping the page cache needs root")


def cold_seconds(command: str, made: Path) -> float:
    """Seconds of a shell command that finds nothing in the page cache; the folder that it made is removed."""
    os.sync()
    _DROP_CACHES.write_text("3")
    try:
        started = time.perf_counter()
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started
    finally:
        shutil.rmtree(made, ignore_errors=True)


def kind_of(folder: Path) -> str:
    """The type of file system that holds `folder`. Result files name this, not the path."""
    return file_system(folder)


def pillow_build() -> dict[str, str]:
    """The Pillow of this interpreter: its name, which becomes part of a result file's name, and its version."""
    version = pillow_version()
    return {"variant": version.split()[0].lower(), "pillow": version}


def real_list() -> Path:
    """The list of real images that PACKTRAIN_IMAGES names."""
    name = os.environ.get("PACKTRAIN_IMAGES")
    if not name:
        sys.exit("PACKTRAIN_IMAGES is not set: set it to a list of real images, `path label` per line, and run again")
    return Path(name).resolve()


def describe_list(images: Path) -> dict[str, Any]:
    """Number of images and bytes in a list, and the list's SHA-256."""
    lines = images.read_text().splitlines()
    sizes = [(images.parent / line.rsplit(None, 1)[0]).stat().st_size for line in lines]
    return {
        "images": len(sizes),
        "bytes": sum(sizes),
        "list_sha256": hashlib.sha256(images.read_bytes()).hexdigest(),
    }


def repeated_list(images: Path, lines: int) -> tuple[str, int, int]:
    """A list repeated to about `lines` lines: the text, the number of repetitions, the number of lines."""
    text = images.read_text().rstrip("\n") + "\n"
    repeats = max(1, round(lines / text.count("\n")))
    return text * repeats, repeats, text.count("\n") * repeats


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries of this interpreter that a benchmark may use."""
    found, variant = {"python": platform.python_version()}, pillow_build()["variant"]
    for name in _LIBRARIES:
        # One of them may lie in front of the other, by way of PYTHONPATH.
        if name in _PILLOWS and name != variant:
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine that the figures are measured on."""
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
    """A figure next to its bound, and whether the bound is met."""
    met = (most is None or measured <= most) and (least is None or measured >= least)
    bound = {"at_most": most} if most is not None else {"at_least": least}
    return {"what": what, "measured": measured, **bound, "met": met}


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a Markdown table: the first column left-aligned, the others right-aligned."""
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
        name: Name of the benchmark.
        before: What `machine` returned when the benchmark began.
        result: What it measured. Its `variant`, if it has one, becomes part of the file's name, so that a run under one
            Pillow does not replace a run under the other.
        command: The command, if it is not ``python benchmarks/run.py NAME``.
        folder: The folder for the file.

    Returns:
        The path of the file.
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
    # Each list of figures goes on one line.
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), json.dumps(_rounded(body), indent=1))
    path.write_text(text + "\n")
    return path


def saved(name: str) -> list[dict[str, Any]]:
    """The kept results of a benchmark, one for each variant."""
    return [
        json.loads(path.read_text())
        for path in sorted([*RESULTS.glob(f"{name}.json"), *RESULTS.glob(f"{name}-*.json")])
    ]


def _rounded(value: Any) -> Any:
    """Rounds every float to six digits; no measurement has more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
