"""Layout of the table for `Extension.copy_records`, which Python and C share."""

from __future__ import annotations

from typing import Final

import numpy as np

PLACE: Final = np.dtype(
    [
        ("target", np.int64),  # index in the output
        ("row", np.int64),  # what `current` shows while the record is being read
        ("shard", np.int64),  # index in the list of shards
        ("offset", np.int64),  # of the record in its shard, in bytes
        ("length", np.int64),  # of the record, in bytes
        ("crc32c", np.int64),  # checksum of the record
        ("width", np.int64),  # of the image, in pixels
        ("height", np.int64),
        ("crop_left", np.int64),  # the rectangle to resize, or to copy, in pixels
        ("crop_top", np.int64),
        ("crop_width", np.int64),
        ("crop_height", np.int64),
        ("new_width", np.int64),  # to which it is resized, in pixels
        ("new_height", np.int64),
        ("new_left", np.int64),  # where in the resized rectangle the output begins, in pixels
        ("new_top", np.int64),
        ("mirrored", np.int64),  # 1: exchange left and right of the output, 0: do not
    ]
)
"""A record, the rectangle of it to copy, and its place in the output.

codec/native/copy_records.c declares the same struct, and refuses an array whose fields have other names or types.
"""
CROP: Final = (
    *("crop_left", "crop_top", "crop_width", "crop_height"),
    *("new_width", "new_height", "new_left", "new_top"),
    "mirrored",
)
"""The fields of `PLACE` that a transform decides, in the order of the columns of `BatchPlan.boxes`."""
