"""A cache that grows while training reads it: filled and read at the same time, read back, and at an epoch's change.

    python -m benchmarks.growing train FOLDER SECONDS     # fills and trains
    python -m benchmarks.growing read SIDE FOLDER SECONDS # reads what is there
    python -m benchmarks.growing change FOLDER CHANGES    # moves from generation to generation
    python -m benchmarks.growing fill FOLDER OPTIONS SAMPLES SIDE_LENGTH

each measure once, in a process of its own; the last one is the filler of the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure import ROOT, alternate, child, kind_of, medians, print_table, ratio, scratch, target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from packtrain._readers.dataset.growing import GrowingDataset

REPETITIONS: Final = 5
QUICK_SECONDS: Final = 1.0
BATCH: Final = 16
RECORD: Final = (150, 1000)
RECORD_BYTES: Final = 4 * RECORD[0] * RECORD[1]

RATE: Final = 640_000_000
"""Bytes per second that the filler may write, and that training takes: a little more than what they should reach."""
LEAST: Final = 600.0
"""Megabytes per second that should flow in and out."""
BUDGET: Final = "1GB"
QUICK_BUDGET: Final = "300MB"
HEADROOM: Final = 0.6
"""As much as is read in an epoch is written in it, and must find room."""
TRAINED_SECONDS: Final = 10.0
FILL_WORKERS: Final = 1

RECORDS: Final = 700
QUICK_RECORDS: Final = 100
READ_WORKERS: Final = 2
READ_SECONDS: Final = 3.0
OURS: Final = "packtrain"
QUEUE: Final = "arrays through multiprocessing.Queue"
TORCH: Final = "torch DataLoader over .npy files"
SIDES: Final = {OURS: "packtrain", QUEUE: "queue", TORCH: "torch"}
FASTER: Final = {QUEUE: 5.0, TORCH: 1.0}
"""By what factor reading back should be faster than each."""

SHARDS: Final = 1000
QUICK_SHARDS: Final = 50
SMALL: Final = 64
SMALL_PER_SHARD: Final = 4
"""Records of 64 x 64 float32 values, 16 KiB each."""
SHARD_BYTES: Final = 72 << 10
"""So many of them with all that is around them, and not one more."""
CHANGES: Final = 10
REPLACED: Final = 0.1
"""Part of the shards that are new in each generation."""
PIPELINED: Final = 8
"""Batches before the last one at which the next generation is published."""
MOST_LOST: Final = 50.0
"""Milliseconds."""


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Rates in and out and processor time of filling while training; rates of reading; time of an epoch's change."""
    repetitions = 1 if quick else REPETITIONS
    with scratch() as folder:
        output = kind_of(folder)
        cases = {"": partial(_trained, folder / "trained", quick)}
        trained = alternate(cases, repetitions, warm_up=0)[""]
    with scratch() as folder:
        records, seconds = (QUICK_RECORDS, QUICK_SECONDS) if quick else (RECORDS, READ_SECONDS)
        prepare(folder, records)
        sides = {name: partial(_read, side, folder, seconds) for name, side in SIDES.items()}
        rates = alternate(sides, repetitions, warm_up=0)
    with scratch() as folder:
        shards, changes = (QUICK_SHARDS, 2) if quick else (SHARDS, CHANGES)
        change = child("growing", "change", folder / "cache", shards, changes)
    middle = {name: medians({name: [each[name] for each in trained]})[name] for name in trained[0]}
    ratios = {name: ratio(rates[OURS], rates[name]) for name in SIDES}
    return {
        "output": output,
        "settings": {
            "record": {"dtype": "float32", "shape": RECORD, "bytes": RECORD_BYTES},
            "batch_size": BATCH,
            "repetitions": repetitions,
            "training": {"rate": RATE, "budget": QUICK_BUDGET if quick else BUDGET, "headroom": HEADROOM},
            "workers": {"training": FILL_WORKERS, "reading": READ_WORKERS, "change": READ_WORKERS},
            "records": records,
            "seconds": {"training": QUICK_SECONDS if quick else TRAINED_SECONDS, "reading": seconds},
            "order": "alternating, each in a fresh process",
        },
        "training": trained,
        "median_training": middle,
        "mb_per_second": rates,
        "median_mb_per_second": medians(rates),
        "ratios": ratios,
        "change": change,
        "targets": [
            target("filling while training: MB/s in", middle["mb_per_second_in"], least=LEAST),
            target("filling while training: MB/s out", middle["mb_per_second_out"], least=LEAST),
            target("filling while training: training process, % of a core", middle["training_percent"], most=10),
            *(target(f"reading back: MB/s over {name}", ratios[name], least=least) for name, least in FASTER.items()),
            target(f"an epoch's change, {change['shards']} shards: ms lost", change["lost_ms"], most=MOST_LOST),
        ],
    }


