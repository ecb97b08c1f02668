"""DALI on the processor: decodes only a random crop, or the whole image; resize, flip; batches are torch tensors.

It reads loose files, or packtrain's tar shards with its own webdataset reader and the index that lies beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from .common import BATCH, PACKED, SEED, SHORT, SIDE, WORKERS, Batch, files

OPTIONS: Final = {
    "num_threads": WORKERS,
    "prefetch_queue_depth": "default, 2",
    "decoder": "fused: decoders.image_random_crop, else decoders.image; default accuracy",
    "resize": "INTERP_LINEAR, antialias",
    "shuffle": "random_shuffle, initial_fill=1000",
    "epoch": "endless: no size, no reader's name",
}

DIGITS: Final = 5
"""Digits of a label out of a tar shard, as characters; blanks follow."""
_RESIZE: Final = {"interp_type": types.INTERP_LINEAR, "antialias": True}


def jpeg(folder: Path, *, once: bool = False, fused: bool = True, tars: bool = False) -> Iterator[Batch]:
    # With a size, the iterator ends there.
    size = len(files(folder)) // BATCH * BATCH if once else -1
    return _batches(_training(folder, tars, fused), size)


def evaluation(folder: Path, *, tars: bool = False, fused: bool = True) -> Iterator[Batch]:
    return _batches(_evaluation(folder, tars))


def _batches(pipeline: Any, size: int = -1) -> Iterator[Batch]:
    iterator = DALIGenericIterator([pipeline], ["images", "labels"], size=size)
    return ((outputs[0]["images"], outputs[0]["labels"]) for outputs in iterator)


@pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, seed=SEED)  # type: ignore[untyped-decorator]
def _training(folder: Path, tars: bool, fused: bool):  # type: ignore[no-untyped-def]
    data, label = _encoded(folder, tars)
    crop = {"random_area": (0.08, 1.0), "random_aspect_ratio": (3 / 4, 4 / 3)}
    resize = {"size": (SIDE, SIDE), **_RESIZE}
    if fused:
        images = fn.decoders.image_random_crop(data, device="cpu", output_type=types.RGB, **crop)
        images = fn.resize(images, **resize)
    else:
        images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        images = fn.random_resized_crop(images, **crop, **resize)
    return fn.flip(images, horizontal=fn.random.coin_flip()), label


@pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, seed=SEED)  # type: ignore[untyped-decorator]
def _evaluation(folder: Path, tars: bool):  # type: ignore[no-untyped-def]
    data, label = _encoded(folder, tars)
    images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
    # Computes only what the crop keeps.
    return fn.resize_crop_mirror(images, resize_shorter=SHORT, crop=(SIDE, SIDE), **_RESIZE), label


def _encoded(folder: Path, tars: bool) -> tuple[Any, Any]:
    shuffled = {"random_shuffle": True, "initial_fill": 1000}
    if tars:
        shards = sorted(map(str, (folder / PACKED).glob("*.tar")))
        indexes = [str(Path(shard).with_suffix(".idx")) for shard in shards]
        data, label = fn.readers.webdataset(
            paths=shards,
            index_paths=indexes,
            ext=["jpg;jpeg;png", "cls"],
            missing_component_behavior="error",
            **shuffled,
        )
        # DALI hands out the digits of a label, which make a tensor only if all labels have as many.
        return data, fn.pad(label, axes=[0], shape=[DIGITS], fill_value=ord(" "))
    paths, labels = zip(*files(folder), strict=True)
    data, label = fn.readers.file(files=list(paths), labels=list(labels), **shuffled)
    return data, label
