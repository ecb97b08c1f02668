"""Makes the examples importable, also in the workers that tests start, as they are for scripts in their folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.support import encoded
from PIL import Image

from packtrain import pack

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

COLOURS = ((220, 30, 30), (30, 200, 40), (40, 60, 220), (230, 220, 60))


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset that is easy to learn: 160 noisy pictures, each in one of four colours."""
    folder = tmp_path_factory.mktemp("colours")
    random = np.random.default_rng(0)
    lines = []
    for number in range(160):
        label = number % len(COLOURS)
        pixels = np.array(COLOURS[label]) + random.normal(0, 20, (40, 44, 3))
        (folder / f"{number}.jpg").write_bytes(encoded(Image.fromarray(pixels.clip(0, 255).astype(np.uint8))))
        lines.append(f"{number}.jpg {label}\n")
    (folder / "train.txt").write_text("".join(lines))
    return Path(pack(folder / "train.txt", folder / "packed").dataset)
