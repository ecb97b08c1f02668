"""Time of FFCV by stage, per image, on one core: calls its own functions one after the other on a file it wrote.

python -m benchmarks.ffcv_stages FOLDER (jpeg | raw_rrc)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.common import SEED, SIDE, Pixels

PASSES: Final = 3
"""Passes of which the fastest counts; one more comes before them and is not timed."""


def stages(path: Path) -> dict[str, float]:
    """Microseconds per image of decoding, and of crop and resize; raw images are not decoded."""
    from ffcv.libffcv import imdecode, resize_crop

    samples = list(_samples(path))
    largest = max(height * width * 3 for _, height, width, _ in samples)
    scratch, out = np.empty(largest, np.uint8), np.empty((SIDE, SIDE, 3), np.uint8)
    boxes = _boxes([(height, width) for _, height, width, _ in samples])

    def whole(sample: tuple[Pixels, int, int, bool]) -> Pixels:
        data, height, width, encoded = sample
        if not encoded:
            return data.reshape(height, width, 3)
        pixels = scratch[: height * width * 3].reshape(height, width, 3)
        # As ResizedCropRGBImageDecoder calls it: no crop, no scale.
        imdecode(data, pixels, height, width, height, width, 0, 0, 1, 1, False, False)
        return pixels

    def resized(pair: tuple[tuple[Pixels, int, int, bool], tuple[int, int, int, int]]) -> None:
        sample, (top, left, high, wide) = pair
        resize_crop(whole(sample), top, top + high, left, left + wide, out)

    decode = _microseconds(whole, samples) if samples[0][3] else 0.0
    return {"decode": decode, "resize": _microseconds(resized, list(zip(samples, boxes, strict=True))) - decode}


def _samples(path: Path) -> Iterator[tuple[Pixels, int, int, bool]]:
    """Stored bytes, height and width of each image, and True if it is a JPEG."""
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.reader import Reader

    reader = Reader(str(path))
    data = np.memmap(path, np.uint8, "r")
    sizes = dict(zip(reader.alloc_table["ptr"].tolist(), reader.alloc_table["size"].tolist(), strict=True))
    for image in reader.metadata["f0"]:
        start = int(image["data_ptr"])
        stored = np.array(data[start : start + sizes[start]])
        yield stored, int(image["height"]), int(image["width"]), image["mode"] == IMAGE_MODES["jpg"]


def _boxes(sizes: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    from ffcv.fields.rgb_image import get_random_crop

    np.random.seed(SEED)
    return [get_random_crop(*size, np.array((0.08, 1.0)), np.array((3 / 4, 4 / 3))) for size in sizes]


def _microseconds(call: Callable[[Any], object], arguments: list[Any]) -> float:
    """Mean time of one call."""
    passes = []
    for _ in range(PASSES + 1):
        started = time.perf_counter()
        for argument in arguments:
            call(argument)
        passes.append((time.perf_counter() - started) / len(arguments) * 1e6)
    return min(passes[1:])


def main() -> None:
    try:
        from benchmarks.peers.ffcv import JPEG, RAW
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    folder, stream = Path(sys.argv[1]), sys.argv[2]
    # On one core, so that OpenCV's threads do not share the work.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps(stages(folder / (JPEG if stream == "jpeg" else RAW))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
