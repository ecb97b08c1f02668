"""Training from an object store through a bounded cache: fetched in each epoch, speed when all is there, cold start.

    python -m benchmarks.from_store epochs URL PLACE SHARE EPOCHS CHUNK
    python -m benchmarks.from_store pairs URL PLACE FOLDER EPOCHS CHUNK

go through epochs in a process of their own: through a cache of a share of the dataset; or, in turn, through a cache of
everything and over a local copy. CHUNK is where a chunk ends, in bytes. The last part of URL says what is in there:
``raw`` or ``jpegs``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import child, print_table, ratio, real_list, repeated_list, scratch, target
from benchmarks.servers import Proxy, proxy, website
from packtrain import PackOptions, StoreOptions, pack

ROWS: Final = 21_900
QUICK_ROWS: Final = 900
JPEGS: Final = 2_100
BATCH: Final = 64
WORKERS: Final = 2
EPOCHS: Final = 4
PAIRS: Final = 12
SETTLED: Final = 2
"""Epochs before the cache is in a steady state."""
SHARES: Final = (0.25, 0.5, 0.75)
CHUNK: Final = 12 << 20
SMALL_CHUNK: Final = 2 << 20
"""For the shares: a dataset of a few gigabytes then has as many chunks as one of ten times the size."""
LIMIT: Final = 500e6
REPETITIONS: Final = 3
ROUNDS: Final = 15
"""Processes: they differ more from each other than the pairs of epochs in one of them."""


def measure(*, quick: bool = False) -> dict[str, Any]:
    """All figures."""
    rows, repetitions, rounds = (QUICK_ROWS, 1, 1) if quick else (ROWS, REPETITIONS, ROUNDS)
    with scratch() as folder, website(folder) as server, proxy(server.port) as between:
        address = server.through(between.port).url
        dataset, jpegs = server.folder / "raw", server.folder / "jpegs"
        _pack(folder, dataset, rows, StoreOptions("raw", resize="256x256"))
        _pack(folder, jpegs, min(rows, JPEGS), StoreOptions("crop-ready"))
        url = f"{address}/raw"
        total = sum(path.stat().st_size for path in dataset.glob("*.tar"))
        steady = [_steady(folder, url, between, share, total) for share in SHARES]
        between.limit(LIMIT)
        cold = [_epochs(folder, url, "none", 1)["first_batch"] for _ in range(repetitions)]
        between.limit(None)
        raw = _warm(folder, url, dataset, rounds)
        decoded = _warm(folder, f"{address}/jpegs", jpegs, rounds)
    return {
        "input": {"records": rows, "bytes": total, "store": "raw, 256x256", "batch_size": BATCH, "workers": WORKERS},
        "settings": {
            "repetitions": repetitions,
            "rounds": rounds,
            "pairs": PAIRS,
            "jpegs": JPEGS,
            "server": "nginx",
            "limit_of_cold_start": LIMIT,
            "chunk_bytes": CHUNK,
        },
        "steady": steady,
        "cold_start_seconds": cold,
        "warm_epoch_seconds": raw["warm"],
        "local_epoch_seconds": raw["local"],
        "warm_jpeg_epoch_seconds": decoded["warm"],
        "local_jpeg_epoch_seconds": decoded["local"],
        "targets": [
            *(
                target(f"datasets fetched per epoch, {each['share']:g} cached", each["fetched"], most=each["most"])
                for each in steady
            ),
            target("second epoch, raw: speed over a local copy's", ratio(raw["local"], raw["warm"]), least=0.97),
            target("second epoch, JPEG: the same", ratio(decoded["local"], decoded["warm"]), least=0.97),
            target("cold start at 500 MB/s: s to the first batch", statistics.median(cold), most=3.0),
        ],
    }


def show(result: dict[str, Any]) -> None:
    """Prints the medians."""
    rows = [
        [f"datasets fetched per epoch, {each['share']:g} cached", f"{each['fetched']:.2f}"] for each in result["steady"]
    ]
    names = [name for name in result if name.endswith("_seconds")]
    rows += [[name.replace("_", " "), f"{statistics.median(result[name]):.2f}"] for name in names]
    print_table(["", ""], rows)


def _pack(folder: Path, dataset: Path, rows: int, store: StoreOptions) -> None:
    images = real_list()
    text, _, _ = repeated_list(images, rows)
    (folder / "train.txt").write_text(text)
    options = PackOptions("tar", store, root=images.parent, shard_size=200 << 20)
    pack(folder / "train.txt", dataset, options, num_workers=2)


def _steady(folder: Path, url: str, between: Proxy, share: float, total: int) -> dict[str, Any]:
    """Datasets fetched in each epoch through a cache of a share of the dataset, as the proxy counts bytes."""
    between.forget()
    found = _epochs(folder, url, share, EPOCHS, SMALL_CHUNK)
    through = between.traffic().bytes
    counted = sum(found["fetched"])
    assert counted <= through <= 1.05 * counted + (16 << 20), (counted, through)
    per_epoch = [each / total for each in found["fetched"]]
    return {
        "share": share,
        "per_epoch": per_epoch,
        "lanes": found["lanes"],
        "window": found["window"],
        "chunks": found["chunks"],
        "fetched": statistics.fmean(per_epoch[SETTLED:]),
        "most": 1 - share + 0.05,
    }


def _warm(folder: Path, url: str, dataset: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of epochs through a cache that has everything, and over the dataset itself, in turn."""
    place = Path(tempfile.mkdtemp(dir=folder))
    child("from_store", "epochs", url, place, "none", 1, CHUNK)
    seconds: dict[str, list[float]] = {"warm": [], "local": []}
    for _ in range(rounds):
        found = child("from_store", "pairs", url, place, dataset, PAIRS, CHUNK)
        for name, all_seconds in seconds.items():
            all_seconds += found[name][SETTLED:]
    shutil.rmtree(place)
    return seconds


