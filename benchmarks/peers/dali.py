"""DALI on the processor: decodes only a random crop, or the whole image; resize, flip; batches are torch tensors."""

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
    "decoder": "fused: decoders.image_random_crop, else decoders.image; default accuracy",
    "resize": "INTERP_LINEAR, antialias",
    "epoch": "endless: no size, no reader's name",
}


def jpeg(folder: Path, *, once: bool = False, fused: bool = True) -> Iterator[Batch]:
    samples = files(folder)
    pipeline = _pipeline([path for path, _ in samples], [label for _, label in samples], fused)
    # With a size, the iterator ends there.
    size = len(samples) // BATCH * BATCH if once else -1
    iterator = DALIGenericIterator([pipeline], ["images", "labels"], size=size)
    return ((outputs[0]["images"], outputs[0]["labels"]) for outputs in iterator)


@pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, seed=SEED)  # type: ignore[untyped-decorator]
def _pipeline(paths: list[str], labels: list[int], fused: bool):  # type: ignore[no-untyped-def]
    data, label = fn.readers.file(files=paths, labels=labels, random_shuffle=True, initial_fill=1000)
    crop = {"random_area": (0.08, 1.0), "random_aspect_ratio": (3 / 4, 4 / 3)}
    resize = {"size": (SIDE, SIDE), "interp_type": types.INTERP_LINEAR, "antialias": True}
    if fused:
        images = fn.decoders.image_random_crop(data, device="cpu", output_type=types.RGB, **crop)
        images = fn.resize(images, **resize)
    else:
        images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        images = fn.random_resized_crop(images, **crop, **resize)
    return fn.flip(images, horizontal=fn.random.coin_flip()), label
