"""Options of packing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packtrain._core.arguments import checks_names, choice, flag, instance, path_of, unexpected, whole
from packtrain._core.errors import UsageError
from packtrain._core.files import MiB
from packtrain._core.kinds import KINDS
from packtrain._core.options import FORMATS, LabelSpec, ResizeRule, StoreOptions
from packtrain._core.schema import MASK_ENCODINGS, NUMBER_DTYPES, check_name
from packtrain._core.sizes import byte_count
from packtrain._core.store_modes import STORE_MODES
from packtrain._storage.remote.urls import Url, place_of

_USUAL_SHARD: Final = 512 * MiB
_SMALLEST_SHARD: Final = 16 * MiB
_MANY_SHARDS: Final = 64
_LABELS: Final = ("int", "int*K", "float", "float*K", "class", "none")


@checks_names()
@dataclass(frozen=True)
class FieldColumn:
    """A column of a list, or a key of samples from Python code, that holds a field of the samples.

    Attributes:
        name: Name of the field.
        kind: Its kind: ``"image"``, ``"mask"``, ``"text"``, ``"json"``, ``"array"``, ``"bytes"``, ``"number"`` or
            ``"string"``.
        column: Name of the column.
        by_path: True if the cells are paths of files that hold the values; always for images and masks. The files of an
            array field are ``.npy`` files. Binary cells of Parquet hold the values of a bytes field, whatever this is;
            and so does whatever is no text and no path in a sample from Python code.
        optional: True if samples may be without the field.
        encoding: How a mask is stored, ``"png"`` or ``"raw"``.
        dtype: Type of the values of an array or a mask, such as ``"float32"``, which becomes numpy's type string; None
            to find it from a sample. Of a number int64, float64 or bool; None to find it from all rows of a list, or
            the first samples from Python code.
        shape: Shape of an array; None to find it from a sample.
        classes: Names of a mask's values, or a file with one per line; None if there are no names.

    Raises:
        UsageError: These do not fit together.
    """

    name: str
    kind: str
    column: str
    by_path: bool
    optional: bool = False
    encoding: str = "png"
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    classes: Path | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        choice("kind", self.kind, KINDS)
        check_name(self.name)
        instance("column", self.column, str)
        choice("encoding", self.encoding, MASK_ENCODINGS)
        for name in ("by_path", "optional"):
            flag(name, getattr(self, name))
        if KINDS[self.kind].by_path and not self.by_path:
            raise UsageError(f"field {self.name}: the cells of {self.kind} columns are paths: give by_path=True")
        if self.kind != "mask" and (self.encoding != "png" or self.classes is not None):
            raise UsageError(f"field {self.name}: encoding and classes are for masks, not for {self.kind}")
        if KINDS[self.kind].indexed and self.by_path:
            raise UsageError(f"field {self.name}: the cells of {self.kind} columns are values, not paths")
        if self.kind not in ("array", "mask", "number") and self.dtype is not None:
            raise UsageError(f"field {self.name}: dtype is for arrays, masks and numbers, not for {self.kind}")
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _little_endian(self.dtype))
        if self.kind == "number" and self.dtype not in (None, *NUMBER_DTYPES):
            raise unexpected("dtype", self.dtype, "int64, float64 or bool for a number")
        if self.kind != "array" and self.shape is not None:
            raise UsageError(f"field {self.name}: shape is for arrays, not for {self.kind}")
        if self.classes is not None:
            object.__setattr__(self, "classes", _names_or_file(self.classes))


def _names_or_file(classes: object) -> Path | tuple[str, ...]:
    """Class names, or the file that holds them."""
    if isinstance(classes, list | tuple) and classes and all(isinstance(name, str) for name in classes):
        return tuple(classes)
    return path_of("classes", classes)


def _little_endian(dtype: str) -> str:
    import numpy as np

    try:
        return np.dtype(dtype).newbyteorder("<").str
    except (TypeError, ValueError):
        raise unexpected("dtype", dtype, "a type of numpy's, such as float32 or uint8") from None


@checks_names()
@dataclass(frozen=True)
class Columns:
    """The columns of a list that are stored, or the keys of samples from Python code.

    Attributes:
        image: Name of the column with the paths of the images; None for samples without an image.
        label: Name of the column with the labels; None for samples without a label.
        fields: The columns of the other fields, in the order in which the fields are stored.

    Raises:
        UsageError: There is neither an image nor a field, or two fields have the same name.
    """

    image: str | None = None
    label: str | None = None
    fields: tuple[FieldColumn, ...] = ()

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if self.image is None and not names:
            raise UsageError(
                "no column is named that is to be stored: name at least one, such as that of the images (`image`)"
            )
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two fields are called {name!r}: give one of them another name")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of image and label, if there are any, and of the fields."""
        first = (self.image, self.label, *(field.column for field in self.fields))
        return tuple(column for column in first if column is not None)


