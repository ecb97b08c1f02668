"""Samples of Hugging Face's `datasets`: Parquet files with images inside, and datasets of that library.

Both hold an image as a struct of its bytes and a path, and say in their features which column is what. Here they become
map-style datasets of plain samples, for `Inputs`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np

from packtrain._core.errors import ListError, UsageError
from packtrain._core.schema import IMAGE, LABEL

from .lists.parquet import is_numeric, is_plain, is_text, is_type, item_type, open_parquet
from .options import Columns, FieldColumn, PackOptions
from .sources import Refused, read_source

_PARQUET: Final = (".parquet", ".pq")
_IMAGES: Final = (IMAGE, "img", "jpg", "jpeg", "png", "webp")
_LABELS: Final = (LABEL, "labels", "cls")
_FOOTER: Final = 1 << 20
_OF_SPLIT: Final = re.compile(r"(.+)-[0-9]+-of-[0-9]+|(train|validation|val|test)")
"""Stems of files that hold a split, or a piece of one."""


@dataclass(frozen=True)
class Features:
    """What the columns of such a dataset are.

    Attributes:
        images: Columns of images.
        classes: Class names by column of labels.
        dtypes: Types of all columns, as Arrow calls them.
    """

    images: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]
    dtypes: Mapping[str, Any]

    @classmethod
    def of(cls, schema: Any) -> Features:
        """Those of an Arrow schema; what ``datasets`` says of its columns is in the metadata."""
        try:
            described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"].items()
        except (KeyError, TypeError, ValueError, AttributeError):
            described = ()
        dtypes = {name: schema.field(name).type for name in schema.names}
        known = {name: feature for name, feature in described if name in dtypes and isinstance(feature, dict)}
        images = [name for name, dtype in dtypes.items() if _is_image(known.get(name, {}), dtype)]
        classes = {
            name: tuple(map(str, feature["names"]))
            for name, feature in known.items()
            if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
        }
        return cls(tuple(images), classes, dtypes)

    def image(self) -> str | None:
        """The column that is the image of a sample: the only one, or the one with the usual name."""
        return _only(self.images, _IMAGES)

    def label(self) -> str | None:
        """The column that is the label of a sample."""
        return _only(tuple(self.classes), _LABELS) or next((name for name in _LABELS if name in self.dtypes), None)

    def columns(self) -> Columns:
        """All columns that can be stored, each by its type."""
        image, label = self.image(), self.label()
        kinds = {name: self._kind(name) for name in self.dtypes if name not in (image, label)}
        fields = [
            FieldColumn(_field(name), kind, name, by_path=kind == "image") for name, kind in kinds.items() if kind
        ]
        return Columns(image, label, tuple(fields))

    def left_out(self) -> tuple[str, ...]:
        """The columns that cannot be stored."""
        return tuple(name for name in self.dtypes if self._kind(name) is None)

    def arrays(self, columns: Columns) -> dict[str, Any]:
        """The Arrow type of each column that is to be an array and holds numbers."""
        names = [field.column for field in columns.fields if field.kind == "array" and field.column in self.dtypes]
        return {name: self.dtypes[name] for name in names if is_numeric(self.dtypes[name])}

    def _kind(self, name: str) -> str | None:
        dtype = self.dtypes[name]
        if is_type(dtype, "dictionary"):
            dtype = dtype.value_type
        if name in self.images:
            return "image"
        if is_text(dtype):
            return "text"
        if is_numeric(dtype):
            return "array"
        if is_type(dtype, "binary", "large_binary"):
            return "bytes"
        return "json" if is_plain(dtype) else None


def _is_image(feature: Mapping[str, Any], dtype: Any) -> bool:
    """True for what ``datasets`` calls an image, and for a struct that looks like one."""
    names = {dtype.field(number).name for number in range(dtype.num_fields)} if is_type(dtype, "struct") else set()
    return names == {"bytes", "path"} and feature.get("_type", "Image") == "Image"


def _only(names: Sequence[str], usual: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else next((name for name in usual if name in names), None)


def _field(column: str) -> str:
    """The name of a field that is closest to that of a column."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_") or column


def parquet_files(source: Path) -> list[Path]:
    """The Parquet files that a path names: it alone, those of a pattern, or those in a folder or in its ``data``."""
    if not source.is_dir():
        if source.suffix not in _PARQUET:
            return []
        return (not source.exists() and sorted(source.parent.glob(source.name))) or [source]
    for folder in (source, source / "data"):
        if found := sorted(path for suffix in _PARQUET for path in folder.glob(f"*{suffix}")):
            return found
    return []


def _require_one_split(files: Sequence[Path]) -> None:
    matches = [_OF_SPLIT.fullmatch(path.stem) for path in files]
    splits = sorted({match[1] or match[2] for match in matches if match})
    if len(splits) > 1:
        raise UsageError(
            f"{files[0].parent} has the files of several splits: {', '.join(splits)}. Pack each into a dataset of its "
            f"own; {str(files[0].parent / splits[0]) + '*' + files[0].suffix!r} as the source names the files of one"
        )


