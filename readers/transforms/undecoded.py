"""Images that somebody else decodes: the workers plan and cut, and what is left travels as compressed bytes.

`Undecoded` is what samples have in place of pixels, if they were asked for by `Samples.undecoded`. Whoever decodes it,
DALI or a GPU, gets a small ordinary JPEG where the record can be cut, and so needs no decoder of regions.
"""

from __future__ import annotations

from functools import cache, partial
from io import BytesIO
from typing import Any, Final, NamedTuple

from packtrain._codec.cut import cut
from packtrain._codec.decode import DecodedPart, EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.geometry import FILTERS, Box, Flip, Scale
from packtrain._codec.image_plan import MIRROR, ImagePlan
from packtrain._codec.jpeg_markers import frame_header
from packtrain._codec.pillow import check_pixels, check_scans, open_image, require_pillow
from packtrain._codec.record_forms import as_image_file, header_file
from packtrain._codec.stages import CUT, OnStage, untimed
from packtrain._core.errors import UsageError
from packtrain._core.options import StoreOptions
from packtrain._core.overriding import override

from .compose import Compose, name_of
from .executors import ArrayExecutor, Continuation, Executor, PillowExecutor, Pixels
from .views import Views

_SOI: Final = b"\xff\xd8"
UPSIDE_DOWN: Final = Flip(horizontal=False)
# Width and height in pixels: one block of a JPEG, however it is subsampled.
_BLACK_SIDE: Final = 16


class Undecoded(NamedTuple):
    """An image as it is stored, or a part of it, and what becomes of its pixels.

    Attributes:
        data: An encoded image, for example a JPEG. May be a view of the record.
        plan: What becomes of it. Its places are those in this image: if only a part of the box is needed, and was cut
            out, the box reaches outside. `rest` is empty, or turns the image upside down.
    """

    data: bytes | bytearray | memoryview
    plan: ImagePlan

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the result, in pixels."""
        return self.plan.size

    def fits(self, width: int, height: int) -> bool:
        """Check that an image of this size has all pixels that the plan needs. An index may promise another size."""
        source = self.plan.source
        return min(source[:2]) >= 0 and source.left + source.width <= width and source.top + source.height <= height


class DecodedElsewhere:
    """Does what plans say with pixels that somebody else has decoded, as the loader's workers do."""

    def __init__(self) -> None:
        # Executors ask for a decoder, but nothing is left to decode.
        records = RecordDecoder(StoreOptions("jpeg"), decoder("auto"))
        self._executors: Final = (ArrayExecutor(records, scaled=False), PillowExecutor(records, scaled=False))

    def finish(self, plan: ImagePlan, pixels: Pixels, into: Pixels) -> None:
        """Crops, resizes and flips.

        Args:
            plan: The plan of an `Undecoded` image.
            pixels: Its pixels in the rectangle ``plan.source``, uint8 [height, width, 3].
            into: Gets the result, uint8 [height, width, 3].
        """
        left, top, width, height = plan.source
        part = DecodedPart(pixels, 1, left, top)
        image = EncodedImage(memoryview(b""), left + width, top + height, part)
        finish = next(filter(None, (each.decode(image, plan, untimed) for each in self._executors)))
        made = finish(into, untimed)
        if made is not into:
            into[:] = made.permute(1, 2, 0).numpy()


class UndecodedExecutor(Executor):
    """Runs no plan, but says what has to be decoded for it, and cuts it out.

    Args:
        records: Cuts records.
    """

    def __init__(self, records: RecordDecoder) -> None:
        self._records = records

    @override
    def decode(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage) -> Continuation:
        check_pixels(image.width, image.height)
        source = plan.source
        part = cut(image.data, source) if self._records.cuts and source != image.box else None
        on_stage(CUT)
        if part is None:
            _check_header(image)
            return partial(_undecoded, as_image_file(image.data), plan)
        left, top, width, height = plan.box
        return partial(_undecoded, part.data, plan._replace(box=Box(left - part.left, top - part.top, width, height)))


def _check_header(image: EncodedImage) -> None:
    """Does for the size in an image's header what `check_pixels` does for that in the index.

    A decoder believes the header, and allocates what it promises before it finds out that the pixels are not there.

    Raises:
        DecompressionBombError: The header claims more than twice as many pixels as Pillow's limit, or there are too
            many scans.
        Exception: Whatever Pillow's plugins raise on a damaged header that is no JPEG's.
    """
    file = header_file(image.data)
    frame = frame_header(file) if bytes(file[:2]) == _SOI else None
    if frame is None:
        open_image(image.data)
        return
    if (frame.width, frame.height) != (image.width, image.height):
        check_pixels(frame.width, frame.height)
    if file is image.data:
        check_scans(image.data, frame.width, frame.height)


def _undecoded(data: bytes | bytearray | memoryview, plan: ImagePlan, into: Any, on_stage: OnStage) -> Undecoded:
    return Undecoded(data, plan if plan.rest in ((), (UPSIDE_DOWN,)) else _with_flips(plan))


def _with_flips(plan: ImagePlan) -> ImagePlan:
    """The plan with flips that follow in any order brought into the form of `Undecoded`."""
    for operation in plan.rest:
        if not isinstance(operation, Flip):
            raise UsageError(
                "where an image is decoded, crops and one resize can be run, and flips after them. That does not leave "
                f"room for {operation}: put flips last, or use packtrain.Loader with decode='cpu'"
            )
    mirrored = plan.mirrored ^ bool(plan.rest.count(MIRROR) % 2)
    return plan._replace(mirrored=mirrored, rest=(UPSIDE_DOWN,) * (plan.rest.count(UPSIDE_DOWN) % 2))


def black(size: tuple[int, int]) -> Undecoded:
    """A black image of `size`, width and height in pixels: what stands for an image that is missing."""
    side = _BLACK_SIDE
    resize = Scale(*size, FILTERS["bilinear"])
    return Undecoded(_black(), ImagePlan(Box(0, 0, side, side), resize, None, mirrored=False, rest=()))


@cache
def _black() -> bytes:
    file = BytesIO()
    require_pillow().new("RGB", (_BLACK_SIDE, _BLACK_SIDE)).save(file, "jpeg")
    return file.getvalue()


def require_plannable(compose: Compose | Views | None, store: StoreOptions) -> Compose:
    """Checks that all that a transform does can be left to whoever decodes the image, and returns it.

    Args:
        compose: The transform, or None.
        store: How the dataset stores images.

    Raises:
        UsageError: It cannot.
    """
    if store.mode != "RGB":
        raise UsageError("its images are grey, and only packtrain.Loader decodes these, with decode='cpu'")
    if store.store_mode.is_raw:
        raise UsageError("its images are stored raw, so there is nothing to decode: use packtrain.Loader as it is")
    if compose is None:
        raise UsageError("give a transform, such as [RandomResizedCrop(224), RandomHorizontalFlip()]")
    if isinstance(compose, Views):
        raise UsageError("Views makes several images of each, which only packtrain.Loader does, with decode='cpu'")
    others = [*(each for each in compose.fused if not each.geometric), *compose.foreign]
    if others:
        raise UsageError(
            f"{name_of(others[0])} needs decoded pixels, but this loader can run only crops, resizes and flips: use "
            "packtrain.Loader with decode='cpu', or apply the transform to the batch (batch_transform)"
        )
    return compose
