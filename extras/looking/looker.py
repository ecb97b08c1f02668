"""The rows of a dataset, as they are stored and as a transform gives them to a network."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from packtrain._core.arguments import whole
from packtrain._core.errors import DatasetError, LoaderError, UsageError
from packtrain._core.printable import printable
from packtrain._core.schema import CROP
from packtrain._readers.dataset.drawing import BoxField
from packtrain._readers.dataset.pictures import Look, Picture, drawn, notes_of, size_of, stored_picture, stored_texts
from packtrain._readers.dataset.stored_rows import StoredRows

from ..named_transforms import named_transform

if TYPE_CHECKING:
    from packtrain._readers.loader import Loader


@dataclass(frozen=True)
class LookOptions:
    """Options for looking at a dataset.

    Attributes:
        transform: Name of a transform, as `packtrain tune` takes it: what the network sees. ``"none"``: what is stored.
        seed: Seed of the transform's random numbers.
        boxes: ``FIELD`` or ``FIELD:FORM``, the array field of the boxes to draw, see `BoxField`; None: no boxes.
        masks: True to draw masks.

    Raises:
        UsageError: An option is out of its range.
    """

    transform: str = "none"
    seed: int = 0
    boxes: str | None = None
    masks: bool = True

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0)


class Looker:
    """Makes pictures of rows, also in several threads.

    Without a transform, it loads no torch, which takes longer than all the rest.

    Args:
        path: Folder of the dataset.
        options: How to look at it.

    Attributes:
        rows: The rows of the dataset.
        note: What the transform does not let see; None if nothing is missing.

    Raises:
        UsageError: There is no such transform, or no such field of boxes; or the transform cannot be applied.
        DatasetError: It is not a sound dataset.
    """

    def __init__(self, path: str | os.PathLike[str], options: LookOptions) -> None:
        self.rows: Final = StoredRows.open(path)
        self.note: str | None = None
        self._options = options
        self._boxes = None if options.boxes is None else BoxField.of(options.boxes, self.rows.schema)
        self._lock = threading.Lock()
        self._loader = None if options.transform == "none" else self._loader_of(path)

    @property
    def transforms(self) -> bool:
        """True if there is a transform."""
        return self._loader is not None

    @property
    def transform(self) -> str:
        """Name of the transform."""
        return self._options.transform

    @property
    def overlays(self) -> bool:
        """True if masks or boxes are drawn."""
        masks = self._options.masks and any(field.kind == "mask" for field in self.rows.schema.fields)
        return masks or self._boxes is not None

    @property
    def boxes(self) -> str | None:
        """Name of the field whose boxes are drawn."""
        return None if self._boxes is None else self._boxes.name

    def stored(self, row: int, side: int, *, overlays: bool = True) -> Picture:
        """Return the picture of what is stored of `row`, at most `side` pixels wide and high."""
        return stored_picture(*self.rows.locate(row), self._look(side, overlays=overlays))

    def seen(self, row: int, side: int, epoch: int = 0, *, overlays: bool = True) -> Picture:
        """Return the picture of what a network sees of `row` in an epoch.

        It is ``loader.sample(row)`` of a Loader that does not shuffle, where the position of a row is its number.
        """
        assert self._loader is not None
        look = self._look(side, overlays=overlays)
        store, inner = self.rows.locate(row)
        texts, problems = stored_texts(store, inner, look)
        try:
            # The random numbers of a foreign transform come from the generators of the process.
            with self._lock:
                self._loader.set_epoch(epoch)
                values: dict[str, Any] = self._loader.sample(row)._asdict()
            if look.boxes is not None and values.get(CROP) is not None:
                values[look.boxes.name] = store.field(look.boxes.name).value(inner)
            image = drawn(values, self.rows.schema, look, size_of(store, inner))
        except (DatasetError, LoaderError, ValueError) as error:
            return Picture(None, texts, printable(str(error)))
        return Picture(image, texts | notes_of(values, self.rows.schema), next(iter(problems), None))

    def _look(self, side: int, *, overlays: bool) -> Look:
        return Look(side, masks=self._options.masks and overlays, boxes=self._boxes if overlays else None)

    def _loader_of(self, path: str | os.PathLike[str]) -> Loader:
        """A Loader of all that has pixels; of the images only, if nothing else can be transformed."""
        from packtrain._readers.dataset.image_dataset import open_dataset
        from packtrain._readers.loader import Loader

        transform = named_transform(self._options.transform).transform
        schema = self.rows.schema
        images = [field.name for field in schema.fields if field.kind == "image"]
        if not images:
            raise UsageError(f"transform={self._options.transform!r}: {self.rows.name} has no images")
        masks = [field.name for field in schema.fields if field.kind == "mask" and self._options.masks]
        crop = [CROP] if self._boxes is not None else []
        problems = []
        for fields in dict.fromkeys(
            ((*images, *masks, *crop), (*images, *masks), (*images, *crop), (*images,), (images[0],))
        ):
            try:
                dataset = open_dataset(path, transform, fields=fields)
                loader = Loader(dataset, 1, shuffle=False, seed=self._options.seed, num_workers=0)
                # Whether there is a crop shows only here; a damaged record says nothing about that.
                with suppress(DatasetError):
                    loader.sample(0)
            except (UsageError, LoaderError) as error:
                problems.append(error)
                continue
            if problems:
                left = [name for name in (*images, *masks, *crop) if name not in fields]
                what = ", ".join("boxes" if name == CROP else name for name in left)
                self.note = f"{what}: not drawn on what the transform makes: {problems[-1]}"
            return loader
        raise problems[-1]
