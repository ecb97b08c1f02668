"""Decodes, crops, resizes and flips photographs with one library, on one core, in an interpreter that has it.

    python -m benchmarks.decoding LIBRARY FOLDER SECONDS

Needs neither packtrain nor torch. Prints images per second of processor time.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.common import SEED, SIDE, files

PILLOW: Final = "Pillow"
PILLOW_SIMD: Final = "Pillow-SIMD"
ACCIMAGE: Final = "accimage"
LIBRARIES: Final = (PILLOW, PILLOW_SIMD, ACCIMAGE)
WARM_UP: Final = 64
AT_ONCE: Final = 32
"""Images between two looks at the clock."""

Box = tuple[int, int, int, int]


def box_in(width: int, height: int) -> Box:
    """Left, top, right and bottom of a random crop, as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            return left, top, left + wide, top + high
    return 0, 0, width, height


def with_pillow(path: str) -> object:
    """Bytes [224, 224, 3] of a file, by the Pillow of this interpreter."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as file:
        image = file.convert("RGB")
    image = image.crop(box_in(*image.size)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def with_accimage(path: str) -> object:
    """Bytes [3, 224, 224] of a file, by accimage, which decodes JPEGs only."""
    import accimage
    import numpy as np

    image: Any = accimage.Image(path)
    image.crop(box_in(*image.size))
    image.resize((SIDE, SIDE))
    if random.random() < 0.5:
        # PIL.Image.FLIP_LEFT_RIGHT
        image.transpose(0)
    pixels = np.empty((3, SIDE, SIDE), np.uint8)
    image.copyto(pixels)
    return pixels


def one_of(library: str) -> tuple[Callable[[str], object], str]:
    """Return the function that decodes the bytes of a file, and the version of its library.

    Raises:
        ModuleNotFoundError: This interpreter does not have it.
    """
    if library == ACCIMAGE:
        from importlib import metadata

        import accimage  # noqa: F401

        return with_accimage, metadata.version("accimage")
    import PIL

    # pillow-simd adds a post-release to the version of the Pillow that it is made from.
    if (".post" in PIL.__version__) != (library == PILLOW_SIMD):
        raise ModuleNotFoundError(f"this is Pillow {PIL.__version__}", name=library)
    return with_pillow, PIL.__version__


def rate(make: Callable[[str], object], paths: list[str], seconds: float) -> float:
    """Images per second of processor time of this process, on one core, in random order."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    random.seed(SEED)
    for _ in range(WARM_UP):
        make(random.choice(paths))
    done, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < seconds:
        for _ in range(AT_ONCE):
            make(random.choice(paths))
        done += AT_ONCE
    return done / elapsed


def main() -> None:
    library, folder, seconds = sys.argv[1:]
    try:
        make, version = one_of(library)
    except ImportError as error:
        print(json.dumps({"missing": error.name or library}))
        return
    paths = [path for path, _ in files(Path(folder)) if _is_jpeg(path)]
    print(json.dumps({"images_per_second": rate(make, paths, float(seconds)), "version": version}), flush=True)


def _is_jpeg(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(3) == b"\xff\xd8\xff"


if __name__ == "__main__":
    main()
