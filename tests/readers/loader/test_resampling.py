"""Laws of the resampling of whole batches: the pixels are Pillow's, for few kernels and bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from packtrain._codec.geometry import FILTERS, Box, Scale
from packtrain._codec.image_plan import ImagePlan
from packtrain._codec.resizing import style
from packtrain._readers.loader import resampling
from packtrain._readers.loader.resampling import resampled
from packtrain._readers.transforms.undecoded import UPSIDE_DOWN

Pixels = npt.NDArray[np.uint8]
KINDS = ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
# Pillow-simd rounds weights to 16 bits, and Pillow 13 may run the other pass first.
DEVIATION = {None: 2, 0: 2, 1: 0, 2: 2}[style()]


def by_pillow(pixels: Pixels, plan: ImagePlan) -> Pixels:
    left, top, width, height = plan.box
    image = Image.fromarray(pixels).crop((left, top, left + width, top + height))
    for operation in plan.operations:
        image = operation.apply(image)
    return np.asarray(image)


# --- what Pillow's Resample.c does, one number at a time ---


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else float(np.sin(x * np.pi) / (x * np.pi))


def weight(kind: int, x: float) -> float:
    far = abs(x)
    if kind == FILTERS["box"]:
        return float(-0.5 < x <= 0.5)
    if kind == FILTERS["bilinear"]:
        return max(1 - far, 0)
    if kind == FILTERS["hamming"]:
        return _sinc(far) * float(0.54 + 0.46 * np.cos(far * np.pi)) if far < 1 else 0.0
    if kind == FILTERS["bicubic"]:
        if far < 1:
            return (1.5 * far - 2.5) * far * far + 1
        return (((far - 5) * far + 8) * far - 4) * -0.5 if far < 2 else 0.0
    return _sinc(x) * _sinc(x / 3) if far < 3 else 0.0


def resized(pixels: Pixels, target: int, kind: int) -> Pixels:
    """The rows resized to `target`."""
    source = len(pixels)
    if source == target:
        return pixels
    reach = {FILTERS["box"]: 0.5, FILTERS["bicubic"]: 2, FILTERS["lanczos"]: 3}.get(kind, 1)
    scale = source / target
    stretch = max(scale, 1.0)
    rows = []
    for number in range(target):
        centre = (number + 0.5) * scale
        first = max(int(centre - reach * stretch + 0.5), 0)
        end = min(int(centre + reach * stretch + 0.5), source)
        weights = np.array([weight(kind, (place - centre + 0.5) * (1 / stretch)) for place in range(first, end)])
        scaled = weights / weights.sum() * 2**22
        whole = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)
        found = (np.tensordot(whole, pixels[first:end].astype(np.int64), 1) + 2**21) >> 22
        rows.append(np.clip(found, 0, 255).astype(np.uint8))
    return np.array(rows)


def by_the_book(pixels: Pixels, plan: ImagePlan) -> Pixels:
    left, top, width, height = plan.box
    found = pixels[top : top + height, left : left + width]
    if plan.resize is not None:
        found = resized(found.swapaxes(0, 1), plan.resize.width, plan.resize.resample).swapaxes(0, 1)
        found = resized(found, plan.resize.height, plan.resize.resample)
    if plan.window is not None:
        left, top, width, height = plan.window
        found = found[top : top + height, left : left + width]
    found = found[:, ::-1] if plan.mirrored else found
    return found[::-1] if plan.rest else found


# --- plans ---


@st.composite
def intervals(draw: Any, size: int, part: int | None = None) -> tuple[int, int]:
    """The beginning of a part, and its size."""
    length = draw(st.integers(1, size)) if part is None else part
    return draw(st.integers(0, size - length)), length


@st.composite
def sized_cases(draw: Any, width: int, height: int, kinds: tuple[str, ...]) -> tuple[Pixels, ImagePlan]:
    """An image, and a plan that makes `width` x `height` pixels of it."""
    noise = np.random.default_rng(draw(st.integers(0, 999)))
    columns, rows = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    how = draw(st.sampled_from(["resize", "window", "crop"]))
    if how == "crop":
        columns, rows = columns + width, rows + height
    shape = (rows, columns, 3)
    values = noise.choice([0, 255], shape) if draw(st.booleans()) else noise.integers(0, 256, shape)
    x = draw(intervals(columns, width if how == "crop" else None))
    y = draw(intervals(rows, height if how == "crop" else None))
    box = Box(x[0], y[0], x[1], y[1])
    kind = FILTERS[draw(st.sampled_from(kinds))]
    resize = window = None
    if how == "resize":
        resize = Scale(width, height, kind)
    elif how == "window":
        # Sometimes the size of the box, so that an axis keeps its size.
        wide, high = width + draw(st.integers(0, 20)), height + draw(st.integers(0, 20))
        wide = box.width if draw(st.booleans()) and box.width >= width else wide
        resize = Scale(wide, high, kind)
        window = Box(draw(intervals(wide, width))[0], draw(intervals(high, height))[0], width, height)
    rest = (UPSIDE_DOWN,) if draw(st.booleans()) else ()
    return values.astype(np.uint8), ImagePlan(box, resize, window, draw(st.booleans()), rest)


@st.composite
def batches(draw: Any, kinds: tuple[str, ...] = tuple(KINDS)) -> list[tuple[Pixels, ImagePlan]]:
    width, height = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    return draw(st.lists(sized_cases(width, height, kinds), min_size=1, max_size=5))  # type: ignore[no-any-return]


def tensors(batch: list[tuple[Pixels, ImagePlan]]) -> tuple[list[torch.Tensor], list[ImagePlan]]:
    return [torch.from_numpy(pixels) for pixels, _ in batch], [plan for _, plan in batch]


# --- laws ---


@settings(deadline=None)
@given(batches())
def test_pixels_are_those_of_pillows_arithmetic(batch: list[tuple[Pixels, ImagePlan]]) -> None:
    found = resampled(*tensors(batch)).numpy()
    for image, (pixels, plan) in zip(found, batch, strict=True):
        if _filter_of(plan) == FILTERS["nearest"]:
            assert np.array_equal(image, by_pillow(pixels, plan))
        else:
            assert np.array_equal(image, by_the_book(pixels, plan))


def _filter_of(plan: ImagePlan) -> int:
    return FILTERS["nearest"] if plan.resize is None else plan.resize.resample


@settings(deadline=None)
@given(batches())
def test_pixels_are_those_of_the_pillow_that_is_installed(batch: list[tuple[Pixels, ImagePlan]]) -> None:
    if style() == 2:
        # A value that is clipped between the passes may differ by more if the passes change places.
        batch = [(pixels // 2 + 64, plan) for pixels, plan in batch]
    found = resampled(*tensors(batch)).numpy()
    for image, (pixels, plan) in zip(found, batch, strict=True):
        deviation = np.abs(image.astype(int) - by_pillow(pixels, plan))
        assert deviation.max() <= DEVIATION
        # Two levels only where a filter overshoots, and there rarely.
        assert style() != 0 or (deviation > 1).mean() < 0.05


@settings(deadline=None)
@given(sized_cases(20, 16, ("bilinear", "bicubic", "lanczos", "nearest", "box")), st.integers(0, 9), st.integers(0, 9))
def test_what_a_window_does_not_need_may_be_missing(case: tuple[Pixels, ImagePlan], right: int, down: int) -> None:
    """The image may be any part that has the plan's source in it; then the box reaches outside."""
    pixels, plan = case
    left, top, width, height = plan.source
    first, above = max(left - right, 0), max(top - down, 0)
    part = pixels[above : top + height + down, first : left + width + right]
    moved = plan._replace(box=plan.box._replace(left=plan.box.left - first, top=plan.box.top - above))
    assert torch.equal(resampled(*tensors([(part, moved)])), resampled(*tensors([case])))


