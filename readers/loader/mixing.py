"""Known batch transforms that mix images, timm's and torchvision's: what they need, checked before they go wrong.

On bytes, some of them fail with a message about dtypes, and others silently mix wrongly: where timm's Mixup draws a
share for each image, it rounds it to 0.
"""

from __future__ import annotations

from typing import Any, Final

from packtrain._core.errors import UsageError

_TIMM: Final = ("timm.data.mixup", "Mixup")
_TORCHVISION: Final = ("torchvision.transforms.v2._augment", "MixUp")


def require_mixable(transform: object, images: Any) -> None:
    """Checks that a batch transform can mix these images; nothing is known of most transforms.

    Args:
        transform: The batch transform, or torchvision's choice or list of several.
        images: The images of a batch: a tensor [batch, ...], or a tuple of views.

    Raises:
        UsageError: It cannot.
    """
    for each in (transform, *getattr(transform, "transforms", ())):
        known = {(kind.__module__, kind.__name__) for kind in type(each).__mro__} & {_TIMM, _TORCHVISION}
        if not known:
            continue
        name = f"{'timm' if known == {_TIMM} else 'torchvision'}'s {type(each).__name__}"
        if isinstance(images, (tuple, list)):
            raise UsageError(
                f"batch_transform: {name} mixes one tensor of images, but Views give a tuple: give a function that "
                "calls it with one of them"
            )
        # Pasting rectangles with one share for the whole batch works on bytes, too.
        pastes = _TIMM in known and getattr(each, "mode", "") == "batch" and getattr(each, "mixup_alpha", 1) == 0
        if not images.is_floating_point() and not pastes:
            raise UsageError(
                f"batch_transform: {name} needs images of floating point, but these are {images.dtype}: give mean= and "
                "std=, or dtype=torch.float32, which are applied before it"
            )
        if _TIMM in known and len(images) % 2:
            raise UsageError(
                f"batch_transform: {name} needs an even number of images, but this batch has {len(images)}: give an "
                "even batch_size and drop_last=True"
            )
