"""timm's transforms: what packtrain does for them, by their classes and attributes.

The levels of operations differ between versions of timm; those of version 1 are known.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from packtrain._core.errors import UsageError

from ..base import Transform
from ..choices import RandomChoice, joined
from ..erasing import TimmRandomErasing
from ..geometric import RandomResizedCrop
from ..tensor_steps import FinishingStep, PILToTensor, ToTensor
from ..timm_augment import EFFECTS, LEVELS, WARPS, AugmentOperation, TimmAugMix, TimmRandAugment
from ..timm_geometry import CenterCropOrPad, RandomCropOrPad, ResizeKeepRatio, TrimBorder
from .makers import Maker, Makers, Recognise, Recognised

_AUGMENT: Final = "timm.data.auto_augment"
_TRANSFORMS: Final = "timm.data.transforms"
_VERSION: Final = "1"
# timm's functions for these have no magnitude.
_WITHOUT_LEVEL: Final = {"auto_contrast", "invert", "equalize"}
# Filters that warps may have, as values of `PIL.Image.Resampling`: nearest, bilinear and bicubic.
_WARPED: Final = {0, 2, 3}
_CHANNELS: Final = 3
# How far translations go if the settings do not say so.
_TRANSLATION: Final = 0.45


def _crop(found: Any) -> Sequence[Transform]:
    crops = [RandomResizedCrop(found.size, found.scale, found.ratio, each) for each in _filters(found)]
    return crops if len(crops) == 1 else (RandomChoice(crops),)


def _resize(found: Any) -> Sequence[Transform]:
    return (
        ResizeKeepRatio(
            found.size,
            found.longest,
            _filters(found),
            found.random_scale_prob,
            found.random_scale_range,
            found.random_scale_area,
            found.random_aspect_prob,
            found.random_aspect_range,
        ),
    )


def _filters(found: Any) -> Sequence[Any]:
    filters = found.interpolation
    return filters if isinstance(filters, list | tuple) else (filters,)


def _rand_augment(found: Any) -> Sequence[Transform]:
    known, weights = _operations(found.ops), found.choice_weights
    if weights is not None:
        weights = [float(weight) for weight in weights]
        if len(weights) != len(known) or sum(weight > 0 for weight in weights) < found.num_layers:
            raise UsageError("timm would fail: too few operations have a weight")
    return (TimmRandAugment(known, found.num_layers, weights),)


def _auto_augment(found: Any) -> Sequence[Transform]:
    return (RandomChoice([joined(_operations(part)) for part in found.policy]),)


def _augmix(found: Any) -> Sequence[Transform] | None:
    if found.alpha != 1 or found.width < 1:
        return None
    return (TimmAugMix(_operations(found.ops), int(found.width), max(int(found.depth), 0), bool(found.blended)),)


def _operations(found: Sequence[Any]) -> list[AugmentOperation]:
    """Some of timm's operations.

    Raises:
        UsageError: There are none, or one of them is not known.
    """
    known = [each for each in map(_operation, found) if each is not None]
    if len(known) < len(found) or not known:
        raise UsageError("not all operations are known")
    return known


def _operation(found: Any) -> AugmentOperation | None:
    """One of timm's operations; None if it is not known."""
    if _name(type(found), _AUGMENT) != "AugmentOp":
        return None
    effect, level = _name(found.aug_fn, _AUGMENT), ""
    if found.level_fn is not None:
        level = _name(getattr(found.level_fn, "func", found.level_fn), _AUGMENT)
    if effect not in {*EFFECTS, *WARPS} or (level not in LEVELS if level else effect not in _WITHOUT_LEVEL):
        return None
    resamples, fill, reach = found.kwargs["resample"], found.kwargs["fillcolor"], _reach(found, level)
    resamples = tuple(resamples) if isinstance(resamples, list | tuple) else (resamples,)
    if reach is None or not set(resamples) <= _WARPED or not _is_colour(fill):
        return None
    return AugmentOperation(
        effect in WARPS,
        effect,
        level,
        found.prob,
        found.magnitude,
        found.magnitude_std,
        found.magnitude_max or 10.0,
        tuple(fill),
        tuple(map(int, resamples)),
        reach,
    )


def _is_colour(fill: Any) -> bool:
    return isinstance(fill, list | tuple) and len(fill) == _CHANNELS and all(isinstance(each, int) for each in fill)


def _reach(found: Any, level: str) -> tuple[float, float] | None:
    """See `AugmentOperation.reach`; None if timm would fail for what is missing."""
    settings = found.level_fn.keywords if isinstance(found.level_fn, functools.partial) else {}
    if not set(settings) <= {"min_val", "max_val"}:
        return None
    match level:
        case "_minmax_level_to_arg":
            return settings.get("min_val", 0.0), settings.get("max_val", 1.0)
        case "_translate_rel_level_to_arg":
            return 0.0, found.hparams.get("translate_pct", _TRANSLATION)
        case "_translate_abs_level_to_arg":
            return (0.0, float(found.hparams["translate_const"])) if "translate_const" in found.hparams else None
    return 0.0, 1.0


def _erasing(found: Any) -> Sequence[FinishingStep]:
    return (
        TimmRandomErasing(
            found.probability,
            (found.min_area, found.max_area),
            found.log_aspect_ratio,
            found.mode or "const",
            (found.min_count, found.max_count),
        ),
    )


def _name(found: Any, module: str) -> str:
    """The name of a function or class, if it is of this module; else ""."""
    return found.__qualname__ if getattr(found, "__module__", None) == module else ""


def _versioned(reader: Callable[[Any], Recognised | None]) -> Maker:
    """Let a reader see a transform only if its timm is of the known version."""

    def maker(given: Any, recognise: Recognise) -> Recognised | None:
        version = str(getattr(sys.modules.get("timm"), "__version__", ""))
        return reader(given) if version.partition(".")[0] == _VERSION else None

    return maker


def _of(make: Callable[..., Transform], *names: str) -> Maker:
    """Make a transform of some attributes of timm's."""
    return _versioned(lambda found: (make(*(getattr(found, name) for name in names)),))


MAKERS: Final[Makers] = {
    (_AUGMENT, "AugMixAugment"): _versioned(_augmix),
    (_AUGMENT, "AutoAugment"): _versioned(_auto_augment),
    (_AUGMENT, "RandAugment"): _versioned(_rand_augment),
    ("timm.data.random_erasing", "RandomErasing"): _versioned(_erasing),
    (_TRANSFORMS, "CenterCropOrPad"): _of(CenterCropOrPad, "size", "fill", "padding_mode"),
    (_TRANSFORMS, "MaybePILToTensor"): lambda given, recognise: (PILToTensor(),),
    (_TRANSFORMS, "MaybeToTensor"): lambda given, recognise: (ToTensor(),),
    (_TRANSFORMS, "RandomCropOrPad"): _of(RandomCropOrPad, "size", "fill", "padding_mode"),
    (_TRANSFORMS, "RandomResizedCropAndInterpolation"): _versioned(_crop),
    (_TRANSFORMS, "ResizeKeepRatio"): _versioned(_resize),
    (_TRANSFORMS, "ToNumpy"): lambda given, recognise: (PILToTensor(),),
    (_TRANSFORMS, "TrimBorder"): _of(TrimBorder, "border_size"),
}