def show(result: dict[str, Any]) -> None:
    middle = result["median_training"]
    names = ("training", "workers", "filler")
    rows = [[name, f"{middle[f'{name}_percent']:.1f}"] for name in names]
    print(f"{middle['mb_per_second_in']:,.0f} MB/s in, {middle['mb_per_second_out']:,.0f} MB/s out, ", end="")
    print(f"{middle['wait_share']:.1%} of the time waited for data\n")
    print_table(["filling while training", "% of a core"], rows)
    print()
    rates = result["median_mb_per_second"]
    print_table(
        ["reading back", "MB/s", "packtrain over it"],
        [[name, f"{rate:,.0f}", f"{result['ratios'][name]:.2f}"] for name, rate in rates.items()],
    )
    print()
    change = result["change"]
    middle = medians({name: change[f"{name}_ms"] for name in ("same", "changed")})
    rows = [["the same generation", f"{middle['same']:.1f}"], ["a new one", f"{middle['changed']:.1f}"]]
    print_table([f"last batch of an epoch to first of the next, {change['shards']} shards", "ms"], rows)


def _trained(folder: Path, quick: bool) -> dict[str, float]:
    budget, seconds = (QUICK_BUDGET, QUICK_SECONDS) if quick else (BUDGET, TRAINED_SECONDS)
    found: dict[str, float] = child("growing", "train", folder, budget, seconds)
    subprocess.run(["rm", "-rf", folder], check=True)
    return found


def _read(side: str, folder: Path, seconds: float) -> float:
    return float(child("growing", "read", side, folder, seconds))


def prepare(folder: Path, records: int) -> None:
    """Writes the same records into a cache and into files."""
    import numpy as np

    _fill(folder / "cache", {"budget": 4 * records * RECORD_BYTES}, records, RECORD)
    (folder / "files").mkdir()
    for number, sample in enumerate(_samples(records, RECORD)):
        np.save(folder / "files" / f"{number:06d}.npy", sample["x"])


def _samples(count: int | None, shape: Sequence[int]) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """Arrays that lie in memory already, as those of a client that received them; endless if `count` is None."""
    import numpy as np

    random = np.random.default_rng(0)
    arrays = [random.standard_normal(tuple(shape), np.float32) for _ in range(16)]
    number = 0
    while count is None or number < count:
        yield {"x": arrays[number % len(arrays)]}
        number += 1


def _fill(folder: Path, options: dict[str, Any], samples: int | None, shape: Sequence[int]) -> None:
    from packtrain._growing.options import FillOptions
    from packtrain._growing.process import run

    run(folder, partial(_samples, samples, shape), FillOptions(**options))


def _filler(
    folder: Path, options: dict[str, Any], samples: int | None, shape: Sequence[int]
) -> subprocess.Popen[bytes]:
    words = ["fill", str(folder), json.dumps(options), json.dumps(samples), json.dumps(shape)]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.growing", *words], cwd=ROOT)


def _opened(folder: Path) -> GrowingDataset:
    """The newest generation, as soon as there is one."""
    from packtrain import GrowingCache

    return GrowingCache(folder).dataset(fields=("x",), timeout=60)


def _train(folder: Path, budget: str, seconds: float) -> dict[str, float]:
    """Takes batches at a pace while a filler writes, after one epoch in which everything starts."""
    from packtrain import Loader

    options = {"budget": budget, "headroom": HEADROOM, "rate": RATE}
    filler = _filler(folder, options, None, RECORD)
    try:
        dataset = _opened(folder)
        with Loader(dataset, BATCH, shuffle=True, drop_last=True, num_workers=FILL_WORKERS) as loader:
            for _ in loader:
                pass
            return _flow(loader, dataset, filler, seconds)
    finally:
        filler.kill()
        filler.wait()


def _flow(loader: Any, dataset: GrowingDataset, filler: subprocess.Popen[bytes], seconds: float) -> dict[str, float]:
    """Rates, and processor time of all processes, over at least so many seconds in which the filler published."""
    workers = [process for process in _children(os.getpid()) if process != filler.pid]
    processes = {"workers": workers, "filler": [filler.pid]}
    # Waits for whole epochs, since what is published in one is seen in the next.
    first, waited, taken, epochs = _written(dataset), 0.0, 0, 0
    before = {name: _processor_seconds(each) for name, each in processes.items()}
    started, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds or (_written(dataset) == first and filler.poll() is None):
        for _held in loader:
            taken += BATCH
            time.sleep(max(0.0, taken * RECORD_BYTES / RATE - (time.perf_counter() - started)))
        waited += loader.stats.present.waiting_seconds
        epochs += 1
    passed, used = time.perf_counter() - started, time.process_time() - used
    after = {name: _processor_seconds(each) for name, each in processes.items()}
    return {
        "mb_per_second_in": (_written(dataset) - first) * RECORD_BYTES / 1e6 / passed,
        "mb_per_second_out": taken * RECORD_BYTES / 1e6 / passed,
        "training_percent": 100 * used / passed,
        **{f"{name}_percent": 100 * (after[name] - before[name]) / passed for name in processes},
        "wait_share": waited / passed,
        "epochs": epochs,
        "seconds": passed,
    }


