"""Inputs and expected results for fused reading: source files, transforms, and torchvision as the oracle."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from helpers.corpus import exif
from helpers.jpegs import picture as coefficients
from helpers.jpegs import progressive, written
from helpers.support import encoded, packed, picture
from PIL import Image, features

from packtrain import open_dataset
from packtrain._codec.geometry import FILTERS, Crop, Flip, Operation, Pad, Scale
from packtrain._core.options import StoreOptions
from packtrain.errors import UsageError
from packtrain.transforms import (
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

NAMES: Final = {number: name for name, number in FILTERS.items() if name != "nearest-exact"}
"""torchvision's names for Pillow's filters."""


@cache
def sources() -> tuple[tuple[str, bytes], ...]:
    """(name, content) of files of every kind that Pillow reads; several are large enough to be cut."""
    return tuple(_made())


def _made() -> Iterator[tuple[str, bytes]]:
    photo = picture(1, 157, 121)
    for sampling in ("4:4:4", "4:2:2", "4:2:0"):
        yield f"{sampling}.jpg", encoded(photo, subsampling=sampling, quality=90)
    for seed, sampling in enumerate(("4:2:0", "4:4:0", "4:1:1", "grey", "grey 2x2", "mixed", "chroma is larger")):
        random = np.random.default_rng(seed)
        yield f"noise {sampling}.jpg", written(coefficients(random, 101, 77, sampling, density=0.3), random)
    random = np.random.default_rng(8)
    noise = coefficients(random, 75, 59, density=0.3)
    yield "many scans.jpg", written(noise, random, scans=progressive(noise), process=0xC2)
    yield "progressive.jpg", encoded(photo, progressive=True)
    yield "progressive grey.jpg", encoded(photo.convert("L"), progressive=True)
    yield "grey.jpg", encoded(photo.convert("L"), quality=95)
    yield "stored as RGB.jpg", encoded(photo, keep_rgb=True)
    yield "CMYK.jpg", encoded(photo.convert("CMYK"))
    yield "cut off.jpg", (whole := encoded(photo))[: len(whole) // 2] + b"\xff\xd9"
    yield "EXIF.jpg", encoded(photo, exif=exif(6))
    yield "two pictures.jpg", encoded(photo, "MPO", save_all=True, append_images=[photo.rotate(90)])
    yield "long.jpg", encoded(picture(2, 400, 33))
    yield "high.jpg", encoded(picture(2, 21, 300))
    yield "1x1.jpg", encoded(picture(3, 1, 1))
    clear = photo.convert("RGBA")
    clear.putalpha(photo.convert("L"))
    yield "clear.png", encoded(clear, "PNG")
    yield "palette.png", encoded(photo.convert("P"), "PNG")
    yield "1x1.png", encoded(picture(4, 1, 1), "PNG")
    yield "moving.gif", encoded(photo, "GIF", save_all=True, append_images=[photo.rotate(90)])
    if features.check("webp"):
        yield "some.webp", encoded(photo, "WEBP", quality=70)


TRANSFORMS: Final[dict[str, Callable[[], Any]]] = {
    "random resized crop": lambda: RandomResizedCrop(48),
    "the same, bicubic and small": lambda: RandomResizedCrop((20, 31), scale=(0.01, 0.2), interpolation="bicubic"),
    "the same, nearest": lambda: RandomResizedCrop(24, scale=(0.05, 0.3), interpolation="nearest"),
    "random resized crop and flip": lambda: [RandomResizedCrop(40), RandomHorizontalFlip(1)],
    "the same, perhaps": lambda: [RandomResizedCrop(40), RandomHorizontalFlip()],
    "flip first": lambda: [RandomHorizontalFlip(1), RandomResizedCrop(40), RandomVerticalFlip(1)],
    "resize and crop": lambda: [Resize(64), CenterCrop(56)],
    "the same, bicubic": lambda: [Resize(24, "bicubic"), CenterCrop(21), RandomVerticalFlip(1)],
    "resize and a small crop": lambda: [Resize(90), CenterCrop(20)],
    "resize": lambda: Resize((40, 50)),
    "resize to a limit": lambda: Resize(64, max_size=80),
    "large centre": lambda: CenterCrop((130, 170)),
    "centre": lambda: CenterCrop((1, 17)),
    "crop": lambda: RandomCrop(21, pad_if_needed=True),
    "crop with padding": lambda: RandomCrop(32, 4, pad_if_needed=True, fill=99),
    "edge": lambda: RandomCrop((30, 20), (3, 5), pad_if_needed=True, padding_mode="edge"),
    "reflect": lambda: RandomCrop((30, 20), pad_if_needed=True, padding_mode="reflect"),
    "symmetric": lambda: RandomCrop((30, 20), (3, 5, 2, 1), pad_if_needed=True, padding_mode="symmetric"),
    "mirrored": lambda: RandomHorizontalFlip(1),
    "upside down": lambda: RandomVerticalFlip(1),
    "turned": lambda: [RandomVerticalFlip(1), RandomHorizontalFlip(1)],
    "crop of a crop": lambda: [CenterCrop((60, 90)), CenterCrop((70, 50)), RandomCrop((33, 17)), CenterCrop(9)],
    "crops in crops": lambda: [
        RandomCrop((50, 60), pad_if_needed=True),
        RandomCrop((40, 44)),
        RandomCrop((31, 20)),
        RandomHorizontalFlip(1),
    ],
    "one pixel beyond a crop": lambda: [CenterCrop((20, 30)), CenterCrop((21, 30)), CenterCrop((20, 31))],
    "the same to the right": lambda: [CenterCrop((20, 30)), CenterCrop((20, 31)), Resize(25)],
    "mirrored crop": lambda: [CenterCrop((50, 70)), RandomHorizontalFlip(1), CenterCrop((20, 30))],
    "nothing": lambda: [],
    "all": lambda: Compose([Resize(70), RandomCrop(64, 3), RandomHorizontalFlip(1), Resize(30), CenterCrop(40)]),
}


def pack_sources(folder: Path, store: StoreOptions, files: dict[str, bytes], format: str = "tar") -> Path:
    """Packs files in the given order. Returns the dataset's folder."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (images / name).write_bytes(data)
    (images / "train.txt").write_text("".join(f"{name} {label}\n" for label, name in enumerate(files)))
    return packed(images / "train.txt", folder / "out", format, store=store)


