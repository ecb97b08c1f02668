"""Laws of copying crops out of raw records: numpy's slices, crc32c's checksums, and no number that is trusted."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from packtrain._codec.native.places import PLACE

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")


def record(seed: int, height: int, width: int, channels: int, *, header: bool) -> tuple[bytes, npt.NDArray[np.uint8]]:
    """A raw record as numpy writes it, and its pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    file = io.BytesIO()
    np.save(file, pixels)
    return (file.getvalue() if header else pixels.tobytes()), pixels


def place(data: bytes, **changes: int) -> npt.NDArray[Any]:
    """The place of a record of 40 x 50 pixels, of which 9 x 9 in the last corner are copied; with some changes."""
    numbers = dict.fromkeys(PLACE.names or (), 0) | {"row": 5, "length": len(data), "crc32c": crc32c(data)}
    numbers |= {"width": 40, "height": 50, "crop_left": 31, "crop_top": 41}
    numbers |= dict.fromkeys(("crop_width", "crop_height", "new_width", "new_height"), 9)
    return np.array([tuple((numbers | changes).values())], PLACE)


def copied(places: Any, shards: Any, out: Any, check: bool = True) -> tuple[bool, int]:
    """Returns what the function does, and the last row that it read."""
    current = np.full(1, -7)
    return _extension.copy_records(shards, places, check, -1, 0, out, current), int(current[0])


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, list[bytes], Any, list[int]]:
    """Places, shards, the crops expected by target, and the shape of the output."""
    count, channels = draw(st.integers(1, 5)), draw(st.sampled_from([1, 3]))
    high, wide = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    shards, expected, places = [b"", b""], {}, []
    targets = draw(st.permutations(range(count + 1)))
    for number in range(count):
        # Long records too: their checksums are summed up in lanes.
        height, width = high + draw(st.integers(0, 90)), wide + draw(st.integers(0, 90))
        data, pixels = record(number, height, width, channels, header=draw(st.booleans()))
        left, top = draw(st.integers(0, width - wide)), draw(st.integers(0, height - high))
        mirrored, shard = draw(st.booleans()), draw(st.integers(0, 1))
        offset = len(shards[shard]) + draw(st.integers(0, 9))
        shards[shard] = shards[shard].ljust(offset, b"?") + data
        crop = pixels[top : top + high, left : left + wide]
        expected[targets[number]] = crop[:, ::-1] if mirrored else crop
        # The rectangle may be kept whole, or be a window of a larger one that keeps its size.
        x, y = draw(st.integers(0, left)), draw(st.integers(0, top))
        size = (width - left + x, height - top + y)
        crop_box = (left - x, top - y, *size)
        numbers = (shard, offset, len(data), crc32c(data), width, height, *crop_box, *size, x, y, mirrored)
        places.append((targets[number], 1000 + number, *numbers))
    return np.array(places, PLACE), shards, expected, [count + 1, high, wide, channels]


@given(batches(), st.booleans())
def test_the_pixels_are_those_of_slices(batch: Any, check: bool) -> None:
    places, shards, expected, shape = batch
    out = np.full(shape, 77, np.uint8)
    assert copied(places, shards, out, check) == (True, places["row"][-1])
    for target, pixels in enumerate(out):
        np.testing.assert_array_equal(pixels, expected.get(target, np.full(shape[1:], 77)))


@given(st.integers(0, 10**9), st.integers(0, 7))
def test_one_changed_bit_is_noticed(where: int, bit: int) -> None:
    data, _ = record(1, 50, 40, 3, header=True)
    damaged = bytearray(data)
    damaged[where % len(data)] ^= 1 << bit
    out = np.zeros((1, 9, 9, 3), np.uint8)
    assert copied(place(data), [data], out) == (True, 5)
    assert copied(place(data), [damaged], out) == (False, 5)