def _written(dataset: GrowingDataset) -> int:
    """Samples that the filler has published so far."""
    from packtrain._core.errors import GenerationGone
    from packtrain._core.generations import Generation, generation_numbers

    while True:
        # It may be replaced before it is read.
        with suppress(GenerationGone):
            root = dataset.store.path
            return Generation.load(root, generation_numbers(root)[-1]).end_sample


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [found for child in map(int, text.split()) for found in (child, *_children(child))]


def _processor_seconds(processes: Iterable[int]) -> float:
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _megabytes_per_second(epochs: Iterator[Iterable[int]], seconds: float) -> float:
    """Rate over whole epochs, after one in which everything starts.

    Args:
        epochs: An endless stream of epochs, each of which yields numbers of records.
        seconds: The shortest time to measure.
    """
    sum(next(epochs))
    started, records = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        records += sum(next(epochs))
    return records * RECORD_BYTES / 1e6 / passed


def _packtrain_epochs(folder: Path) -> Generator[Iterable[int], None, None]:
    from packtrain import Loader

    with Loader(_opened(folder / "cache"), BATCH, shuffle=True, num_workers=READ_WORKERS) as loader:
        while True:
            yield (len(batch.x) for batch in loader)


def _queue_epochs(folder: Path) -> Generator[Iterable[int], None, None]:
    """A process puts arrays into a queue. They are not even made into batches."""
    import multiprocessing

    records = len(os.listdir(folder / "files"))
    queue: Any = multiprocessing.Queue(2 * BATCH)
    process = multiprocessing.Process(target=_put, args=(queue, records), daemon=True)
    process.start()
    try:
        while True:
            yield (len(queue.get()) // RECORD[0] for _ in range(records))
    finally:
        process.kill()


def _put(queue: Any, records: int) -> None:
    for sample in _samples(None, RECORD):
        queue.put(sample["x"])


def _torch_epochs(folder: Path) -> Generator[Iterable[int], None, None]:
    """A DataLoader for each epoch, as it takes to see new files."""
    from torch.utils.data import DataLoader

    while True:
        files: Any = _Files(sorted((folder / "files").iterdir()))
        yield (len(batch) for batch in DataLoader(files, BATCH, shuffle=True, num_workers=READ_WORKERS))


class _Files:
    """Arrays in files, as a dataset of torch's."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> npt.NDArray[np.float32]:
        import numpy as np

        found: npt.NDArray[np.float32] = np.load(self._paths[row])
        return found


EPOCHS: Final[dict[str, Callable[[Path], Generator[Iterable[int], None, None]]]] = {
    "packtrain": _packtrain_epochs,
    "queue": _queue_epochs,
    "torch": _torch_epochs,
}


def _change(folder: Path, shards: int, changes: int) -> dict[str, Any]:
    """Times from the last batch of an epoch to the first of the next, with and without a new generation."""
    from packtrain import Loader

    # Half is free for shards that older generations still need; a shard takes some more with index and sidecar.
    options = {"budget": int(2.3 * shards * SHARD_BYTES), "headroom": 0.5, "shard_size": SHARD_BYTES}
    add = partial(_add, folder, options)
    add(shards)
    dataset = _opened(folder)
    times: dict[bool, list[float]] = {False: [], True: []}
    generations = [dataset.generation]
    with Loader(dataset, BATCH, shuffle=True, num_workers=READ_WORKERS) as loader:
        for changed in [False, False] + [False, True] * changes:
            batches, last = len(loader), 0.0
            for number, _held in enumerate(loader):
                if number == max(0, batches - PIPELINED):
                    # Either way the workers have nothing left to do for a while.
                    add(max(1, int(REPLACED * shards))) if changed else time.sleep(1)
                last = time.perf_counter()
            following = iter(loader)
            next(following)
            times[changed].append(1000 * (time.perf_counter() - last))
            generations.append(dataset.generation)
            for _ in following:
                pass
        count = len(dataset.store.generation.records)
    # The first two warm up.
    same, new = times[False][2:], times[True]
    lost = [one - other for one, other in zip(new, same, strict=True)]
    return {
        "shards": count,
        "generations": generations,
        "same_ms": same,
        "changed_ms": new,
        "lost_ms": medians({"": lost})[""],
    }


def _add(folder: Path, options: dict[str, Any], shards: int) -> None:
    filler = _filler(folder, options, shards * SMALL_PER_SHARD, (SMALL, SMALL))
    if filler.wait(timeout=120):
        raise RuntimeError("the filler failed")


def _main() -> None:
    what, *words = sys.argv[1:]
    if what == "fill":
        folder, options, samples, shape = words
        _fill(Path(folder), json.loads(options), json.loads(samples), json.loads(shape))
        return
    result: Any
    if what == "train":
        result = _train(Path(words[0]), words[1], float(words[2]))
    elif what == "read":
        result = _megabytes_per_second(EPOCHS[words[0]](Path(words[1])), float(words[2]))
    else:
        result = _change(Path(words[0]), int(words[1]), int(words[2]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    _main()
