"""One look at each image of a range of records, in a process that may die of one: figures, and a small grey version."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.pillow import pixel_limit, set_pixel_limit, whole_images_only
from packtrain._codec.pixels import array_from_image
from packtrain._core.errors import PacktrainError
from packtrain._core.files import MiB
from packtrain._core.manifest import Count
from packtrain._core.schema import IMAGE
from packtrain._packer.sandbox import Died, Limits, Send, run_sandboxed
from packtrain._readers.dataset.store import RecordStore

from .hashing import SIDE, small_grey

LOOK: Final = np.dtype(
    [
        ("digest", "<u8", 2),
        ("grey", "u1", (SIDE, SIDE)),
        ("contrast", "<f8"),
        ("grey_bottom", "<f8"),
        ("measured", "?"),
        ("mean", "<f8", 3),
        ("square", "<f8", 3),
    ]
)
"""What is known of an image.

Its `digest` is the first 128 bits of the record's SHA-256, `contrast` the standard deviation of `grey`, and
`grey_bottom` the share of rows at its end that have the grey of what libjpeg could not decode. If it is `measured`,
`mean` and `square` are the means of each channel and of its squares, in [0, 1], of the image at full size.
"""
Looks = npt.NDArray[np.void]
_MEMORY: Final = 4096 * MiB
_SECONDS: Final = 60
_REPORT_RECORDS: Final = 64
_MOST_DEATHS: Final = 5
_SCALES: Final = (8, 4, 2)
_UNDECODED: Final = 128
"""Value of the pixels of a JPEG that ends too early."""
_NEARLY: Final = 2
_ROWS_AT_ONCE: Final = 256
"""Squares of as many pixels add up in float32 without rounding: 256 * 255**2 is below 2**24."""


@dataclass(frozen=True)
class Range:
    """A task: look at the records of some places.

    Attributes:
        part: Number of the dataset.
        folder: Folder of the dataset.
        start: The first place.
        stop: The place after the last one.
        every: One row in this many is measured at full size.
        pixel_limit: Pillow's ``Image.MAX_IMAGE_PIXELS`` in the process that asks.
    """

    part: int
    folder: Path
    start: int
    stop: int
    every: int
    pixel_limit: int | None = field(default_factory=pixel_limit)

    def __str__(self) -> str:
        return f"looking at the records {self.start} to {self.stop - 1} of {self.folder}"


@dataclass(frozen=True)
class Seen:
    """What came of a `Range`.

    Attributes:
        part: Number of the dataset.
        rows: Its rows, int64 [records].
        looks: A `LOOK` for each of them; zeros for those without an image.
        missing: Which of them have no image, bool [records].
        problems: Why a row could not be looked at.
    """

    part: int
    rows: npt.NDArray[np.int64]
    looks: Looks
    missing: npt.NDArray[np.bool_]
    problems: dict[int, str]


@dataclass(frozen=True)
class _Message:
    """What the process says of one record: its look in base64, or why there is none; neither if it is missing."""

    row: Count
    look: str | None
    problem: str | None


def look_at(task: Range, report: Callable[[int], None]) -> Seen:
    """Look at a range of records; reports how many more are done."""
    set_pixel_limit(task.pixel_limit)
    with RecordStore(task.folder) as store:
        rows = store.rows_at(np.arange(task.start, task.stop))
        looks, missing = np.zeros(len(rows), LOOK), np.zeros(len(rows), bool)
        problems: dict[int, str] = {}
        done = deaths = 0
        limits = Limits(_MEMORY, _SECONDS + len(rows))
        while done < len(rows):
            try:
                for message in run_sandboxed(partial(_work, store, rows[done:], task.every), _Message, limits):
                    if message.problem is not None:
                        problems[int(rows[done])] = message.problem
                    elif message.look is None:
                        missing[done] = True
                    else:
                        looks[done] = np.frombuffer(base64.b64decode(message.look), LOOK)[0]
                    done += 1
                    if done % _REPORT_RECORDS == 0:
                        report(_REPORT_RECORDS)
                break
            except Died as death:
                deaths += 1
                if done < len(rows):
                    problems[int(rows[done])] = f"the process that decoded it {death}"
                done += 1
            if deaths == _MOST_DEATHS:
                rest = f"not looked at, because {deaths} records near it ended the process that decoded them"
                problems |= dict.fromkeys(rows[done:].tolist(), rest)
                break
    report(len(rows) - done // _REPORT_RECORDS * _REPORT_RECORDS)
    looks["contrast"] = looks["grey"].std(axis=(1, 2))
    return Seen(task.part, rows, looks, missing, problems)


def _work(store: RecordStore, rows: npt.NDArray[np.int64], every: int, send: Send) -> None:
    """Runs in a process of its own: sends a `_Message` for each row."""
    records, stored = store.field(IMAGE), store.schema[IMAGE].store
    assert stored is not None, "an image is stored somehow"
    decode = RecordDecoder(stored, decoder())
    with whole_images_only():
        for row in rows.tolist():
            look = problem = None
            try:
                encoded = records.image(row)
                if encoded is not None:
                    seen = _look(decode, encoded, measured=row % every == 0)
                    look = base64.b64encode(seen.tobytes()).decode()
            except PacktrainError as error:
                problem = str(error)
            except MemoryError:
                raise
            except Exception as error:
                problem = str(records.undecodable(row, error))
            send({"row": row, "look": look, "problem": problem})


def _look(decode: RecordDecoder, encoded: EncodedImage, *, measured: bool) -> Looks:
    """Look at one image: a `LOOK` []."""
    look = np.zeros((), LOOK)
    look["digest"] = np.frombuffer(hashlib.sha256(encoded.data).digest()[:16], "<u8")
    # The largest scale that leaves enough pixels for the hash.
    scale = next((scale for scale in _SCALES if min(encoded.width, encoded.height) >= scale * SIDE), 1)
    pixels = _pixels(decode, encoded, scale)
    look["grey"] = small_grey(pixels)
    look["grey_bottom"] = sum(1 for _ in takewhile(_undecoded, pixels[::-1])) / len(pixels)
    if measured:
        whole = pixels if scale == 1 else _pixels(decode, encoded, 1)
        look["measured"] = True
        look["mean"], look["square"] = _means(whole)
    return look


def _means(pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Means of each channel and of its squares, in [0, 1], without rounding: float64 [channels] each."""
    height, width, channels = pixels.shape
    sums, squares = np.zeros((2, width * channels))
    for start in range(0, height, _ROWS_AT_ONCE):
        rows = pixels[start : start + _ROWS_AT_ONCE].reshape(-1, width * channels).astype(np.float32)
        sums += rows.sum(axis=0)
        squares += np.einsum("ij,ij->j", rows, rows)
    means, squared = (each.reshape(width, channels).mean(axis=0) / height for each in (sums, squares))
    return means / 255, squared / 255**2


def _undecoded(row: npt.NDArray[np.uint8]) -> bool:
    """True if a row of pixels has the grey of what libjpeg could not decode."""
    return bool(row.min() >= _UNDECODED - _NEARLY and row.max() <= _UNDECODED + _NEARLY)


def _pixels(decode: RecordDecoder, encoded: EncodedImage, scale: int) -> npt.NDArray[np.uint8]:
    pixels = decode.rgb(encoded, encoded.box, scale=scale)
    return array_from_image(decode.region(encoded, encoded.box, scale)) if pixels is None else pixels
