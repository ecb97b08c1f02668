"""Compares two versions or builds of packtrain: `python -m benchmarks.versions OTHER_PYTHON [TASK ...]`.

OTHER_PYTHON is the interpreter of an environment that has the other version; this one's is the version compared with
it. Each task runs in a fresh process, in turn with one version and the other. It uses public names only, those that
both versions have.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

_BATCH: Final = 128
_ROOT: Final = Path(__file__).resolve().parents[1]
_SAMPLES: Final = 3000


def import_packtrain(_: Path) -> float:
    """Seconds of ``import packtrain``."""
    started = time.perf_counter()
    import packtrain  # noqa: F401

    return time.perf_counter() - started


def open_packed(folder: Path) -> float:
    """Seconds to open a dataset, on average, once everything is imported."""
    from packtrain import open_dataset

    open_dataset(folder / "crop-ready")
    started = time.perf_counter()
    for _ in range(100):
        open_dataset(folder / "crop-ready")
    return (time.perf_counter() - started) / 100


def records(folder: Path) -> float:
    """Seconds to read records at random, without decoding them."""
    from packtrain import open_dataset

    dataset = open_dataset(folder / "raw")
    rows = [row * 7919 % len(dataset) for row in range(50_000)]
    started = time.perf_counter()
    for row in rows:
        dataset.record(row)
    return time.perf_counter() - started


def samples(folder: Path) -> float:
    """Seconds to make samples of raw records in this process, one by one."""
    return _cropped(folder / "raw")


def crop_ready_samples(folder: Path) -> float:
    """Seconds to do the same with crop-ready JPEGs."""
    return _cropped(folder / "crop-ready")


def coefficient_samples(folder: Path) -> float:
    """Seconds to do the same with coefficients."""
    return _cropped(folder / "coefficients")


def raw(folder: Path) -> float:
    """Seconds of a loader with two workers over raw records."""
    return _loaded(folder / "raw", 5)


def raw_resized(folder: Path) -> float:
    """Seconds of the same with random sizes of crops."""
    return _loaded(folder / "raw", 2, resized=True)


def crop_ready(folder: Path) -> float:
    """Seconds of a loader with two workers over crop-ready JPEGs."""
    return _loaded(folder / "crop-ready", 1, resized=True)


def from_store(folder: Path) -> float:
    """Seconds of a loader with two workers over raw records of a website, all of which its cache has."""
    address = f"{Path(folder, 'address').read_text()}/raw"
    # Two versions may not understand each other's fetchers.
    stream = folder / f"stream-{Path(sys.prefix).stat().st_ino}"
    stream.mkdir(exist_ok=True)
    _loaded(address, 1, stage=stream)
    return _loaded(address, 5, stage=stream)


def growing(folder: Path) -> float:
    """Seconds to read a growing cache, which nobody fills, with two workers."""
    from packtrain import GrowingCache, Loader

    dataset = GrowingCache(folder / "growing").dataset(fields=("x",), timeout=60)
    with Loader(dataset, 16, shuffle=True, num_workers=2) as loader:
        return _passed(loader, 5)


def fill(folder: Path) -> float:
    """Seconds to fill a growing cache."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        return _fill(Path(made, "cache"))


def worker_memory(folder: Path) -> float:
    """Private bytes of a loader's worker after an epoch."""
    from packtrain import Loader, open_dataset
    from packtrain.transforms import CenterCrop

    with Loader(open_dataset(folder / "raw", CenterCrop(224)), _BATCH, num_workers=1) as loader:
        for _ in loader:
            pass
        (worker,) = multiprocessing.active_children()
        rollup = Path(f"/proc/{worker.pid}/smaps_rollup").read_text()
    return float(rollup.split("Anonymous:")[1].split()[0]) * 1024


def pack(folder: Path) -> float:
    """Seconds to pack the list crop-ready, with two processes."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        return _command("pack", folder / "list.txt", Path(made, "out"), "--workers", 2)


def index(folder: Path) -> float:
    """Seconds to index the tar shards of a packed dataset where they lie."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        return _command("index", folder / "shards", Path(made, "out"))


def stage_hit(folder: Path) -> float:
    """Seconds of ``packtrain stage`` for a dataset that is staged already."""
    return _command("stage", folder / "raw", "--to", folder / "staged")


