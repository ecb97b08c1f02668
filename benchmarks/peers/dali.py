"""DALI on the processor: decoding of a random crop alone, resize, flip; batches as torch tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from .common import BATCH, SEED, SIDE, WORKERS, Batch, files

OPTIONS: Final = {
    "num_threads": WORKERS,
    "prefetch_queue_depth": "default, 2",
    "decoder": "decoders.image_random_crop, as exact as by default",
    "resize": "INTERP_LINEAR, antialias",
    "epoch": "endless: no size, no reader's name",
}


def jpeg(folder: Path) -> Iterator[Batch]:
    pipeline = _pipeline([path for path, _ in files(folder)], [label for _, label in files(folder)])
    iterator = DALIGenericIterator([pipeline], ["images", "labels"], size=-1)
    return ((outputs[0]["images"], outputs[0]["labels"]) for outputs in iterator)


@pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, seed=SEED)  # type: ignore[untyped-decorator]
def _pipeline(paths: list[str], labels: list[int]):  # type: ignore[no-untyped-def]
    data, label = fn.readers.file(files=paths, labels=labels, random_shuffle=True, initial_fill=1000)
    images = fn.decoders.image_random_crop(
        data, device="cpu", output_type=types.RGB, random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3)
    )
    images = fn.resize(images, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.flip(images, horizontal=fn.random.coin_flip()), label