@settings(deadline=None)
@given(batches(), st.integers(0, 2**14))
def test_results_do_not_depend_on_groups(batch: list[tuple[Pixels, ImagePlan]], memory: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "MEMORY", memory)
        found = resampled(*tensors(batch))
    alone = [resampled(*tensors([case])) for case in batch]
    assert torch.equal(found, torch.cat(alone))


def truncated(tensor: torch.Tensor, bits: int = 10) -> torch.Tensor:
    """float32 numbers with fewer bits, as hardware takes them."""
    mask = -1 << (23 - bits)
    return (tensor.view(torch.int32) & mask).view(torch.float32)


@settings(deadline=None)
@given(batches())
def test_results_are_the_same_in_tf32(batch: list[tuple[Pixels, ImagePlan]]) -> None:
    exact, multiply = resampled(*tensors(batch)), torch.bmm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "bmm", lambda one, other: multiply(truncated(one), truncated(other)))
        assert torch.equal(resampled(*tensors(batch)), exact)


@settings(deadline=None)
@given(batches())
def test_results_are_the_same_under_autocast_and_another_default_dtype(batch: list[tuple[Pixels, ImagePlan]]) -> None:
    exact = resampled(*tensors(batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(resampled(*tensors(batch)), exact)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(resampled(*tensors(batch)), exact)
    finally:
        torch.set_default_dtype(torch.float32)


# --- costs ---


class Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels, and the bytes of tensors that are made and alive."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.most = 0
        self._given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def now(self) -> int:
        self._alive = {n: each for n, each in self._alive.items() if not each[0].expired()}  # type: ignore[no-untyped-call]
        return sum(size for _, size in self._alive.values())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.kernels += 1
        if isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in self._given:
            storage = found.untyped_storage()
            self._alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        self.most = max(self.most, self.now)
        return found


def photographs(count: int, size: int = 120) -> list[tuple[Pixels, ImagePlan]]:
    noise = np.random.default_rng(0)
    found = []
    for number in range(count):
        height, width = size + number % 5, size + number % 7
        plan = ImagePlan(Box(0, 0, width, height), Scale(64, 64, 2), None, number % 2 == 0, ())
        found.append((noise.integers(0, 256, (height, width, 3), np.uint8), plan))
    return found


def test_the_number_of_kernels_does_not_depend_on_the_number_of_images() -> None:
    counts = []
    for count in (2, 40):
        batch = tensors(photographs(count))
        with Costs(batch[0]) as costs:
            resampled(*batch)
        counts.append(costs.kernels)
    assert counts[0] == counts[1] < 100


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=60))
def test_most_of_what_is_computed_is_no_padding(sizes: list[tuple[int, int]]) -> None:
    plans = [ImagePlan(Box(0, 0, *size), Scale(8, 8, 2), None, False, ()) for size in sizes]
    images = [torch.empty((height, width, 3), dtype=torch.uint8) for width, height in sizes]
    groups = list(resampling._groups(images, plans))
    assert sorted(chain(*groups)) == list(range(len(sizes)))
    for group in groups:
        wide, high = (max(sizes[number][axis] for number in group) for axis in (0, 1))
        assert len(group) * wide * high <= 2 * sum(sizes[number][0] * sizes[number][1] for number in group)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 8 * 2**20
    monkeypatch.setattr(resampling, "MEMORY", bound)
    batch = photographs(20)
    batch = [(pixels, plan._replace(resize=Scale(64, 64, FILTERS[kind]))) for pixels, plan in batch]
    given, plans = tensors(batch)
    with Costs(given) as costs:
        found = resampled(given, plans)
    assert costs.most <= bound + found.nbytes
    assert costs.most >= bound / 16