TASKS: Final[dict[str, Callable[[Path], float]]] = {
    each.__name__: each
    for each in (
        import_packtrain,
        open_packed,
        records,
        samples,
        crop_ready_samples,
        coefficient_samples,
        raw,
        raw_resized,
        crop_ready,
        from_store,
        growing,
        fill,
        worker_memory,
        pack,
        index,
        stage_hit,
    )
}


def _cropped(dataset: Path) -> float:
    from packtrain import open_dataset
    from packtrain.transforms import CenterCrop

    samples = open_dataset(dataset, CenterCrop(224))
    started = time.perf_counter()
    for row in range(3000):
        samples[row % len(samples)]
    return time.perf_counter() - started


def _loaded(dataset: Path | str, epochs: int, *, resized: bool = False, **opened: Any) -> float:
    from packtrain import Loader, open_dataset
    from packtrain.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

    transform = [RandomResizedCrop(224) if resized else RandomCrop(224), RandomHorizontalFlip()]
    samples = open_dataset(dataset, transform, **opened)
    with Loader(samples, _BATCH, shuffle=True, seed=0, num_workers=2) as loader:
        return _passed(loader, epochs)


def _passed(loader: Iterable[object], epochs: int) -> float:
    """Seconds of so many epochs, after the first batch."""
    batches = chain.from_iterable(repeat(loader, epochs))
    next(batches)
    started = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - started


def _fill(cache: Path) -> float:
    return _command("fill", "benchmarks.versions:arrays", cache, "--budget", "4GB")


def arrays() -> Iterator[dict[str, Any]]:
    """Yields the samples of a growing cache."""
    import numpy as np

    numbers = np.random.default_rng(0).standard_normal((150, 1000), np.float32)
    return ({"x": numbers} for _ in range(1500))


def _command(*arguments: object) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "packtrain", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, cwd=_ROOT)
    return time.perf_counter() - started


def _prepare(folder: Path, images: Path) -> None:
    """Packs what the tasks read, with this version."""
    lines = [line.partition(" ") for line in images.read_text().splitlines()]
    found = [f"{(images.parent / path).resolve()} {label}\n" for path, _, label in lines]
    (folder / "list.txt").write_text("".join((found * (-(-_SAMPLES // len(found))))[:_SAMPLES]))
    _command("pack", folder / "list.txt", folder / "crop-ready")
    _command("pack", folder / "list.txt", folder / "raw", "--store", "raw", "--resize", "256x256")
    _command("pack", folder / "list.txt", folder / "coefficients", "--store", "coefficients")
    (folder / "shards").mkdir()
    for shard in (folder / "crop-ready").glob("*.tar"):
        os.link(shard, folder / "shards" / shard.name)
    (folder / "staged").mkdir()
    _command("stage", folder / "raw", "--to", folder / "staged")
    _fill(folder / "growing")


def _once(python: str, task: str, folder: Path) -> float:
    answer = subprocess.run([python, __file__, "--run", task, str(folder)], check=True, stdout=PIPE, text=True)
    return float(json.loads(answer.stdout.splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(TASKS[sys.argv[2]](Path(sys.argv[3]))))
        return
    from benchmarks.measure import alternate, machine, ratio, save, scratch
    from benchmarks.servers import website

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="the interpreter that has the other version")
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--variant", default="", help="what to add to the name of the file with the results")
    parser.add_argument("--rounds", type=int, default=5, help="how often each task runs (default: 5)")
    options = parser.parse_args()
    # What is installed is compiled, and so is each version after its first process.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    before, figures = machine(), dict[str, Any]()
    with scratch() as folder, website(folder) as server:
        Path(folder, "address").write_text(server.url)
        (server.folder / "raw").symlink_to(folder / "raw")
        _prepare(folder, Path(os.environ["PACKTRAIN_IMAGES"]))
        for task in options.tasks:
            cases: dict[str, Callable[[], float]] = {
                "this": lambda task=task: _once(sys.executable, task, folder),  # type: ignore[misc]
                "other": lambda task=task: _once(options.other, task, folder),  # type: ignore[misc]
            }
            found = alternate(cases, options.rounds)
            figures[task] = {"ratio": ratio(found["this"], found["other"]), **found}
            print(f"{task:18} this / other {figures[task]['ratio']:.3f}", flush=True)
    result = {"variant": options.variant, "rounds": options.rounds, "unit": "seconds, or bytes", "tasks": figures}
    save("versions", before, result, command=" ".join(["python -m benchmarks.versions OTHER_PYTHON", *sys.argv[2:]]))


if __name__ == "__main__":
    main()