class ParquetSamples:
    """The rows of Parquet files with images inside, as a map-style dataset. One group of rows is in memory at a time.

    Args:
        files: The files, one after the other.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: One is no Parquet file, or has other columns than the first.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self.arrays: Mapping[str, Any] = {}
        self._groups: list[tuple[int, int, int]] = []
        digest, schema = hashlib.sha256(), None
        for number, path in enumerate(self._files):
            with open(path, "rb") as file:
                opened = open_parquet(file, path.name)
                size = file.seek(0, os.SEEK_END)
                # It has the place and the size of every column of every group.
                file.seek(max(0, size - _FOOTER))
                digest.update(f"{path.name} {size}\n".encode("utf-8", "surrogateescape") + file.read())
                schema = opened.schema_arrow if schema is None else schema
                _require_alike(schema, self._files[0], opened.schema_arrow, path)
                counts = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
            self._groups += [(number, group, count) for group, count in enumerate(counts)]
        assert schema is not None, "there is a file"
        self._starts = [0, *accumulate(count for _, _, count in self._groups)]
        self._digest = digest.hexdigest()
        self.features: Final = Features.of(schema)
        self._kept: tuple[int, Any] | None = None

    def __repr__(self) -> str:
        return f"ParquetSamples({self._digest})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": None}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = bisect_right(self._starts, row) - 1
        if self._kept is None or self._kept[0] != number:
            file, group, _ = self._groups[number]
            with open(self._files[file], "rb") as opened:
                self._kept = number, open_parquet(opened, self._files[file].name).read_row_group(group)
        table, place = self._kept[1], row - self._starts[number]
        sample = {name: table.column(name)[place].as_py() for name in table.column_names}
        return plain_sample(sample, self.features, self.arrays, self._files[self._groups[number][0]].parent)


def _require_alike(first: Any, source: Path, schema: Any, path: Path) -> None:
    """Refuse a file whose columns mean something else than those of the first file."""
    if not schema.equals(first):
        names = [name for name in schema.names if name not in first.names or schema.field(name) != first.field(name)]
        about = f": {', '.join(map(repr, names))}" if names else ""
        raise ListError(f"{path} has other columns than {source}{about}. Pack each into a dataset of its own")
    here, there = Features.of(schema).classes, Features.of(first).classes
    if names := sorted(name for name in {*here, *there} if here.get(name) != there.get(name)):
        raise ListError(
            f"{path} has other class names than {source} in column {names[0]!r}, so the same label would mean two "
            "classes. Pack each into a dataset of its own"
        )


class LibrarySamples:
    """A dataset of the library ``datasets``, whose images stay files.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Any) -> None:
        from datasets import Image

        self.features: Final = Features.of(dataset.features.arrow_schema)
        self.arrays: Mapping[str, Any] = {}
        for name in self.features.images:
            dataset = dataset.cast_column(name, Image(decode=False))
        self._dataset = dataset.with_format(None)
        self._fingerprint = dataset._fingerprint

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return plain_sample(self._dataset[row], self.features, self.arrays, Path())


def plain_sample(
    sample: Mapping[str, Any], features: Features, arrays: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """A sample whose images are bytes, and whose arrays have the types of their columns.

    Raises:
        Refused: The file of an image cannot be read, or a list is no array.
    """
    values = dict(sample)
    for name in features.images:
        value = values[name]
        if isinstance(value, Mapping):
            data, path = value.get("bytes"), value.get("path")
            if data is None and path:
                try:
                    data = read_source(os.path.join(folder, path))
                except Refused as refusal:
                    raise Refused(f"column {name!r}: {path}: {refusal}") from refusal
            value = data
        values[name] = value
    for name, dtype in arrays.items():
        if values[name] is not None:
            try:
                values[name] = np.array(values[name], item_type(dtype).to_pandas_dtype())
            except (TypeError, ValueError) as error:
                raise Refused(f"column {name!r} is no array: {error}") from error
    return values


def hugging_face_samples(
    source: Any, options: PackOptions, on_warning: Callable[[str], None] | None = None
) -> tuple[Any, PackOptions] | None:
    """The samples of a path or an object, and options for them; None if it is something else.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: A file is no Parquet file, or unlike the others.
        UsageError: A folder has several splits, or the options ask for an order that takes too long.
    """
    if isinstance(source, Path):
        files = parquet_files(source)
        found: Any = ParquetSamples(files) if files else None
        if found is None or not found.features.images:
            return None
        if source.is_dir():
            _require_one_split(files)
        if options.seed:
            raise UsageError(
                f"`seed` {options.seed}: rows of Parquet files with images keep their order, since another one would "
                "read a group of rows for each of them. Leave it out; a Loader shuffles"
            )
        options = replace(options, seed=None)
    elif type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "_fingerprint"):
        found = LibrarySamples(source)
    else:
        return None
    if on_warning is not None and options.columns is None and (names := found.features.left_out()):
        held = ", ".join(f"{name!r} ({found.features.dtypes[name]})" for name in names)
        on_warning(f"columns are left out, because values of their types cannot be stored: {held}")
    options = _with_features(options, found.features)
    assert options.columns is not None, "they have just been found"
    found.arrays = found.features.arrays(options.columns)
    return found, options


def _with_features(options: PackOptions, features: Features) -> PackOptions:
    """Options with the columns and class names that the features name, as far as nothing else is asked for."""
    columns = options.columns or features.columns()
    names = features.classes.get(columns.label or "")
    classes = names if options.classes is None and names else options.classes
    return replace(options, columns=columns, classes=classes)