@contextmanager
def bfloat16(how: str) -> Iterator[None]:
    """Allows torch to multiply in bfloat16, in one of two ways that a program has."""
    settings: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if how == "attribute" and not hasattr(settings, "fp32_precision"):
        pytest.skip("this torch has only the function")
    before = torch.get_float32_matmul_precision() if how == "function" else settings.fp32_precision
    if how == "function":
        torch.set_float32_matmul_precision("medium")
    else:
        settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        if how == "function":
            torch.set_float32_matmul_precision(before)
        else:
            settings.fp32_precision = before


@pytest.mark.parametrize("how", ["function", "attribute"])
@pytest.mark.parametrize("kind", ["bilinear", "lanczos"])
def test_pixels_are_the_same_where_torch_may_multiply_in_bfloat16(kind: str, how: str) -> None:
    batch = tensors([(p, plan._replace(resize=Scale(64, 50, FILTERS[kind]))) for p, plan in photographs(4)])
    exact = resampled(*batch)
    with bfloat16(how):
        assert torch.equal(resampled(*batch), exact)


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


class TestOnAGpu:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("precision", ["highest", "high", "medium"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_pixels_are_those_of_the_cpu(self, kind: str, precision: str) -> None:
        batch = photographs(24)
        images, plans = tensors([(p, plan._replace(resize=Scale(64, 50, FILTERS[kind]))) for p, plan in batch])
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            with torch.autocast("cuda"):
                found = resampled([image.cuda() for image in images], plans)
        finally:
            torch.set_float32_matmul_precision(before)
        assert torch.equal(found.cpu(), resampled(images, plans))

    def test_memory_is_bounded(self) -> None:
        images, plans = tensors(photographs(400, 300))
        on_gpu = [image.cuda() for image in images]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = resampled(on_gpu, plans)
        torch.cuda.synchronize()
        # The library that multiplies may want some memory of its own.
        assert torch.cuda.max_memory_allocated() - before <= resampling.MEMORY + found.nbytes + 2**26
