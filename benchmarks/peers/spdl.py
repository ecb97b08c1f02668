"""SPDL: threads of a pipeline; FFmpeg decodes, crops and resizes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from .common import BATCH, SEED, SIDE, WORKERS, Batch, files

OPTIONS: Final = {
    "num_threads": WORKERS,
    "sink": 3,
    "decode, crop, resize": "FFmpeg, one thread per image; bilinear",
    "epoch": "endless: permutations one after the other",
}
SINK: Final = 3


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    random.seed(SEED)
    samples = files(folder)
    source = iter(random.sample(samples, len(samples))) if once else _shuffled(samples)
    builder = PipelineBuilder().add_source(source).aggregate(BATCH)
    pipeline = builder.pipe(_decode, concurrency=WORKERS).add_sink(SINK).build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def _shuffled(samples: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    return itertools.chain.from_iterable(random.sample(samples, len(samples)) for _ in itertools.count())


def _decode(samples: list[tuple[str, int]]) -> Batch:
    config = spdl.io.decode_config(decoder_options={"threads": "1"})
    frames = []
    for path, _ in samples:
        packets = spdl.io.demux_image(path)
        filters = _filters(packets.width, packets.height)
        frames.append(spdl.io.decode_packets(packets, filter_desc=filters, decode_config=config))
    images = spdl.io.to_torch(spdl.io.convert_frames(frames))
    return images, torch.from_numpy(np.array([label for _, label in samples]))


def _filters(width: int, height: int) -> str:
    """An FFmpeg filter for a RandomResizedCrop and a flip, drawn as torchvision draws them."""
    box = (min(width, height), min(width, height), 0, 0)
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            box = (wide, high, random.randint(0, width - wide), random.randint(0, height - high))
            break
    crop = ":".join(map(str, box))
    flip = ",hflip" if random.random() < 0.5 else ""
    return f"crop={crop},scale={SIDE}:{SIDE}:flags=bilinear,format=rgb24{flip}"