def decoded(data: bytes | memoryview, mode: str) -> Image.Image:
    """The image that training code gets from a file."""
    return Image.open(io.BytesIO(data)).convert(mode)


def numbers(seed: int, count: int) -> list[float]:
    """Random numbers in [0, 1) for a transform."""
    row: list[float] = np.random.default_rng(seed).random(count).tolist()
    return row


def carried_out(torchvision: Any, image: Image.Image, steps: Sequence[Operation]) -> Image.Image:
    """The steps on a whole PIL image, by torchvision's functions."""
    functional, modes = torchvision.transforms.functional, torchvision.transforms.InterpolationMode
    for step in steps:
        if isinstance(step, Crop):
            left, top, width, height = step.box
            image = functional.crop(image, top, left, height, width)
        elif isinstance(step, Scale):
            image = functional.resize(image, [step.height, step.width], modes(NAMES[step.resample]))
        elif isinstance(step, Flip):
            image = functional.hflip(image) if step.horizontal else functional.vflip(image)
        else:
            assert isinstance(step, Pad)
            image = functional.pad(image, list(step[:4]), step.fill, step.mode)
    return image


def expected(torchvision: Any, image: Image.Image, steps: Sequence[Operation]) -> torch.Tensor:
    """The pixels that a fused transform must give: uint8 [channels, height, width]."""
    tensor: torch.Tensor = torchvision.transforms.functional.pil_to_tensor(carried_out(torchvision, image, steps))
    return tensor


def digests(*folders: Path | str) -> dict[str, str]:
    """Hashes of what each transform returns for each dataset, and of each dataset's images."""
    found = {}
    for folder in folders:
        for name, make in TRANSFORMS.items():
            opened = open_dataset(folder, make())
            assert opened._samples.compose is not None
            everything = hashlib.sha256()
            for row in range(len(opened)):
                try:
                    tensor = opened._samples.make(row, numbers(row, opened._samples.draws))[0]
                except UsageError as error:
                    everything.update(str(error).encode())
                else:
                    everything.update(str(tensor.shape).encode() + tensor.numpy().tobytes())
            found[f"{folder}: {name}"] = everything.hexdigest()
        images = [opened.image(row) for row in range(len(opened))]
        found[f"{folder}: images"] = hashlib.sha256(b"".join(image.tobytes() for image in images)).hexdigest()
    return found
