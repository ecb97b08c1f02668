"""One look at each image of a range of records, in a process that may die of one: figures, and a small grey version."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.pillow import pixel_limit, set_pixel_limit, whole_images_only
from packtrain._codec.pixels import array_from_image
from packtrain._core.errors import PacktrainError
from packtrain._core.files import MiB
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
"""The facts about an image.

Its `digest` is the first 128 bits of the record's SHA-256 if it was hashed, else 0, `contrast` the standard deviation
of `grey`, and `grey_bottom` the share of rows at its end that have the grey of what libjpeg could not decode. If it is
`measured`, `mean` and `square` are the means of each channel and of its squares, in [0, 1], of the image at full size.
"""
Looks = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]
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
    """A task: look at some records.

    Attributes:
        part: Number of the dataset.
        store: The records of the dataset, or of a segment.
        rows: Rows there, int64 [records], in the order in which their records lie.
        numbers: Their places among the rows that are looked at, int64 [records].
        every: One place in this many is measured at full size.
        hashed: Which of them are hashed, bool [records]: those that may have the bytes of another one.
        pixel_limit: Pillow's ``Image.MAX_IMAGE_PIXELS`` in the process that asks.
    """

    part: int
    store: RecordStore
    rows: Numbers
    numbers: Numbers
    every: int
    hashed: npt.NDArray[np.bool_]
    pixel_limit: int | None = field(default_factory=pixel_limit)

    def __str__(self) -> str:
        return f"looking at {len(self.rows)} records of {self.store.name}"


@dataclass(frozen=True)
class Seen:
    """The result of a `Range`.

    Attributes:
        part: Number of the dataset.
        numbers: The places of its rows among those that are looked at, int64 [records].
        looks: A `LOOK` for each of them; zeros for those without an image.
        missing: Which of them have no image, bool [records].
        problems: Why a row could not be looked at, by its place.
    """

    part: int
    numbers: Numbers
    looks: Looks
    missing: npt.NDArray[np.bool_]
    problems: dict[int, str]


@dataclass(frozen=True)
class _Message:
    """A message about one record: its look in base64, or why there is none; neither if it is missing."""

    look: str | None
    problem: str | None


def look_at(task: Range, report: Callable[[int], None]) -> Seen:
    """Look at a range of records; reports how many more are done."""
    set_pixel_limit(task.pixel_limit)
    rows, numbers = task.rows, task.numbers
    with task.store as store:
        looks, missing = np.zeros(len(rows), LOOK), np.zeros(len(rows), bool)
        problems: dict[int, str] = {}
        wanted = list(zip(rows.tolist(), task.hashed.tolist(), (numbers % task.every == 0).tolist(), strict=True))
        done = deaths = 0
        limits = Limits(_MEMORY, _SECONDS + len(rows))
        while done < len(rows):
            try:
                for message in run_sandboxed(partial(_work, store, wanted[done:]), _Message, limits):
                    if message.problem is not None:
                        problems[int(numbers[done])] = message.problem
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
                    problems[int(numbers[done])] = f"the process that decoded it {death}"
                done += 1
            if deaths == _MOST_DEATHS:
                rest = f"not looked at, because {deaths} records near it ended the process that decoded them"
                problems |= dict.fromkeys(numbers[done:].tolist(), rest)
                break
    report(len(rows) - done // _REPORT_RECORDS * _REPORT_RECORDS)
    looks["contrast"] = looks["grey"].std(axis=(1, 2))
    return Seen(task.part, numbers, looks, missing, problems)


def _work(store: RecordStore, wanted: Sequence[tuple[int, bool, bool]], send: Send) -> None:
    """Runs in a process of its own: sends a `_Message` for each row, of which some are hashed, and some measured."""
    records, stored = store.records(IMAGE), store.schema[IMAGE].store
    assert stored is not None, "an image is stored somehow"
    decode = RecordDecoder(stored, decoder())
    with whole_images_only():
        for row, hashed, measured in wanted:
            look = problem = None
            try:
                encoded = records.image(row)
                if encoded is not None:
                    seen = _look(decode, encoded, hashed=hashed, measured=measured)
                    look = base64.b64encode(seen.tobytes()).decode()
            except PacktrainError as error:
                problem = str(error)
            except MemoryError:
                raise
            except Exception as error:
                problem = str(records.undecodable(row, error))
            send({"look": look, "problem": problem})


def _look(decode: RecordDecoder, encoded: EncodedImage, *, hashed: bool, measured: bool) -> Looks:
    """Look at one image: a `LOOK` []."""
    look = np.zeros((), LOOK)
    if hashed:
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
