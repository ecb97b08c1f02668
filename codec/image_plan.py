"""Plan, then pixels: what a transform does to one image, decided before a byte of it is decoded.

A transform turns an image's size and some random numbers into operations (`packtrain._codec.geometry`). `plan_image`
brings them into a normal form: a rectangle of the source, an optional resize, an optional mirroring, and the remaining
operations. Executors run it (`packtrain._readers.transforms.executors`): each accepts the plans that it can run fast,
and the one on Pillow accepts all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .geometry import Box, Crop, Flip, Operation, Scale

MIRROR: Final = Flip(horizontal=True)


class ImagePlan(NamedTuple):
    """What to do with one image.

    Attributes:
        box: Rectangle of the source image that is taken, in pixels; inside the image.
        resize: Size and filter to which `box` is resized, or None.
        mirrored: True if left and right are swapped after that.
        rest: Operations that follow, in order.
    """

    box: Box
    resize: Scale | None
    mirrored: bool
    rest: tuple[Operation, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations on `box`, in order."""
        resize = () if self.resize is None else (self.resize,)
        return (*resize, MIRROR, *self.rest) if self.mirrored else (*resize, *self.rest)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, before `rest`."""
        return self.box[2:] if self.resize is None else self.resize[:2]


def plan_image(operations: tuple[Operation, ...], width: int, height: int) -> ImagePlan:
    """Brings operations on an image of `width` x `height` pixels into their normal form.

    >>> plan_image((Crop(Box(10, 20, 50, 40)), Flip(horizontal=True)), 500, 375)
    ImagePlan(box=Box(left=10, top=20, width=50, height=40), resize=None, mirrored=True, rest=())
    """
    left = top = done = 0
    resize: Scale | None = None
    mirrored = False
    for operation in operations:
        if isinstance(operation, Crop) and resize is None and not mirrored:
            x, y, crop_width, crop_height = operation.box
            # Outside the image a crop is filled with zeros, which is more than taking a rectangle.
            if x < 0 or y < 0 or x + crop_width > width or y + crop_height > height:
                break
            left, top, width, height = left + x, top + y, crop_width, crop_height
        elif isinstance(operation, Scale) and resize is None and not mirrored:
            resize = operation
        elif isinstance(operation, Flip) and operation.horizontal:
            mirrored = not mirrored
        else:
            break
        done += 1
    return ImagePlan(Box(left, top, width, height), resize, mirrored, operations[done:])
