"""The columns of Hugging Face's `datasets`, and the samples that their values make.

The library holds an image as a struct of its bytes and a path, and says in its features which column is what.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from packtrain._core.schema import IMAGE, LABEL

from .lists.parquet import is_numeric, is_plain, is_text, is_type, item_type
from .lists.suggestions import field_words
from .options import Columns, FieldColumn
from .sources import Refused, read_source

_IMAGES: Final = (IMAGE, "img", "jpg", "jpeg", "png", "webp")
_LABELS: Final = (LABEL, "labels", "cls")
_NO_LABEL: Final = -1
"""The label that `datasets` gives a row without one."""


@dataclass(frozen=True)
class Features:
    """The meaning of the columns of such a dataset.

    Attributes:
        images: Columns of images.
        classes: Class names by column of labels.
        dtypes: Types of all columns, as Arrow calls them.
    """

    images: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]
    dtypes: Mapping[str, Any]

    @classmethod
    def of(cls, schema: Any, asked: Columns | None = None) -> Features:
        """Those of an Arrow schema; what ``datasets`` says of its columns is in the metadata.

        Binary columns that are asked for as images are images, whatever that says.
        """
        try:
            described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"].items()
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            described = ()
        dtypes = {name: _plain(schema.field(name).type) for name in schema.names}
        known = {name: feature for name, feature in described if name in dtypes and isinstance(feature, dict)}
        wanted = _IMAGES if asked is None else _image_columns(asked)
        images = [name for name, dtype in dtypes.items() if _is_image(known.get(name, {}), dtype, name in wanted)]
        classes = {
            name: tuple(map(str, feature["names"]))
            for name, feature in known.items()
            if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
        }
        return cls(tuple(images), classes, dtypes)

    def columns(self, missing: Collection[str]) -> Columns:
        """All columns that can be stored, each by its type; fields of those in `missing` are optional."""
        # The only one, or the one with the usual name.
        image = _only(self.images, _IMAGES)
        label = _only(tuple(self.classes), _LABELS) or next((name for name in _LABELS if name in self.dtypes), None)
        kinds = {name: self._kind(name) for name in self.dtypes if name not in (image, label)}
        fields = [
            FieldColumn(_field(name, kind), kind, name, by_path=kind == "image", optional=name in missing)
            for name, kind in kinds.items()
            if kind
        ]
        return Columns(image, label, tuple(fields))

    def left_out(self) -> tuple[str, ...]:
        """The columns that cannot be stored."""
        return tuple(name for name in self.dtypes if self._kind(name) is None)

    def is_named(self, column: str) -> bool:
        """True for a column of labels that are the names of classes, which nothing numbers."""
        return column not in self.classes and column in self.dtypes and is_text(self.dtypes[column])

    def _kind(self, name: str) -> str | None:
        dtype = self.dtypes[name]
        if name in self.images:
            return "image"
        if is_text(dtype):
            return "text"
        if is_numeric(dtype):
            return "array"
        if is_type(dtype, "binary", "large_binary"):
            return "bytes"
        return "json" if is_plain(dtype) else None


def _plain(dtype: Any) -> Any:
    return dtype.value_type if is_type(dtype, "dictionary") else dtype


def _image_columns(columns: Columns) -> set[str | None]:
    return {columns.image, *(field.column for field in columns.fields if field.kind == "image")}


def _is_image(feature: Mapping[str, Any], dtype: Any, wanted: bool) -> bool:
    """True for what ``datasets`` calls an image, a struct that looks like one, and bytes that are wanted as one."""
    kind = feature.get("_type", "Image")
    if is_type(dtype, "struct"):
        held = {dtype.field(number).name: dtype.field(number).type for number in range(dtype.num_fields)}
        return kind == "Image" and held.keys() == {"bytes", "path"} and _are_image(**held)
    if is_type(dtype, "binary", "large_binary"):
        return wanted or feature.get("_type") == "Image"
    return is_text(dtype) and feature.get("_type") == "Image"


def _are_image(bytes: Any, path: Any) -> bool:
    """True for the types of the content of a file, and of its path; of a column without a value, nobody knows."""
    return is_type(bytes, "binary", "large_binary", "null") and (is_text(path) or is_type(path, "null"))


def _only(names: Sequence[str], usual: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else next((name for name in usual if name in names), None)


def _field(column: str, kind: str) -> str:
    """The name of a field that is closest to that of a column."""
    plain = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    return field_words(plain, kind).partition("=")[0]


def plain_sample(
    sample: Mapping[str, Any], features: Features, columns: Columns, folder: Path | None = None, *, named: bool = False
) -> dict[str, Any]:
    """A sample whose images are bytes, and whose arrays have the types of their columns.

    Args:
        sample: What there is of it, by column.
        features: What its columns are.
        columns: Which of them hold what.
        named: True for the name of its class in place of a label, if the column has names.
        folder: Where files must lie that it names; None for anywhere.

    Raises:
        Refused: The file of an image cannot be read, a list is no array, or it has no label.
    """
    values = dict(sample)
    for name in features.images:
        if name in values:
            values[name] = _image(name, values[name], folder)
    # A text in a column of arrays is taken for the path of an .npy file.
    files = [field.column for field in columns.fields if field.by_path or field.kind == "array"]
    for column in files if columns.image is None else (columns.image, *files):
        if folder is not None and column not in features.images and isinstance(path := values.get(column), str):
            values[column] = _inside(column, folder, path)
    for field in columns.fields:
        name = field.column
        if field.kind == "array" and values.get(name) is not None and is_numeric(dtype := features.dtypes[name]):
            if isinstance(values[name], list) and not values[name] and dtype.value_type != item_type(dtype):
                continue  # No array, because nobody knows how long the lists would be that it has not.
            try:
                values[name] = np.array(values[name], item_type(dtype).to_pandas_dtype())
            except (TypeError, ValueError) as error:
                raise Refused(f"column {name!r} is no array: {error}") from error
    label = columns.label
    if label is not None and label in features.classes and values.get(label) == _NO_LABEL:
        raise Refused(
            f"column {label!r} is {_NO_LABEL}, by which `datasets` says that a row has no label. To pack without "
            f"labels, name the other columns, as in --image {columns.image}"
        )
    if named and label is not None and label in features.classes:
        values[label] = _class_name(values.get(label), features.classes[label])
    return values


def _class_name(label: Any, names: Sequence[str]) -> Any:
    if label is None:
        return None
    if not 0 <= label < len(names):
        raise Refused(f"label {label} is outside the {len(names)} class names, whose labels are 0 to {len(names) - 1}")
    return names[label]


def _image(column: str, value: Any, folder: Path | None) -> Any:
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (value, None)
    if isinstance(data, str):
        data, path = None, data
    if data is not None or not path:
        return data
    found = path if folder is None else _inside(column, folder, path)
    try:
        return read_source(found)
    except Refused as refusal:
        raise Refused(f"column {column!r}: {path}: {refusal}") from refusal


def _inside(column: str, folder: Path, path: str) -> str:
    """The file that a path names; whoever wrote the Parquet file could name any other."""
    found = os.path.join(os.path.abspath(folder), path)
    if "\0" in path:
        raise Refused(f"column {column!r}: {path!r} holds a null character, as no path does")
    if not os.path.realpath(found).startswith(os.path.join(os.path.realpath(folder), "")):
        raise Refused(
            f"column {column!r}: {path}: it leads out of the folder of the Parquet file, from which alone files "
            "are taken"
        )
    return found
