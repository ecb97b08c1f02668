"""Images for the demo: pieces cut from the photographs that scikit-image brings along."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

PHOTOGRAPHS: Final = (
    "astronaut.png",
    "brick.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)
PIECES: Final = 50
"""Images cut from each photograph."""


def make_images(folder: Path) -> Path:
    """Cuts pieces of all sizes from the photographs. The label of a piece is its photograph.

    Args:
        folder: Folder to make, for the images and their list.

    Returns:
        The list: a path and a label per line.
    """
    source = photograph_folder()
    folder.mkdir()
    lines = []
    for label, name in enumerate(PHOTOGRAPHS):
        random = np.random.default_rng(label)
        with Image.open(source / name) as photograph:
            for number in range(PIECES):
                path = f"{Path(name).stem}-{number:02}.jpg"
                subsampling = "4:4:4" if number % 2 else "4:2:0"
                random_piece(photograph, random).save(folder / path, quality=90, subsampling=subsampling)
                lines.append(f"{path} {label}\n")
    (folder / "train.txt").write_text("".join(lines))
    print(f"Made {len(lines)} JPEGs from {len(PHOTOGRAPHS)} photographs of scikit-image, and {folder / 'train.txt'}")
    return folder / "train.txt"


def random_piece(photograph: Image.Image, random: np.random.Generator) -> Image.Image:
    """A random rectangle, mirrored or not, with 300 to 500 pixels on its longer side, like photographs of ImageNet."""
    width, height = (int(side * random.uniform(0.5, 1)) for side in photograph.size)
    left, top = int(random.integers(photograph.width - width + 1)), int(random.integers(photograph.height - height + 1))
    scale = random.uniform(300, 500) / max(width, height)
    size = round(width * scale), round(height * scale)
    piece = photograph.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else piece


def photograph_folder() -> Path:
    """The folder in which scikit-image keeps its photographs."""
    # scikit-image cannot be imported: its dependencies are not installed. Its files are all the demo needs.
    spec = importlib.util.find_spec("skimage")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        sys.exit(
            "error: the demo takes its photographs from scikit-image, which is not installed. Run `make demo`, or "
            "`python -m pip install --no-deps scikit-image`, or set PACKTRAIN_IMAGES to an image list of your own."
        )
    return Path(folders[0]) / "data"
