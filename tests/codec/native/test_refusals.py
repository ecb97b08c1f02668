"""Refusals of the extension's functions: memory of another size, shape or kind, and numbers without a meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")


def zeros(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.zeros(shape, dtype)


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


COLUMN, GAPS = np.arange(5, dtype=np.int64), np.arange(10, dtype=np.int64)[::2]
WEIGHTS = np.ones(2, np.float32)
TURNED, APART = zeros(5, 7, 3)[..., ::-1], zeros(5, 14, 3)[:, ::2]
FAR = 2**63 - 1

VALID: dict[str, dict[str, Any]] = {
    "copy_pixels": {"image": zeros(5, 7, 3), "mirrored": False, "past_caches": True, "out": zeros(105)},
    "lookup": {
        "image": zeros(5, 7, 3),
        "table": zeros(3, 256, dtype=np.uint32),
        "planes": False,
        "out": zeros(105, dtype=np.uint32),
    },
    "take_rows": {"columns": [COLUMN], "counts": numbers(1), "rows": numbers(1), "out": numbers(0)},
    "hash_keys": {
        "offsets": numbers(0, 3),
        "texts": zeros(8),
        "seed": 0,
        "number": 0,
        "out": zeros(1, dtype=np.uint64),
    },
    "has_repeats": {"hashes": zeros(4, dtype=np.uint64)},
    "unfilter": {"rows": bytes(15), "width": 4, "out": zeros(3, 4)},
    "rgb_to_rgbx": {"data": zeros(5, 7, 3), "row": 7, "left": 0, "top": 0, "width": 1, "height": 1},
    "rgbx_to_rgb": {"image": zeros(5, 7, 4), "width": 7, "height": 5, "mirrored": True, "out": zeros(105)},
    "sharpness": {"image": zeros(4, 5, 3), "factor": 1.5, "out": zeros(4, 5, 3)},
    "box_blur": {"image": zeros(4, 5, 3), "sigma": 1.5, "out": zeros(4, 5, 3)},
    "gaussian_blur": {"image": zeros(4, 5, 3), "across": WEIGHTS, "down": WEIGHTS, "out": zeros(4, 5, 3)},
    "mean_of_images": {"images": zeros(2, 4, 5, 3), "weights": WEIGHTS, "out": zeros(4, 5, 3)},
    "blend_images": {"pixels": zeros(4, 5, 3), "other": zeros(4, 5, 3), "share": 0.5},
    "warp": {
        "image": zeros(4, 5, 3),
        "coefficients": (1, 0, 0, 0, 1, 0),
        "resample": 2,
        "fill": b"123",
        "out": zeros(4, 5, 3),
    },
}
"""A call of each function that works."""

# A function, what is wrong in a call of it, and what the error says.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *(("copy_pixels", {"out": zeros(size)}, "a different size") for size in (104, 106)),
    *(
        ("copy_pixels", {"image": image}, "dense rows")
        for image in (zeros(5, 7), APART, TURNED, zeros(5, 7, 4)[..., :3])
    ),
    ("copy_pixels", {"image": zeros(5, 7, 3, dtype=np.uint16), "out": zeros(210)}, "dense rows"),
    ("copy_pixels", {"image": zeros(5, 7, 4), "mirrored": True, "out": zeros(140)}, "dense rows"),
    *(("lookup", {"image": image}, "dense rows") for image in (zeros(5, 7), APART, TURNED, zeros(5, 7, 0))),
    *(("lookup", {"table": zeros(*shape, dtype=np.uint32)}, "table") for shape in ((3, 255), (1, 256))),
    ("lookup", {"table": zeros(3, 256)}, "table"),
    *(("lookup", {"out": zeros(size, dtype=np.uint32)}, "output has a different size") for size in (0, 104, 106)),
    *(("take_rows", {"rows": numbers(row)}, ".") for row in (5, -1, FAR)),
    *(("take_rows", {"counts": numbers(*counts)}, ".") for counts in ((2,), (0,), (-1,), (1, 0))),
    ("take_rows", {"columns": [COLUMN, COLUMN]}, "."),
    ("take_rows", {"columns": [COLUMN, COLUMN], "counts": numbers(-1, 2)}, "."),
    ("take_rows", {"rows": numbers(1, 1)}, "."),
    ("take_rows", {"rows": zeros(7)}, "."),
    *(("take_rows", {"out": zeros(size)}, ".") for size in (0, 9)),
    *(("take_rows", {"columns": [column]}, ".") for column in (zeros(7), GAPS)),
    ("take_rows", {"columns": [COLUMN], "rows": COLUMN[2:3], "out": COLUMN[2:3]}, "."),
    ("take_rows", {"out": COLUMN[3:4]}, "."),
    *(("hash_keys", {"offsets": numbers(*offsets)}, ".") for offsets in ((0, 9), (-1, 3), (0, FAR), (0,), (0, 3, 4))),
    ("hash_keys", {"offsets": numbers(0, 3, 2), "out": numbers(0, 0)}, "."),
    ("hash_keys", {"offsets": numbers(), "out": numbers()}, "."),
    *(("hash_keys", {"offsets": offsets}, ".") for offsets in (zeros(17), GAPS[:2])),
    ("hash_keys", {"out": zeros(9)}, "."),
    ("hash_keys", {"offsets": COLUMN[:2], "out": COLUMN[1:2]}, "."),
    ("hash_keys", {"texts": COLUMN.view(np.uint8), "out": COLUMN[:1]}, "."),
    *(("has_repeats", {"hashes": hashes}, ".") for hashes in (zeros(7), GAPS)),
    *(("unfilter", {"rows": bytes(size)}, "one byte per pixel") for size in (0, 14, 16)),
    *(("unfilter", {"width": width}, "one byte per pixel") for width in (3, 0, -1, 1 << 62)),
    *(
        ("unfilter", {"rows": bytes([0, 1, number, 1]), "width": 1, "out": zeros(2, 1)}, "unknown filter")
        for number in (5, 255)
    ),
    *(("rgb_to_rgbx", {"row": row}, "not inside") for row in (0, -1, 2**62)),
    *(("rgb_to_rgbx", {"left": left}, "not inside") for left in (-1, 7, FAR)),
    *(("rgb_to_rgbx", {"top": top}, "not inside") for top in (-1, 5, FAR)),
    *(("rgb_to_rgbx", {"width": width}, "not inside") for width in (0, -1, 8)),
    *(("rgb_to_rgbx", {"height": height}, "not inside") for height in (0, -1, 6)),
    ("rgb_to_rgbx", {"row": 8, "width": 8, "height": 5}, "not inside"),
    ("rgb_to_rgbx", {"left": 1, "width": FAR}, "not inside"),
    ("rgb_to_rgbx", {"top": 1, "height": FAR}, "not inside"),
    ("rgb_to_rgbx", {"row": FAR, "left": 2**62, "top": 2**62, "width": 2**62, "height": 2**62}, "not inside"),
    # A part of a row does not count.
    ("rgb_to_rgbx", {"data": bytes(7 * 3 + 20), "top": 1, "width": 6}, "not inside"),
    *(("rgbx_to_rgb", {"width": width}, "bytes per pixel") for width in (8, 0, -7, 2**62, FAR)),
    *(("rgbx_to_rgb", {"height": height}, "bytes per pixel") for height in (4, 0, -5, 2**61)),
    *(("rgbx_to_rgb", {"out": zeros(size)}, "3 bytes per pixel") for size in (0, 104, 106, 140)),
    *(("rgbx_to_rgb", {"image": bytes(size)}, "4 bytes per pixel") for size in (0, 105, 139, 141)),
    *((name, {"out": zeros(4, 5, 1)}, "channels differ") for name in ("sharpness", "box_blur", "gaussian_blur")),
    *((name, {"out": zeros(5, 4, 3)}, "another size") for name in ("sharpness", "box_blur", "gaussian_blur")),
    *(
        (name, {"image": zeros(*shape), "out": zeros(*shape)}, message)
        for name in ("sharpness", "box_blur", "gaussian_blur")
        for shape, message in (((4, 5, 4), "four channels"), ((4, 5, 2), "bytes"), ((4, 5), "bytes"))
    ),
    *(("box_blur", {"sigma": sigma}, "radius") for sigma in (float("nan"), float("inf"), 1e30)),
    *(
        ("gaussian_blur", {"down": down}, "float32")
        for down in (WEIGHTS.astype(float), WEIGHTS.view(np.int32), WEIGHTS[:0])
    ),
    ("gaussian_blur", {"down": np.ones(5, np.float32)}, "further than the image"),
    *(("mean_of_images", {"weights": wrong}, "weights|float32") for wrong in (WEIGHTS[:1], np.ones(3, np.float32))),
    *(("mean_of_images", {"weights": wrong}, "weights|float32") for wrong in (WEIGHTS.astype(float), zeros(3, 5, 3))),
    ("mean_of_images", {"out": zeros(3, 5, 3)}, "another size"),
    *(
        ("blend_images", {"other": zeros(*shape)}, "size|channels")
        for shape in ((3, 5, 3), (4, 5, 1), (5, 4, 3), (4, 5))
    ),
    ("warp", {"coefficients": (1.0,) * 7}, "six coefficients"),
    ("warp", {"resample": 1}, "filter"),
    ("warp", {"fill": b"12"}, "one byte for each channel"),
    *(("warp", {"image": zeros(*shape)}, "bytes") for shape in ((4, 5, 2), (4, 5), (0, 5, 3))),
    ("warp", {"image": zeros(4, 5, 3, dtype=np.int16)}, "bytes"),
    ("warp", {"image": zeros(4, 5, 1)}, "channels differ"),
    *(("warp", {side: zeros(4, 10, 3)[:, ::2]}, "contiguous") for side in ("image", "out")),
    ("warp", {"image": zeros(4, 5, 4), "out": zeros(4, 5, 4), "fill": b"1234"}, "channels"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_what_is_wrong_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    function, given = getattr(_extension, name), VALID[name]
    function(*given.values())
    with pytest.raises((ValueError, BufferError), match=message):
        function(*(given | change).values())


def test_unaligned_numbers_are_refused() -> None:
    room = bytearray(4 * 105 + 1)
    offset = 1 if np.frombuffer(room, np.uint8).ctypes.data % 4 == 0 else 0
    with pytest.raises(ValueError, match="not aligned"):
        _extension.lookup(*[*VALID["lookup"].values()][:3], memoryview(room)[offset : offset + 4 * 105])