FAR = 2**63 - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": -1}, {"target": 2}, {"target": FAR}, {"target": -FAR},
        {"shard": -1}, {"shard": 1}, {"shard": FAR},
        {"offset": -1}, {"offset": 1}, {"offset": 10**6}, {"offset": FAR}, {"offset": -FAR},
        {"length": 0}, {"length": -1}, {"length": 6001}, {"length": FAR}, {"length": -FAR},
        {"crc32c": 1}, {"crc32c": -1},
        {"width": 0}, {"width": 39}, {"width": 50, "height": 40}, {"width": FAR}, {"width": 2**62, "height": 4},
        {"height": 0}, {"height": -50}, {"height": 51}, {"height": FAR}, {"height": 2**31 - 1, "width": 2**31 - 1},
        {"crop_left": -1}, {"crop_left": 32}, {"crop_left": FAR}, {"crop_left": -FAR},
        {"crop_width": 0}, {"crop_width": -1}, {"crop_width": 8}, {"crop_width": 10}, {"crop_width": FAR},
        {"crop_height": 0}, {"crop_height": -FAR}, {"crop_height": 8}, {"crop_height": FAR},
        {"crop_top": -1}, {"crop_top": 42}, {"crop_top": FAR}, {"crop_top": -FAR},
        {"new_width": 0}, {"new_width": 8}, {"new_width": 10}, {"new_width": FAR}, {"new_height": 8},
        {"new_height": -FAR}, {"new_left": -1}, {"new_left": 1}, {"new_left": FAR}, {"new_top": -FAR}, {"new_top": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("check", [True, False])
def test_what_is_wrong_is_not_copied(wrong: dict[str, int], check: bool) -> None:
    """Nothing is written outside the slot of the record, and nothing after it is copied."""
    data, _ = record(2, 50, 40, 3, header=True)
    first, second = place(data, **({"mirrored": 1} | wrong)), place(data, target=1, row=6)
    room = np.full((4, 9, 9, 3), 77, np.uint8)
    out = room[1:3]
    done, current = copied(np.concatenate([first, second]), [data], out, check)
    assert done == (not check and "crc32c" in wrong)
    assert current == (6 if done else -7 if wrong.keys() & {"target", "shard"} else 5)
    assert (room[0] == 77).all() and (room[3] == 77).all()
    assert done or (out[1] == 77).all()


def test_a_header_of_another_shape_is_noticed_without_checksums() -> None:
    data, _ = record(2, 50, 40, 3, header=True)
    turned, _ = record(2, 40, 50, 3, header=True)
    out = np.zeros((1, 9, 9, 3), np.uint8)
    assert copied(place(data), [data], out, check=False)[0]
    assert not copied(place(data), [turned], out, check=False)[0]


OUT, CURRENT = np.zeros((1, 2, 2, 3), np.uint8), np.zeros(1, np.int64)
NONE = np.empty(0, PLACE)


@pytest.mark.parametrize(
    "places",
    [
        bytes(PLACE.itemsize),
        np.zeros((1, 13), np.int64),
        np.zeros((1, 1), PLACE),
        np.zeros((), PLACE),
        np.zeros(1, PLACE.descr[:-1]),
        np.zeros(1, [*PLACE.descr, ("one_more", np.int64)]),
        np.zeros(1, [PLACE.descr[1], PLACE.descr[0], *PLACE.descr[2:]]),
        np.zeros(1, [*PLACE.descr[:-1], ("mirrored", np.float64)]),
        np.zeros(1, [*PLACE.descr[:-1], ("mirrored", np.uint64)]),
        np.zeros(1, PLACE.newbyteorder()),
    ],
)
def test_places_of_another_layout_are_refused(places: Any) -> None:
    with pytest.raises(ValueError, match="places: expected a one-dimensional array of dtype PLACE"):
        _extension.copy_records([b""], places, True, -1, 0, OUT, CURRENT)


@pytest.mark.parametrize(
    ("out", "current", "wrong"),
    [
        (np.zeros((1, 2, 3), np.uint8), CURRENT, "out"),
        (np.zeros((1, 2, 2, 4), np.uint8), CURRENT, "out"),
        (np.zeros((1, 0, 2, 3), np.uint8), CURRENT, "out"),
        (np.zeros((1, 2, 2, 3), np.uint16), CURRENT, "out"),
        (OUT, np.zeros(2, np.int64), "current"),
        (OUT, np.zeros(1, np.int32), "current"),
    ],
)
def test_other_shapes_are_refused(out: Any, current: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"^{wrong}: expected "):
        _extension.copy_records([b""], np.zeros(1, PLACE), True, -1, 0, out, current)


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises(TypeError):
        _extension.copy_records([b"", None], NONE, True, -1, 0, OUT, CURRENT)
    with pytest.raises(TypeError):
        _extension.copy_records(7, NONE, True, -1, 0, OUT, CURRENT)
    with pytest.raises(TypeError):
        _extension.copy_records([], None, True, -1, 0, OUT, CURRENT)
    with pytest.raises((BufferError, ValueError)):
        _extension.copy_records([], NONE, True, -1, 0, OUT[:, :, ::2], CURRENT)
    with pytest.raises((BufferError, ValueError)):
        _extension.copy_records([], np.zeros(4, PLACE)[::2], True, -1, 0, OUT, CURRENT)
    with pytest.raises((BufferError, TypeError)):
        _extension.copy_records([], NONE, True, -1, 0, bytes(12), CURRENT)
    assert _extension.copy_records([], NONE, True, -1, 0, OUT, CURRENT) is True


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 no Python code can hand out memory")
def test_a_list_of_shards_that_becomes_shorter_meanwhile() -> None:
    class Shard:
        def __buffer__(self, flags: int) -> memoryview:
            shards.clear()
            return memoryview(bytes(48))

    shards: list[Any] = [Shard() for _ in range(1000)]
    assert _extension.copy_records(shards, NONE, False, -1, 0, OUT, CURRENT) is True


def test_what_is_checked_is_what_is_used() -> None:
    """Even if `current` lies in the places themselves, so that writing the row changes a field that was checked."""
    (first, pixels), (second, _) = (record(seed, 4, 4, 3, header=False) for seed in (1, 2))
    sides = ("width", "height", "crop_width", "crop_height", "new_width", "new_height")
    places = place(first, row=1, crop_left=0, crop_top=0, **dict.fromkeys(sides, 4))
    out = np.zeros((1, 4, 4, 3), np.uint8)
    assert _extension.copy_records([first, second], places, True, -1, 0, out, places["shard"])
    np.testing.assert_array_equal(out[0], pixels)
