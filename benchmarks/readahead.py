"""Read-ahead from a disk of 200 MB/s: a loop device over a file in memory, with a limit. Needs root."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from benchmarks.crops import pack_images
from benchmarks.measure import (
    MiB,
    alternate,
    describe_list,
    medians,
    pillow_build,
    print_table,
    ratio,
    real_list,
    repeated_list,
    scratch,
    target,
)
from packtrain import PackedDataset, open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.readahead import ReadAhead
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

LIMIT: Final = 200_000_000
"""Bytes per second."""
LINES: Final = 4000
BATCH: Final = 128
WORKERS: Final = 2
REPETITIONS: Final = 5
STORES: Final = {
    "crop-ready": StoreOptions(),
    "raw": StoreOptions(store="raw", resize="short=256"),
}
QUARTER: Final = "a quarter of an epoch"
PARTS: Final = {QUARTER: 4, "a whole epoch": 1}
WITHOUT: Final = "without"
READ_AHEAD: Final = "read-ahead"
CASES: Final = {
    WITHOUT: ("mmap", False),
    READ_AHEAD: ("mmap", True),
    f"{WITHOUT}, pread": ("pread", False),
    f"{READ_AHEAD}, pread": ("pread", True),
}
"""How records are read, and whether there is read-ahead."""
PROBE: Final = 110_000
"""Bytes of a random read that the device is tried with."""
CGROUPS: Final = Path("/sys/fs/cgroup")


class Pass(NamedTuple):
    """What came of reading some records once.

    Attributes:
        images_per_second: Decoded.
        record_rate: Bytes of records per second.
        device_rate: Bytes per second that the device was asked for.
    """

    images_per_second: float
    record_rate: float
    device_rate: float


class Disk:
    """A folder on a device with a limit that holds for processes that `enter`."""

    def __init__(self, folder: Path, device: str, group: Path) -> None:
        self.folder = folder
        self._statistics = Path(f"/sys/block/{device}/stat")
        self._group = group

    def enter(self) -> None:
        """Puts this process under the limit."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def bytes_read(self) -> int:
        return 512 * int(self._statistics.read_text().split()[2])

    def forget(self) -> None:
        """Drops all files from memory. They must not be mapped."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def measure() -> dict[str, Any]:
    images = real_list()
    with scratch() as folder:
        text, repeats, lines = repeated_list(images, LINES)
        (folder / "train.txt").write_text(text)
        sets: dict[str, Any] = {}
        for store, options in STORES.items():
            path = pack_images(folder / "train.txt", folder / store, options, root=images.parent)
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            with _disk(folder, size * 5 // 4 + 64 * MiB) as disk:
                _run("cp", "-r", path, disk.folder)
                _run("sync", "-f", disk.folder)
                sets[store] = _measured(disk, disk.folder / store)
    over = {
        store: {
            part: {case: ratio(figures, rates[WITHOUT]) for case, figures in rates.items()}
            for part, rates in measured["images_per_second"].items()
        }
        for store, measured in sets.items()
    }
    return {
        **pillow_build(),
        "input": {**describe_list(images), "repeats": repeats, "lines": lines},
        "output": "ext4 on a loop device over a file on tmpfs, limited by blkio.throttle or io.max",
        "settings": {
            "bytes_per_second": LIMIT,
            "batch_size": BATCH,
            "workers": WORKERS,
            "repetitions": REPETITIONS,
            "warm_up": 1,
            "order": "alternating, each in fresh processes, with no record in memory",
        },
        "stores": sets,
        "ratios": over,
        # A whole epoch that fits into memory asks a disk for each byte once anyway.
        "targets": [
            target(f"{store}, {QUARTER}: images/s over reading without", ratios[QUARTER][READ_AHEAD], least=1.5)
            for store, ratios in over.items()
        ],
    }


def show(result: dict[str, Any]) -> None:
    for number, (store, measured) in enumerate(result["stores"].items()):
        rows = []
        for part, rates in measured["median_images_per_second"].items():
            for case, rate in rates.items():
                moved = [measured[f"median_{name}"][part][case] / 1e6 for name in ("record_rate", "device_rate")]
                over = result["ratios"][store][part][case]
                rows.append([f"{part}: {case}", f"{rate:,.0f}", f"{over:.2f}", *(f"{value:.0f}" for value in moved)])
        print("\n" * (number > 0), end="")
        print_table([f"{store}, cold", "images/s", f"over {WITHOUT}", "records, MB/s", "device, MB/s"], rows)


def _measured(disk: Disk, path: Path) -> dict[str, Any]:
    probes = {
        "sequential": partial(_in_child, disk, _sequential, path),
        "random": partial(_in_child, disk, _random, path),
    }
    found: dict[str, Any] = {
        "device_bytes_per_second": {name: [probe() for _ in range(3)] for name, probe in probes.items()}
    }
    for part, share in PARTS.items():
        cases = {name: partial(_pass, disk, path, share, *how) for name, how in CASES.items()}
        samples = alternate(cases, REPETITIONS)
        for field in Pass._fields:
            figures = {name: [getattr(one, field) for one in passes] for name, passes in samples.items()}
            found.setdefault(field, {})[part] = figures
            found.setdefault(f"median_{field}", {})[part] = medians(figures)
    return found


def _pass(disk: Disk, path: Path, share: int, io: str, ahead: bool) -> Pass:
    """Reads one of `share` parts of an epoch, in random order, with all workers."""
    store = open_dataset(path).store
    rows = np.random.default_rng(0).permutation(len(store))[: len(store) // share]
    size = int(store.index["length"][rows].sum())
    del store
    disk.forget()
    context = multiprocessing.get_context("fork")
    barrier, taken = context.Barrier(WORKERS + 1), context.Value("i", 0)
    batches = [batch.tolist() for batch in np.split(rows, range(BATCH, len(rows), BATCH))]
    processes = [
        context.Process(target=_work, args=(disk, path, batches, taken, barrier, io, ahead)) for _ in range(WORKERS)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    before, started = disk.bytes_read(), time.perf_counter()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a worker ended with exit status {process.exitcode}")
    seconds = time.perf_counter() - started
    return Pass(len(rows) / seconds, size / seconds, (disk.bytes_read() - before) / seconds)


def _work(
    disk: Disk, path: Path, batches: Sequence[Sequence[int]], taken: Any, barrier: Any, io: str, ahead: bool
) -> None:
    disk.enter()
    torch.set_num_threads(1)
    dataset = open_dataset(path, [RandomResizedCrop(224), RandomHorizontalFlip()], io=io)
    through: Callable[[Sequence[int]], Iterable[int]] = ReadAhead(dataset.store.will_need).through if ahead else iter
    barrier.wait()
    while (number := _next(taken)) < len(batches):
        for row in through(batches[number]):
            dataset[row]


def _next(taken: Any) -> int:
    with taken.get_lock():
        taken.value += 1
        return int(taken.value) - 1


def _in_child(disk: Disk, function: Callable[[PackedDataset], float], path: Path) -> float:
    disk.forget()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        disk.enter()
        theirs.send(function(open_dataset(path)))

    process = context.Process(target=run)
    process.start()
    process.join()
    return float(ours.recv())


def _sequential(dataset: PackedDataset) -> float:
    """Bytes per second of reading the first shard, as dd does."""
    with (dataset.store.path / dataset.store.manifest.shards[0].name).open("rb", buffering=0) as file:
        started, size = time.perf_counter(), 0
        while data := file.read(MiB):
            size += len(data)
        return size / (time.perf_counter() - started)


def _random(dataset: PackedDataset) -> float:
    """The same of random reads, none of which overlap."""
    with (dataset.store.path / dataset.store.manifest.shards[0].name).open("rb", buffering=0) as file:
        places = np.random.default_rng(0).permutation(os.fstat(file.fileno()).st_size // PROBE)[:2000].tolist()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        started = time.perf_counter()
        for place in places:
            os.pread(file.fileno(), PROBE, place * PROBE)
        return len(places) * PROBE / (time.perf_counter() - started)


@contextmanager
def _disk(folder: Path, size: int) -> Iterator[Disk]:
    """A disk of `size` bytes with the limit. Whatever happens, it is taken down again."""
    image, mounted = folder / "disk", folder / "mounted"
    with ExitStack() as stack:
        try:
            with image.open("wb") as file:
                file.truncate(size)
            stack.callback(image.unlink)
            device = _run("losetup", "--find", "--show", image)
            stack.callback(_run, "losetup", "--detach", device)
            _run("mkfs.ext4", "-q", "-O", "^has_journal", device)
            mounted.mkdir(exist_ok=True)
            _run("mount", "-o", "noatime", device, mounted)
            stack.callback(_run, "umount", mounted)
            group = _limited_group(Path(f"/sys/block/{Path(device).name}/dev").read_text().strip())
            stack.callback(group.rmdir)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", None) or error).strip()
            sys.exit(
                f"no device with a limit can be made here: {reason}. This needs root, loop devices (losetup, "
                "mkfs.ext4, mount) and a cgroup controller blkio (v1) or io (v2)"
            )
        yield Disk(mounted, Path(device).name, group)


def _limited_group(device: str) -> Path:
    """A control group whose processes read at most `LIMIT` bytes per second from a device."""
    name = f"packtrain-bench-{os.getpid()}"
    old = CGROUPS / "blkio"
    if old.is_dir():
        group, limit = old / name, ("blkio.throttle.read_bps_device", f"{device} {LIMIT}")
    else:
        with suppress(OSError):
            (CGROUPS / "cgroup.subtree_control").write_text("+io")
        group, limit = CGROUPS / name, ("io.max", f"{device} rbps={LIMIT}")
    group.mkdir()
    try:
        (group / limit[0]).write_text(limit[1])
    except OSError:
        group.rmdir()
        raise
    return group


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
