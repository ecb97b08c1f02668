"""Plan, then pixels: what a transform does to one image, decided before a byte of it is decoded.

A transform turns an image's size and some random numbers into operations (`packtrain._codec.geometry`). `plan_image`
brings them into a normal form: a rectangle of the source, an optional resize of which perhaps only a window is kept, an
optional mirroring, and the remaining operations. Executors run it (`packtrain._readers.transforms.executors`): each
accepts the plans that it can run fast, and the one on Pillow accepts all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .effects.colour import Channels
from .geometry import Box, Crop, Flip, Operation, Scale, needed

MIRROR: Final = Flip(horizontal=True)
COLOURED: Final = Channels(3)
"""Makes a grey image one of three equal channels; changes no other one."""


class ImagePlan(NamedTuple):
    """The plan for one image.

    Attributes:
        box: Rectangle of the source image that is taken, in pixels; inside the image.
        resize: Size and filter to which `box` is resized, or None.
        window: Rectangle of the resized image that is kept, inside of it; None to keep all.
        mirrored: True if left and right are swapped after that.
        rest: Operations that follow, in order.
    """

    box: Box
    resize: Scale | None
    window: Box | None
    mirrored: bool
    rest: tuple[Operation, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations on `box`, in order."""
        mirroring = (MIRROR, *self.rest) if self.mirrored else self.rest
        return (*self._resized, *mirroring)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, before `rest`."""
        if self.window is not None:
            return self.window[2:]
        return self.box[2:] if self.resize is None else self.resize[:2]

    @property
    def source(self) -> Box:
        """The rectangle of the source that the result depends on: `box`, or what its window needs of it."""
        left, top, width, height = self.box
        if self.window is None:
            return self.box
        x, y, part_width, part_height = needed(self._resized, width, height)
        return Box(left + x, top + y, part_width, part_height)

    @property
    def _resized(self) -> tuple[Operation, ...]:
        if self.resize is None:
            return ()
        return (self.resize,) if self.window is None else (self.resize, Crop(self.window))


def plan_image(operations: tuple[Operation, ...], width: int, height: int) -> ImagePlan:
    """Brings operations on an image of `width` x `height` pixels into their normal form.

    >>> plan = plan_image((Crop(Box(10, 20, 50, 40)), Flip(horizontal=True)), 500, 375)
    >>> plan.box, plan.resize, plan.window, plan.mirrored, plan.rest
    (Box(left=10, top=20, width=50, height=40), None, None, True, ())
    >>> plan = plan_image((Scale(341, 256, 2), Crop(Box(58, 16, 224, 224))), 500, 375)
    >>> plan.box, plan.window, plan.rest
    (Box(left=0, top=0, width=500, height=375), Box(left=58, top=16, width=224, height=224), ())
    """
    left = top = done = 0
    box: Box | None = None
    resize: Scale | None = None
    mirrored = coloured = False
    for operation in operations:
        if isinstance(operation, Crop):
            x, y, crop_width, crop_height = operation.box
            # Outside the image a crop is filled with zeros, which is more than taking a rectangle.
            if x < 0 or y < 0 or x + crop_width > width or y + crop_height > height:
                break
            left += width - x - crop_width if mirrored else x
            top += y
            width, height = crop_width, crop_height
        elif isinstance(operation, Scale) and resize is None and not mirrored:
            box, resize = Box(left, top, width, height), operation
            left = top = 0
            width, height, _ = operation
        elif isinstance(operation, Flip) and operation.horizontal:
            mirrored = not mirrored
        elif operation == COLOURED:
            # Crops and resizes do the same to each channel, so that it can be done after them.
            coloured = True
        else:
            break
        done += 1
    rest = operations[done:]
    if coloured:
        rest = (COLOURED, *rest)
    if box is None or resize is None:
        return ImagePlan(Box(left, top, width, height), None, None, mirrored, rest)
    whole = width == resize.width and height == resize.height
    return ImagePlan(box, resize, None if whole else Box(left, top, width, height), mirrored, rest)
