"""Every processor gives the same bytes: digests of what the extension makes of fixed input.

The digests are those of x86-64. As a program this file needs no pytest, which takes minutes to load on a processor that
is emulated; with `--write` it makes the digests anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from helpers.jpegs import SAMPLINGS, Picture, any_jpeg, rectangles

from packtrain._codec.native import Extension, extension
from packtrain._codec.native.places import PLACE

DIGESTS: Final = Path(__file__).with_name("digests.json")
SIZES: Final = ((1, 1), (3, 2), (7, 31), (64, 33), (131, 97))
Pixels = npt.NDArray[np.uint8]


def outputs(extension: Extension) -> Iterator[tuple[str, bytes]]:
    """Name of a function, and what it makes of one input."""
    random = np.random.default_rng(37)
    for number in range(2 * len(SAMPLINGS)):
        yield from of_jpeg(extension, *any_jpeg(random), random, number)
    for width, height in SIZES:
        for channels in (1, 3):
            pixels = random.integers(0, 256, (height, width, channels), np.uint8)
            yield from of_pixels(extension, pixels, random)
        yield from of_colours(extension, pixels, random)


def of_jpeg(
    extension: Extension, picture: Picture, jpeg: bytes, random: np.random.Generator, number: int
) -> Iterator[tuple[str, bytes]]:
    record, coefficients = extension.transcode(jpeg, number % 2 == 0), extension.coefficient_record(jpeg)
    yield "transcode", record
    yield "coefficient_record", coefficients
    yield "coefficients", b"".join(extension.coefficients(coefficients))
    for box in [(0, 0, picture.width, picture.height), *rectangles(random, picture.width, picture.height, 4)]:
        part = extension.cut(record, box)
        yield "cut", repr(part and part[1:]).encode() + (part[0] if part else b"")
        for channels in (1, 3, 4):
            for name, data in (("decode", record), ("decode coefficients", coefficients)):
                with suppress(ValueError):  # RGB as grey, for instance
                    pixels, start, stride = extension.decode(data, box, channels, 1)
                    for row in range(box[3]):
                        yield name, pixels[start + stride * row :][: channels * box[2]]


def of_pixels(extension: Extension, pixels: Pixels, random: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    out = np.zeros_like(pixels)
    for mirrored in (False, True):
        extension.copy_pixels(pixels, mirrored, True, out)
        yield "copy_pixels", out.tobytes()
    places, shard = np.zeros(1, PLACE), pixels.tobytes()
    height, width, channels = pixels.shape
    for name, value in (("width", width), ("height", height), ("length", len(shard)), ("crc32c", crc32c(shard))):
        places[name] = value
    for side, value in (("width", width), ("height", height)):
        places[f"crop_{side}"] = places[f"new_{side}"] = value
    assert extension.copy_records([shard], places, True, 2, 1, out[None], bytearray(8))
    yield "copy_records", out.tobytes()
    table = random.integers(0, 1 << 32, (channels, 256), np.uint32)
    looked_up = np.zeros(pixels.shape, np.uint32)
    extension.lookup(pixels, table, False, looked_up)
    yield "lookup", looked_up.tobytes()
    for name, arguments in (
        ("brighten", (1.37,)),
        ("contrast", (0.61, 1)),
        ("saturate", (1.9, 1)),
        ("turn_hues", (77,)),
        ("map_values", (bytes(random.permutation(256).astype(np.uint8)),)),
        ("stretch_values", ()),
        ("equalize_values", ()),
        ("blend_images", (random.integers(0, 256, pixels.shape, np.uint8), 0.3)),
    ):
        changed = pixels.copy()
        with suppress(ValueError):  # colours of a grey image
            getattr(extension, name)(changed, *arguments)
        yield name, changed.tobytes()
    for sigma in (0.7, 3.0, 40.0):
        extension.box_blur(pixels, sigma, out)
        yield "box_blur", out.tobytes()
    extension.sharpness(pixels, 1.8, out)
    yield "sharpness", out.tobytes()
    if min(width, height) > 2:
        kernel = np.array([0.4, 0.2, 0.1], np.float32)
        extension.gaussian_blur(pixels, kernel, kernel, out)
        yield "gaussian_blur", out.tobytes()
    for resample in (0, 2, 3):
        for numbers in ((0.9, 0.2, 1.5, -0.3, 1.1, 0.4), (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)):
            for perspective in ((), (0.001, -0.002)):
                extension.warp(pixels, numbers + perspective, resample, bytes(channels), out)
                yield "warp", out.tobytes()
    images = random.integers(0, 256, (3, *pixels.shape), np.uint8)
    extension.mean_of_images(images, np.array([0.2, 0.3, 0.5], np.float32), out)
    yield "mean_of_images", out.tobytes()


def of_colours(extension: Extension, pixels: Pixels, random: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    height, width, _ = pixels.shape
    wide = extension.rgb_to_rgbx(pixels.tobytes(), width, 0, 0, width, height)
    yield "rgb_to_rgbx", wide
    out = np.zeros_like(pixels)
    extension.rgbx_to_rgb(wide, width, height, True, out)
    yield "rgbx_to_rgb", out.tobytes()
    for new_width, new_height in ((5, 3), (50, 90), (200, 1)):
        resized = np.zeros((new_height, new_width, 3), np.uint8)
        target = (new_width, new_height, 0, 0)
        for resample in (2, 3):
            for style in (0, 1, 2):
                extension.resize_pixels(pixels, (width, height, 0, 0), target, resample, style, True, False, resized)
                yield "resize_pixels", resized.tobytes()
    filtered = random.integers(0, 256, (height, width + 1), np.uint8)
    filtered[:, 0] %= 5
    grey = np.zeros((height, width), np.uint8)
    extension.unfilter(filtered.tobytes(), width, grey)
    yield "unfilter", grey.tobytes()


def digests(extension: Extension) -> dict[str, str]:
    """The first half of the SHA-256 of all that a function makes."""
    sums: dict[str, Any] = {}
    for name, data in outputs(extension):
        sums.setdefault(name, hashlib.sha256()).update(data)
    return {name: sums[name].hexdigest()[:32] for name in sorted(sums)}


def test_the_digests_are_those_of_every_processor() -> None:
    assert extension is not None
    assert digests(extension) == json.loads(DIGESTS.read_text())


if __name__ == "__main__":
    assert extension is not None
    found = digests(extension)
    if "--write" in sys.argv:
        DIGESTS.write_text(json.dumps(found, indent=1) + "\n")
    expected = json.loads(DIGESTS.read_text())
    wrong = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
    sys.exit(f"other bytes than on x86-64: {', '.join(sorted(wrong))}" if wrong else 0)
