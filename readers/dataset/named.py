"""Samples of named fields: each field read and decoded, and all that have pixels moved alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from packtrain._codec.effects.operation import PixelOperation
from packtrain._codec.geometry import Crop, Operation
from packtrain._codec.masks import map_mask
from packtrain._codec.stages import OTHER, RESIZE, TRANSFORM, OnStage, untimed
from packtrain._core.arguments import items
from packtrain._core.errors import UsageError
from packtrain._core.schema import CROP, IMAGE, LABEL, Schema
from packtrain._core.suggestions import did_you_mean

from ..transforms.base import Transform
from ..transforms.compose import ColoursOnly, Compose, name_of
from ..transforms.executors import Into, called
from ..transforms.pipeline import drawn
from ..transforms.recognition import class_of, recognised
from ..transforms.recognition.albumentations import OnArray
from ..transforms.recognition.torchvision import RUN, V1, V2
from ..transforms.views import Views
from .images import StoredImages
from .rows import sample_type

if TYPE_CHECKING:
    from packtrain._codec.decoders import Decoder

    from .records import Records
    from .store import Store

# torchvision's transforms that move pixels, and those that do not, for where packtrain does not run them itself. Those
# of v2 have the same names; they move masks alike, or, as the augmentations do, refuse them.
_MOVING: Final = {
    *("AugMix", "ElasticTransform", "FiveCrop", "TenCrop"),
    *(kind.__name__ for kind in RUN if issubclass(kind, Transform) and kind.geometric),
}
_COLOURING: Final = {
    *("ConvertImageDtype", "LinearTransformation", "Normalize", "RandomErasing", "ToPILImage"),
    *({kind.__name__ for kind in RUN} - _MOVING),
}
# What makes an array or a tensor of an image moves nothing.
_CONVERSIONS: Final = (np.asarray, np.array, torch.from_numpy, torch.as_tensor)
_TORCHVISIONS: Final = frozenset({"to_tensor", "pil_to_tensor", "to_image"})
_MOVERS: Final = (
    "give a transform of packtrain before all others, or one that is derived from torchvision.transforms.v2.Transform: "
    "these get images and masks together"
)
_CONTAINERS: Final = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder"})


def checked_fields(fields: Iterable[str] | None, schema: Schema) -> tuple[str, ...] | None:
    """The names of the fields that a sample is to have; None for (image, label).

    Raises:
        UsageError: There is no such field, or one is named twice, or there is none; or `fields` is None, and there is
            no image.
    """
    known = (*schema.names, LABEL, *((CROP,) if any(field.has_pixels for field in schema.fields) else ()))
    if fields is None:
        if schema.image is None:
            raise UsageError(f"its samples have no image: say what they are to have, such as fields={known[:2]}")
        return None
    names = tuple(items("fields", fields, f"a tuple with any of {', '.join(known)}"))
    if not names:
        raise UsageError(f"fields: name at least one of {', '.join(known)}")
    for name in names:
        checked_name(name, known)
        if names.count(name) > 1:
            raise UsageError(f"fields: {name!r} is named twice")
    return names


def checked_name(name: str, known: Sequence[str]) -> str:
    """Checks that there is a field `name`.

    Raises:
        UsageError: There is none.
    """
    if name not in known:
        guess = did_you_mean(str(name), known)
        raise UsageError(f"there is no field {name!r}: expected one of {', '.join(known)}{guess}")
    return name


class NamedSamples:
    """Makes the samples of named fields.

    All of packtrain's transforms get the same random numbers for all fields of a sample. So images and masks of one
    size are moved alike. Fields of different sizes, such as the two images of a pair, are each moved by what these
    numbers mean for their size.

    Args:
        store: The records.
        names: Names of the fields, from `checked_fields`.
        compose: The transform, or None.
        decoder: Decodes images.
        scaled: See `Pipeline`.
        target_transform: Called with each label, or None.
        undecoded: True to make an `Undecoded` image of ``image``.

    Raises:
        UsageError: `crop` was asked for, and callables that are not packtrain's follow; or one of these has nothing to
            act on, or moves the image alone, or may do so, and there are masks or further images.
        CorruptFile: The part of the index that belongs to one of the fields is damaged.
    """

    def __init__(
        self,
        store: Store,
        names: tuple[str, ...],
        compose: Compose | Views | None,
        decoder: Decoder,
        *,
        scaled: bool,
        target_transform: Callable[[Any], Any] | None,
        undecoded: bool = False,
    ) -> None:
        self._store = store
        self._make: Final = sample_type(names)._make
        self._names = names
        self._draws: Final = 0 if compose is None else compose.draws
        # Each view calls its own callables.
        self._compose = Compose([]) if compose is None or isinstance(compose, Views) else compose
        self._target_transform = target_transform
        self._fields: Final = {name: store.field(name) for name in names if name not in (LABEL, CROP)}
        self._with_pixels: Final = {name for name, records in self._fields.items() if records.field.has_pixels}
        self._masks: Final = [name for name, records in self._fields.items() if records.field.kind == "mask"]
        # Callables that are not packtrain's get PIL images, and are called when all fields are there.
        alone = Compose([*self._compose.fused, _unchanged]) if self._compose.foreign and not undecoded else compose
        if isinstance(compose, Views) and (self._masks or CROP in names):
            raise UsageError(
                f"fields: {(*self._masks, CROP)[0]}: it belongs to one view of an image, and Views makes several: "
                "leave it out, or give a transform of one view"
            )
        self._images: Final = {
            name: StoredImages(records, decoder, alone, scaled=scaled, undecoded=undecoded and name == IMAGE)
            for name, records in self._fields.items()
            if records.field.kind == "image"
        }
        self._foreign: Final = [(transform, _takes_several(transform)) for transform in self._compose.foreign]
        self._frame: Records | None = None
        if CROP in names:
            self._frame = store.field(_frame(store.schema, names))
            if self._compose.foreign:
                raise UsageError(
                    "fields: crop: only packtrain's transforms say what they take of an image, not "
                    f"{self._compose.foreign[0]!r}. Apply it to the batch"
                )
        self._check_foreign()

    def make(
        self,
        row: int,
        random: Sequence[float] | None = None,
        into: Into = None,
        on_stage: OnStage = untimed,
        *,
        finish: bool = True,
    ) -> Any:
        """The sample of `row`, see `Samples.make`. Arrays may be read-only views of records."""
        random = drawn(self._draws) if random is None else random
        values: dict[str, Any] = {}
        sizes: dict[str, tuple[int, int]] = {}
        for name, records in self._fields.items():
            if name in self._images:
                target = into if name == IMAGE else None
                values[name] = self._images[name].make(row, random, target, on_stage, finish=finish)
            else:
                values[name] = records.value(row, on_stage)
            if name in self._with_pixels and values[name] is not None:
                sizes[name] = records.size(row)
        for name in self._masks:
            if name in sizes:
                self._check_size(row, name, sizes)
                values[name] = _moved(values[name], self._compose.operations(*sizes[name], random))
                on_stage(RESIZE)
        if self._foreign:
            values |= self._transformed(row, {name: values[name] for name in sizes})
            on_stage(TRANSFORM)
        if LABEL in self._names:
            label: Any = self._store.label(row)
            values[LABEL] = label if self._target_transform is None else self._target_transform(label)
            on_stage(OTHER if self._target_transform is None else TRANSFORM)
        if self._frame is not None:
            values[CROP] = self._crop(self._frame, row, random)
        return self._make([values[name] for name in self._names])

    def _check_foreign(self) -> None:
        """Checks that each callable has something to act on, and none moves the image alone."""
        others = [name for name in (*self._masks, *self._images) if name != IMAGE]
        for transform, several in self._foreign:
            if IMAGE not in self._images and not (several and others):
                raise UsageError(
                    f"transform: {transform!r} is called with images, but fields={self._names} has none for it: "
                    "leave it out, or act on the batch (`batch_transform` of the Loader)"
                )
            # albumentations moves masks with the image.
            left = [name for name in others if name not in self._masks or not isinstance(transform, OnArray)]
            for mover, known in _moves_alone(transform, together=several) if left else ():
                if known:
                    raise UsageError(f"transform: {mover!r} would move the image, but not {left[0]}: {_MOVERS}")
                raise UsageError(
                    f"transform: {mover!r} gets the image, but not {left[0]}: if it moves no pixels, wrap it: "
                    f"packtrain.transforms.ColoursOnly(...); if it does, {_MOVERS}"
                )

    def _check_size(self, row: int, mask: str, sizes: Mapping[str, tuple[int, int]]) -> None:
        wide, high = sizes[mask]
        width, height = sizes.get(IMAGE, (wide, high))
        if (wide, high) != (width, height):
            how = f"it has {wide} x {high} pixels, but the image has {width} x {height}"
            raise self._fields[mask].damaged(row, how)

    def _transformed(self, row: int, values: dict[str, Any]) -> dict[str, Any]:
        """Run the callables that are not packtrain's on the fields with pixels."""
        for transform, several in self._foreign:
            if isinstance(transform, OnArray) and IMAGE in values:
                values |= self._on_arrays(transform, values)
            elif several and values:
                values = transform(values | {name: _as_mask(values[name]) for name in self._masks if name in values})
            elif IMAGE in values:
                before, values[IMAGE] = values[IMAGE], called(transform, values[IMAGE])
                self._check_unmoved(row, transform, before, values)
        return {name: _plain(value) if name in self._masks else value for name, value in values.items()}

    def _check_unmoved(self, row: int, transform: Any, before: Any, values: Mapping[str, Any]) -> None:
        """Checks that a callable has not given the image another size than the masks, as far as the shapes show it."""
        for mask in (name for name in self._masks if name in values):
            size, shape = tuple(values[mask].shape), _shape(values[IMAGE])
            if _has_size(_shape(before), size) and len(shape) >= len(size) and not _has_size(shape, size):
                described = self._store.describe(self._store.checked_row(row))
                raise UsageError(
                    f"{self._store.name}: {described}: {name_of(transform)} made an image of shape {list(shape)}, but "
                    f"{mask} still has {list(size)}: it moves pixels: {_MOVERS}"
                )

    def _on_arrays(self, transform: OnArray, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run a transform of albumentations on an image and its masks."""
        names = [name for name in self._masks if name in values]
        if not names:
            return {IMAGE: transform(values[IMAGE])}
        image, masks = transform.with_masks(values[IMAGE], [np.asarray(values[name]) for name in names])
        # A mirrored array may be a view that goes backwards, which torch does not take.
        tensors = (mask if isinstance(mask, torch.Tensor) else torch.from_numpy(mask.copy()) for mask in masks)
        return {IMAGE: image, **dict(zip(names, tensors, strict=True))}

    def _crop(self, records: Records, row: int, random: Sequence[float]) -> npt.NDArray[np.int64] | None:
        """Left, top, width and height of what is taken of an image, and 1 if it is mirrored."""
        width, height = records.size(row)
        if not width:
            return None
        plan = self._compose.plan(width, height, random)
        kept = () if plan.window is None else (Crop(plan.window),)
        moving = [each for each in (*kept, *plan.rest) if not isinstance(each, PixelOperation) or each.moves]
        if moving:
            raise UsageError(
                "fields: crop: the transform is not a crop, then at most a resize and a horizontal flip: it goes on "
                f"with {moving[0]}"
            )
        return np.array((*plan.box, plan.mirrored), np.int64)


def _frame(schema: Schema, names: Sequence[str]) -> str:
    """The field that `crop` is about: the image, or else the first one with pixels, of those asked for if any is."""
    pixels = [field.name for field in schema.fields if field.has_pixels]
    return IMAGE if IMAGE in pixels else next((name for name in names if name in pixels), pixels[0])


def _moved(mask: npt.NDArray[Any], operations: Sequence[Operation]) -> torch.Tensor:
    if operations:
        mask = map_mask(mask, operations)
    # The mask may be a view of its record, and nobody may write to that.
    return torch.from_numpy(mask if mask.flags.writeable else mask.copy())


def _moves_alone(transform: Any, *, together: bool) -> Iterator[tuple[Any, bool]]:
    """The parts of `transform` that may move the image alone.

    Args:
        transform: The callable.
        together: True if it gets images and masks together.

    Yields:
        The part, and True if it is known to move pixels, or False if packtrain does not know it.
    """
    if isinstance(transform, ColoursOnly):
        yield from (found for found in _moves_alone(transform.transform, together=False) if found[1])
        return
    package, name = class_of(transform)
    ours = () if together else recognised(transform)
    parts = _parts(transform)
    for part in parts:
        yield from _moves_alone(part, together=together and _takes_several(part))
    if (
        isinstance(transform, Views)
        or (isinstance(transform, OnArray) and transform.moves)
        or (isinstance(transform, Transform) and transform.geometric)
        or (not parts and any(isinstance(each, Transform) and each.geometric for each in ours or ()))
        or (not together and package in (V1, V2) and name in _MOVING)
    ):
        yield transform, True
        return
    known = package in (V1, V2) and (name in _COLOURING or name in _CONTAINERS)
    known = known or isinstance(transform, OnArray | torch.nn.Sequential) or _converts(transform)
    if ours is None and not known:
        yield transform, False


def _converts(transform: Any) -> bool:
    """True for a function that only makes another type of an image."""
    if getattr(transform, "__name__", "") in _TORCHVISIONS:
        return str(transform.__module__).startswith("torchvision.transforms.")
    return any(transform is each for each in _CONVERSIONS)


def _parts(transform: Any) -> Sequence[Any]:
    """The transforms that one consists of."""
    inner = transform if isinstance(transform, torch.nn.Sequential) else getattr(transform, "transforms", None)
    return list(inner) if isinstance(inner, Iterable) and not isinstance(transform, Views) else ()


def _shape(image: Any) -> tuple[int, ...]:
    """Shape of an image, whatever it is; empty if that is not known."""
    if hasattr(image, "getbands"):
        return image.height, image.width
    return tuple(getattr(image, "shape", ()))


def _has_size(shape: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """True if an array of this shape has height and width of `size`, wherever its channels are."""
    return any(shape[at : at + len(size)] == size for at in range(len(shape)))


def _takes_several(transform: Any) -> bool:
    """True for the transforms of torchvision.transforms.v2, which take images and masks together."""
    if isinstance(transform, torch.nn.Sequential):
        return len(transform) > 0 and all(_takes_several(part) for part in transform)
    return any(base.__module__.startswith("torchvision.transforms.v2") for base in type(transform).__mro__)


def _as_mask(mask: torch.Tensor) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.Mask(mask)


def _plain(mask: Any) -> Any:
    return mask.as_subclass(torch.Tensor) if isinstance(mask, torch.Tensor) else mask


def _unchanged(image: Any) -> Any:
    return image
