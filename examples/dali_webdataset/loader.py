"""Packed tar shards that DALI reads, shuffles, crops and decodes by itself.

python examples/dali_webdataset/loader.py out
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

IMAGES: Final = "jpg;jpeg;png;webp;bmp;tif;tiff;ppm;pgm;pbm"
DIGITS: Final = 20
"""Characters of the longest label."""
THREADS: Final = 2
SEED: Final = 0


def shards_of(folder: Path) -> tuple[list[str], list[str]]:
    """The tar shards that have samples, and DALI's index of each, which packtrain writes beside it."""
    indexes = sorted(path for path in folder.glob("*.idx") if path.read_bytes().split(None, 2)[1] != b"0")
    return [str(path.with_suffix(".tar")) for path in indexes], [str(path) for path in indexes]


def built(folder: Path, batch_size: int, side: int, rank: int, world_size: int, gpu: int | None) -> Pipeline:
    """DALI's pipeline of images, uint8 [side, side, 3], and the digits of labels, filled up with blanks."""
    paths, index_paths = shards_of(folder)
    pipeline = Pipeline(batch_size, THREADS, gpu, seed=SEED)
    with pipeline:
        data, digits = fn.readers.webdataset(
            paths=paths,
            index_paths=index_paths,
            ext=[IMAGES, "cls"],
            missing_component_behavior="error",
            shard_id=rank,
            num_shards=world_size,
            random_shuffle=True,
            initial_fill=1024,
            # All ranks make equally many batches: the last sample of a smaller part comes twice.
            pad_last_batch=True,
            name="reader",
        )
        images = fn.decoders.image_random_crop(
            data,
            device="cpu" if gpu is None else "mixed",
            output_type=types.RGB,
            # packtrain and torchvision turn no image by its EXIF orientation either.
            adjust_orientation=False,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )
        images = fn.resize(images, size=(side, side), interp_type=types.INTERP_TRIANGULAR, antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        pipeline.set_outputs(images, fn.pad(digits, axes=[0], shape=[DIGITS], fill_value=ord(" ")))
    return pipeline


class Batches:
    """Images, uint8 [batch, 3, side, side] in channels_last memory, and labels, int64 [batch]; a pass is an epoch."""

    def __init__(
        self, folder: Path, batch_size: int, side: int = 224, rank: int = 0, world_size: int = 1, gpu: int | None = None
    ) -> None:
        pipeline = built(folder, batch_size, side, rank, world_size, gpu)
        self._iterator = DALIGenericIterator(
            [pipeline], ["images", "digits"], reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL
        )

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for (batch,) in self._iterator:
            yield (
                batch["images"].permute(0, 3, 1, 2),
                torch.tensor([int(bytes(row)) for row in batch["digits"].cpu().numpy()]),
            )
        self._iterator.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description="Read tar shards once with DALI and print how fast that was.")
    parser.add_argument("folder", type=Path, help="a dataset that was packed as tar, with labels")
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()
    started = time.perf_counter()
    images = sum(len(labels) for _, labels in Batches(arguments.folder, arguments.batch_size))
    print(f"{images} images, {images / (time.perf_counter() - started):,.0f} images/s")


if __name__ == "__main__":
    main()