def _epochs(folder: Path, url: str, share: float | str, epochs: int, chunk: int = CHUNK) -> dict[str, Any]:
    # Never the same place again: the fetching process of the run before lives on for some seconds.
    place = Path(tempfile.mkdtemp(dir=folder))
    found: dict[str, Any] = child("from_store", "epochs", url, place, share, epochs, chunk)
    shutil.rmtree(place)
    return found


def _main() -> None:
    what, url, place, other, count, chunk = sys.argv[1:]
    from packtrain._storage.streams import cutting

    cutting.ENOUGH, cutting.MOST = int(chunk), int(chunk) * 4 // 3  # type: ignore[misc]
    found = (
        _in_turn(url, place, other, int(count)) if what == "pairs" else _through_cache(url, place, other, int(count))
    )
    print(json.dumps(found))


def _through_cache(url: str, place: str, share: str, epochs: int) -> dict[str, Any]:
    from packtrain import open_dataset

    started, first, transform = time.perf_counter(), 0.0, _transform(url)
    dataset = open_dataset(url, transform, stage=place)
    if share != "none":
        assert dataset.store.chunks is not None
        sizes = -(-dataset.store.chunks.table.bytes // 4096) * 4096
        overhead = dataset.store.chunks.state()["overhead"]
        place = os.path.join(place, "again")
        os.mkdir(place)
        dataset = open_dataset(url, transform, stage=place, budget=int(overhead + float(share) * int(sizes.sum())))
    cache = dataset.store.chunks
    assert cache is not None
    fetched = list[int]()
    with _loader(dataset) as loader:
        for _ in range(epochs):
            before = cache.state()["fetched_bytes"]
            for _ in loader:
                first = first or time.perf_counter() - started
            fetched.append(cache.state()["fetched_bytes"] - before)
        parameters = loader.state_dict()["parameters"]
    return {
        "fetched": fetched,
        "first_batch": first,
        "lanes": parameters["lanes"],
        "window": parameters["window"],
        "chunks": len(cache.table),
    }


def _in_turn(url: str, place: str, folder: str, pairs: int) -> dict[str, list[float]]:
    """Seconds of epochs through a cache that has everything, and over a local copy."""
    from packtrain import open_dataset

    transform = _transform(url)
    dataset = open_dataset(url, transform, stage=place)
    cache = dataset.store.chunks
    assert cache is not None
    before = cache.state()["fetched_bytes"]
    seconds: dict[str, list[float]] = {"warm": [], "local": []}
    with _loader(dataset) as warm, _loader(open_dataset(folder, transform)) as local:
        sides = {"warm": warm, "local": local}
        for pair in range(pairs):
            # Each is the first one in every other pair.
            for name in sorted(sides, reverse=bool(pair % 2)):
                begun = time.perf_counter()
                for _ in sides[name]:
                    pass
                seconds[name].append(time.perf_counter() - begun)
    assert cache.state()["fetched_bytes"] == before
    return seconds


def _transform(url: str) -> list[Any]:
    from packtrain.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

    return [RandomCrop(224) if url.endswith("/raw") else RandomResizedCrop(224), RandomHorizontalFlip()]


def _loader(dataset: Any) -> Any:
    """A loader in the order of a cache, also over a local copy."""
    from packtrain import Loader
    from packtrain.orders import ChunkShuffled

    return Loader(dataset, BATCH, sampler=ChunkShuffled(dataset), seed=1, num_workers=WORKERS)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _main()
