"""Functions that make samples of inputs. A module of its own, because workers import it by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from helpers.support import encoded, picture

BAD = 5
"""The input of which there is no sample."""


def image(number: int) -> bytes:
    """A JPEG that is different for each number."""
    return encoded(picture(number, 24 + number % 7, 20))


def sample(number: int) -> dict[str, Any]:
    """An image, a label and values of all types."""
    return {
        "image": image(number),
        "label": number % 3,
        "caption": f"number {number}",
        "boxes": np.full((number % 3, 4), number, np.float32),
        "meta": {"number": number},
        "blob": bytes([number]),
        "score": number / 2,
    }


def failing(number: int) -> dict[str, Any]:
    """The same, but one input fails."""
    if number == BAD:
        raise ValueError(f"no sample of {object()}")
    return sample(number)


def of_line(line: str) -> dict[str, Any]:
    """Returns the sample of a line of `image_set`, with its image by path."""
    name, label = line.rsplit(" ", 1)
    return {"image": name, "label": int(label)}


def stream(count: int) -> Iterator[dict[str, Any]]:
    """Samples one by one."""
    yield from map(sample, range(count))


class Pair(NamedTuple):
    """A sample with names."""

    image: bytes
    label: int


class Images:
    """A map-style dataset of pairs, as torchvision has them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        return image(number), number % 3


def write_list(folder: Path, count: int) -> Path:
    """Writes the images of `Images` to files, and a list of them. Returns the list."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(image(number))
    (folder / "train.txt").write_text("".join(f"{number}.jpg {number % 3}\n" for number in range(count)))
    return folder / "train.txt"
