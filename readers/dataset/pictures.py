"""A row as people see it: one image with everything drawn on it, and the other fields as texts. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from packtrain._codec.decode import RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.pillow import require_pillow
from packtrain._core.errors import DatasetError, RemoteError
from packtrain._core.printable import printable
from packtrain._core.schema import CROP, LABEL, Field, Schema

from .drawing import GAP, BoxField, as_images, beside, fitted, span, with_boxes, with_mask
from .store import Label, Store

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST: Final = 4000
"""Characters of a text that are shown."""
_NUMBERS: Final = 24
"""Numbers of an array, and bytes, that are shown."""
_SCALES: Final = (8, 4, 2)
"""The factors by which a JPEG can be decoded smaller."""


@dataclass(frozen=True)
class Look:
    """Options for what is drawn, and how large.

    Attributes:
        side: The most pixels of an image's width and height.
        masks: True to draw masks.
        boxes: The field whose boxes are drawn; None: no boxes.
    """

    side: int = 160
    masks: bool = True
    boxes: BoxField | None = None

    def draws(self, field: Field) -> bool:
        """True for a field that becomes a part of the image."""
        return field.has_pixels or (self.boxes is not None and self.boxes.name == field.name)


@dataclass(frozen=True)
class Picture:
    """A row as people see it.

    Attributes:
        image: The images side by side, in RGB, the first with its masks and boxes; None if there is none.
        texts: The label and all fields that are not drawn, by name.
        problem: What is damaged, and so left out; None if nothing is.
    """

    image: Image | None
    texts: Mapping[str, str]
    problem: str | None = None


def stored_picture(store: Store, row: int, look: Look) -> Picture:
    """Return the picture of what is stored of `row`."""
    texts, problems = stored_texts(store, row, look)
    values: dict[str, Any] = {}
    image = None
    with _noted(problems):
        for each in filter(look.draws, store.schema.fields):
            with _noted(problems):
                values[each.name] = _value(store, each.name, row, look.side)
        image = drawn(values, store.schema, look, size_of(store, row))
    return Picture(image, texts, next(iter(problems), None))


def stored_texts(store: Store, row: int, look: Look | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the label of `row` and its fields that are not drawn as texts, by name, and what is damaged of them."""
    schema, texts, problems = store.schema, dict[str, str](), list[str]()
    if schema.labels.kind != "none":
        with _noted(problems):
            texts[LABEL] = label_text(store.label(row), schema.classes)
    for each in schema.fields:
        if not (look or Look()).draws(each):
            with _noted(problems):
                texts[each.name] = value_text(store.field(each.name).value(row), each.kind)
    return texts, problems


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Notes what is damaged or out of reach, and goes on."""
    try:
        yield
    except (DatasetError, RemoteError) as error:
        problems.append(printable(str(error)))


def label_text(label: Label, classes: tuple[str, ...] | None) -> str:
    """Return a label as a text: its class name and its number, or the number."""
    if classes is not None and isinstance(label, int) and 0 <= label < len(classes):
        return f"{printable(classes[label])} ({label})"
    return value_text(label, "array") if isinstance(label, np.ndarray) else f"{label:g}"


def value_text(value: Any, kind: str) -> str:
    """Return a value without pixels as a text that is fit to be shown."""
    if value is None:
        return "(missing)"
    if kind == "number":
        return str(value)
    if kind == "array":
        array = np.asarray(value)
        form = "{:g}" if array.dtype.kind in "fc" else "{}"
        numbers = [*map(form.format, array.flat[:_NUMBERS].tolist()), *["..."] * (array.size > _NUMBERS)]
        return f"{array.dtype} {list(array.shape)}: {', '.join(numbers)}"
    if kind == "bytes":
        return f"{len(value):,} bytes: {value[:_NUMBERS].hex(' ')}{' ...' * (len(value) > _NUMBERS)}"
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _MOST else f"{text[:_MOST]}... ({len(text):,} characters)"


def drawn(values: Mapping[str, Any], schema: Schema, look: Look, stored: tuple[int, int] | None = None) -> Image | None:
    """Draw the fields with pixels of a sample: its images side by side, masks and boxes on the first one.

    Args:
        values: The sample, by field; with `CROP` if a transform has cropped it.
        schema: The stored fields.
        look: What is drawn.
        stored: Width and height of the stored image in pixels, which boxes refer to.

    Raises:
        ValueError: A transform has made something else than images.
    """
    images = [image for each in schema.fields if each.kind == "image" for image in as_images(values.get(each.name))]
    masks = [mask for each in schema.fields if each.kind == "mask" and (mask := values.get(each.name)) is not None]
    if not images and masks:
        height, width = np.asarray(masks[0]).shape
        images = [require_pillow().new("RGB", (width, height))]
    if not images:
        return None
    share = look.side if len(images) == 1 else max(1, look.side // len(images) - GAP)
    first, *others = (fitted(image, share) for image in images)
    for mask in masks if look.masks else ():
        first = with_mask(first, np.asarray(mask))
    if look.boxes is not None and stored is not None and values.get(look.boxes.name) is not None:
        first = _boxed(first, look.boxes, values, stored)
    return beside([first, *others])


def notes_of(values: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Say of images whose numbers are no colours how they became some."""
    found = {each.name: span(values.get(each.name)) for each in schema.fields if each.kind == "image"}
    return {name: note for name, note in found.items() if note is not None}


def _boxed(image: Image, boxes: BoxField, values: Mapping[str, Any], stored: tuple[int, int]) -> Image:
    corners = boxes.corners(values[boxes.name], *stored)
    if values.get(CROP) is None:
        return with_boxes(image, corners, *stored)
    left, top, width, height, mirrored = map(int, values[CROP])
    corners -= (left, top, left, top)
    if mirrored:
        corners[:, [0, 2]] = width - corners[:, [2, 0]]
    return with_boxes(image, corners, width, height)


def _value(store: Store, name: str, row: int, side: int) -> Any:
    """A field of `row`; of a JPEG much larger than `side`, a smaller image."""
    records = store.field(name)
    options = records.field.store
    if options is None:
        return records.value(row)
    encoded = records.image(row)
    if encoded is None:
        return None
    longest = max(encoded.width, encoded.height)
    scale = next((scale for scale in _SCALES if longest // scale >= side), 1)
    try:
        return RecordDecoder(options, decoder()).region(encoded, encoded.box, scale)
    except Exception as error:
        raise records.undecodable(row, error) from error


def size_of(store: Store, row: int) -> tuple[int, int] | None:
    """Width and height of what boxes are drawn on; None if the row is without it."""
    name = next((each.name for each in store.schema.fields if each.has_pixels), None)
    width, height = (0, 0) if name is None else store.field(name).size(row)
    return (width, height) if width else None
