"""Writes pictures of coloured shapes, their masks and a list of both: something small to segment.

python examples/segmentation/shapes.py FOLDER --count 400
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

CLASSES: Final = ("background", "disc", "square", "triangle")
WIDTH, HEIGHT = 128, 96
_CORNERS: Final = {"square": 4, "triangle": 3}


def write(folder: Path, count: int, seed: int = 0) -> Path:
    """Writes `count` pictures with masks, ``train.csv`` and ``classes.txt``. Returns the list."""
    random = np.random.default_rng(seed)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "mask"])
        for number in range(count):
            image, mask = picture(random)
            image.save(folder / f"images/{number}.jpg", quality=90)
            mask.save(folder / f"masks/{number}.png")
            writer.writerow([f"images/{number}.jpg", f"masks/{number}.png"])
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder / "train.csv"


def picture(random: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """Three shapes on a noisy background, and the class of each pixel: an RGB image, and a mask of mode L."""
    background = random.integers(0, 90, 3) + random.normal(0, 12, (HEIGHT, WIDTH, 3))
    image = Image.fromarray(background.clip(0, 255).astype(np.uint8))
    mask = Image.new("L", (WIDTH, HEIGHT))
    for _ in range(3):
        number = int(random.integers(1, len(CLASSES)))
        radius = int(random.integers(10, 24))
        x, y = int(random.integers(0, WIDTH)), int(random.integers(0, HEIGHT))
        colour = tuple(random.integers(120, 256, 3).tolist())
        for canvas, fill in ((ImageDraw.Draw(image), colour), (ImageDraw.Draw(mask), number)):
            if CLASSES[number] == "disc":
                canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
            else:
                canvas.regular_polygon((x, y, radius), _CORNERS[CLASSES[number]], fill=fill)
    return image, mask


def main() -> None:
    parser = argparse.ArgumentParser(description="Write pictures of shapes, with masks.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=400)
    arguments = parser.parse_args()
    print(write(arguments.folder, arguments.count))


if __name__ == "__main__":
    main()