@checks_names()
@dataclass(frozen=True)
class PackOptions:
    """Options of a dataset. All of them except `root` and `allow_empty` decide its plan.

    Where a text says as much, it is taken too: ``store="jpeg"`` for ``StoreOptions("jpeg")``, ``labels="float*4"`` for
    ``LabelSpec("float", 4)``, ``labels="class"`` for `label_names`, a text for a path, and ``shard_size="64MiB"``.

    Attributes:
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``. None: that of a dataset; tar for all else.
        store: How pixels are stored. None: as a dataset has them; crop-ready for all else.
        labels: Type of the labels that follow the path on each line.
        label_names: True if the label on each line is the name of its class. Classes are numbered in the order of
            `classes`, or else in sorted order; so `labels` stays int.
        classes: Class names in label order, or a file with one per line; None for a dataset without class names, or if
            an image folder or `label_names` gives them. Class folders are numbered in its order as well.
        columns: Which columns of the list hold what; None for a list of paths and labels, or an image folder. If no
            column is the label, `labels` becomes none.
        root: Folder that relative paths start from, here or in an object store (``"s3://bucket/images"``); None for the
            folder of the list. It is not part of the plan, so that machines that mount the images at different paths
            can share one plan.
        shard_size: Target size of a shard in bytes. None for a size that depends on the amount of data only
            (`usual_shard_bytes`), or that of the plan if there is one already.
        seed: Seed that shuffles the order of the records; None keeps the order of the list.
        allow_empty: True if an image folder may have class folders without images, which are classes all the same.
        where: Which rows of a dataset are packed, see `packtrain.ImageDataset.where`; None for all. Lines that were
            refused or repeated are not counted then.
    """

    format: str | None = None
    store: StoreOptions | None = None
    labels: LabelSpec = field(default_factory=LabelSpec)
    label_names: bool = field(default=False, kw_only=True)
    columns: Columns | None = field(default=None, kw_only=True)
    classes: Path | tuple[str, ...] | None = None
    root: Path | Url | None = None
    shard_size: int | None = None
    seed: int | None = 0
    allow_empty: bool = False
    where: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._take_texts()
        if self.format is not None:
            choice("format", self.format, FORMATS)
        if self.store is not None:
            _require_used(instance("store", self.store, StoreOptions, *STORE_MODES))
        instance("labels", self.labels, LabelSpec, *_LABELS)
        if self.columns is not None:
            self._fit_labels(instance("columns", self.columns, Columns))
        if self.shard_size is not None:
            object.__setattr__(self, "shard_size", byte_count("shard_size", self.shard_size))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed))
        for name in ("label_names", "allow_empty"):
            flag(name, getattr(self, name))
        if self.where is not None:
            instance("where", self.where, str, "width >= 256")
        if (self.label_names or self.classes is not None) and str(self.labels) != "int":
            raise UsageError(f"`classes` needs `labels` int, not {self.labels}")

    def _fit_labels(self, columns: Columns) -> None:
        """Brings labels and the column of labels together."""
        if columns.label is None:
            if str(self.labels) not in ("int", "none") or self.label_names or self.classes is not None:
                raise UsageError("`labels` are asked for, but no column holds them: name it with `label`")
            object.__setattr__(self, "labels", LabelSpec("none"))
        elif self.labels.kind == "none":
            raise UsageError(
                f"column {columns.label!r} is to be the label, but `labels` is none: leave out one of them"
            )

    def _take_texts(self) -> None:
        # The only way to set a field of a frozen dataclass.
        set_to = object.__setattr__
        if isinstance(self.store, str):
            set_to(self, "store", StoreOptions(self.store))
        if isinstance(self.labels, str) and self.labels == "class":
            set_to(self, "labels", LabelSpec())
            set_to(self, "label_names", True)
        elif isinstance(self.labels, str):
            try:
                set_to(self, "labels", LabelSpec.parse(self.labels))
            except UsageError:
                choice("labels", self.labels, _LABELS)
                raise unexpected("labels", self.labels, "a number for K, such as int*4") from None
        if self.classes is not None:
            set_to(self, "classes", _names_or_file(self.classes))
        if self.root is not None:
            set_to(self, "root", place_of("root", self.root))


def _require_used(store: StoreOptions) -> None:
    """Refuses options that the store mode ignores or cannot fulfil.

    `StoreOptions` takes them: a dataset on disk may have them, and has to be read.
    """
    if not store.store_mode.takes_quality and store.quality != StoreOptions.quality:
        raise UsageError(
            f"quality={store.quality} applies to store mode jpeg only, not to {store.store}: leave it out, or use "
            "--store jpeg"
        )
    limit = store.store_mode.largest_side
    if limit is not None and store.resize is not None:
        resize = ResizeRule.parse(store.resize)
        if resize.rule == "exact" and max(resize.width, resize.height) > limit:
            raise UsageError(f"resize={store.resize!r}: sides have at most {limit} pixels in mode {store.store}")


def usual_shard_bytes(total: int) -> int:
    """Returns the size that shards aim at, unless a size is asked for, for `total` bytes of records.

    As long as shards would be smaller than usual, there are 64 of them, so that all cores have work and several readers
    can share the dataset. But they are not so small that files cost more than what is in them.
    """
    return min(max(-(-total // _MANY_SHARDS), _SMALLEST_SHARD), _USUAL_SHARD)


def reject_limit(limit: str | int, lines: int) -> int:
    """Returns how many of `lines` lines may be refused under a limit such as ``"0.1%"``, ``"20"`` or ``20``.

    A percentage above zero allows at least one line.

    Raises:
        UsageError: `limit` is neither a percentage nor a count.
    """
    if type(limit) is int:
        return whole("max_rejects", limit, 0)
    text = limit if isinstance(limit, str) else ""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)(%?)", text.strip())
    if not found or (not found[2] and "." in found[1]):
        raise unexpected("max_rejects", limit, "a percentage or a count, such as 0.1% or 20")
    if not found[2]:
        return int(found[1])
    percent = float(found[1])
    return max(1, int(lines * percent / 100)) if percent > 0 else 0
