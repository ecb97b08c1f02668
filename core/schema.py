"""Schema of a sample: a label, and named fields, each of a kind that says how it is stored and collated.

The schema is the one list that all rooms iterate over: lists are read by it, shards and notes are written by it, and
the index, `verify`, readers and loaders follow it. The image is a field like any other; only the names of its columns
have no prefix, as in version 1 of the format.
"""

from __future__ import annotations

import keyword
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Final

from .arguments import choice, flag
from .errors import UsageError
from .kinds import KINDS
from .options import LabelSpec, StoreOptions
from .typed import MOST, Between, Form, OneOf

IMAGE: Final = "image"
LABEL: Final = "label"
CROP: Final = "crop"
"""The key in samples of the part of the image that was taken."""
PRESENT: Final = "present"
"""The key in batches of the vectors that say which samples have a field."""
PAIR: Final = (IMAGE, LABEL)
"""The parts of a sample that is no named tuple."""
RESERVED: Final = frozenset(
    {IMAGE, LABEL, "row", "line", "position", "path", "key", CROP, PRESENT} | set(keyword.kwlist)
)
"""Names that no other field may have: what samples hold anyway, and what cannot be an attribute in Python."""
MASK_DTYPES: Final = {"|u1": "|u1", "<u2": "<i4"}
"""Types of a mask's values as they are stored, and as samples have them: torch does little with uint16."""
MASK_ENCODINGS: Final = ("png", "raw")
MOST_DIMENSIONS: Final = 8
_NAME: Final = "[a-z][a-z0-9_]{0,63}"
NUMBER_DTYPES: Final = ("<i8", "<f8", "|b1")
MOST_STRING_BYTES: Final = 65_535
_ARRAY_DTYPE: Final = "[|]b1|[|][iu]1|<[iu][248]|<f[248]|<c(8|16)"

FieldName = Annotated[str, Form(_NAME, "a name of lower-case letters, digits and _ that begins with a letter")]
Side = Annotated[int, Between(0, MOST)]


@dataclass(frozen=True)
class Field:
    """A named part of a sample, stored as one record per sample, or in the index.

    Attributes:
        name: Its name, an attribute of samples and batches.
        kind: ``"image"``; ``"mask"``, a map of class indices, [height, width]; ``"text"`` in UTF-8; ``"json"``;
            ``"array"``; ``"bytes"``; or, in the index, ``"number"`` or ``"string"``.
        optional: True if samples may be without it.
        store: How pixels are stored, for images; else None.
        encoding: How a mask is stored, ``"png"`` or ``"raw"``; else None.
        dtype: numpy type string of the values of an array, a mask or a number, little-endian; else None.
        shape: Shape of an array, C order, whose first size is None if it differs from sample to sample; else None.
        classes: Names of a mask's values, or None.

    Raises:
        UsageError: These do not fit together.
    """

    name: FieldName
    kind: Annotated[str, OneOf(tuple(KINDS))]
    optional: bool = False
    store: StoreOptions | None = None
    encoding: str | None = None
    dtype: str | None = None
    shape: tuple[Side | None, ...] | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        choice("kind", self.kind, KINDS)
        flag("optional", self.optional)
        if (self.name, self.kind) != (IMAGE, "image"):
            check_name(self.name)
        needed = {
            "store": self.kind == "image",
            "encoding": self.kind == "mask",
            "dtype": self.kind in ("mask", "array", "number"),
            "shape": self.kind == "array",
        }
        for attribute, wanted in needed.items():
            if (getattr(self, attribute) is not None) != wanted:
                raise UsageError(f"field {self.name}: {self.kind} {'needs' if wanted else 'has no'} {attribute}")
        if self.kind == "mask":
            choice("encoding", self.encoding, MASK_ENCODINGS)
            choice("dtype", self.dtype, MASK_DTYPES)
        elif self.classes is not None:
            raise UsageError(f"field {self.name}: {self.kind} has no classes")
        if self.kind == "number":
            choice("dtype", self.dtype, NUMBER_DTYPES)
        if self.kind == "array":
            check_array(self.name, self.dtype or "", self.shape or ())

    @property
    def prefix(self) -> str:
        """Prefix of its columns in the index."""
        return "" if self.name == IMAGE else f"field.{self.name}."

    @property
    def has_pixels(self) -> bool:
        """True if its records have a width and a height, and transforms move them."""
        return self.kind in ("image", "mask")

    @property
    def indexed(self) -> bool:
        """True if its values lie in the index, and it has no records."""
        return KINDS[self.kind].indexed

    @property
    def text_column(self) -> str | None:
        """Its text column in the index; None if it has none."""
        return f"{self.prefix}value" if self.kind == "string" else None

    def columns(self) -> dict[str, str]:
        """Its columns in the index, apart from that of texts: name and numpy type string."""
        if self.indexed:
            values = {} if self.dtype is None else {"value": self.dtype}
            return {self.prefix + name: dtype for name, dtype in ({"valid": "|u1"} | values).items()}
        columns = {"offset": "<i8", "length": "<i8", "crc32c": "<u4"}
        if self.has_pixels:
            columns |= {"width": "<i4", "height": "<i4"}
        if self.kind == "image":
            columns["orientation"] = "|u1"
        return {self.prefix + name: dtype for name, dtype in columns.items()}


@dataclass(frozen=True)
class Schema:
    """All that a sample of a dataset holds.

    Attributes:
        fields: The stored fields; the image, if there is one, comes first. Only a layer of other labels has none.
        labels: Type of the labels.
        classes: Class names by label, or None.

    Raises:
        UsageError: Two fields have the same name, or there is neither a field nor a label; or a class name is no text.
    """

    fields: tuple[Field, ...]
    labels: LabelSpec
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = self.names
        try:
            os.fsencode("".join(self.classes or ()))
        except UnicodeEncodeError as error:
            raise UsageError(f"a class name has half of a surrogate pair: {error.object[:200]!a}") from error
        if not names and self.labels.kind == "none":
            raise UsageError("a dataset without a field: name at least one, such as an image or an array")
        if len(set(names)) < len(names):
            raise UsageError(f"two fields are called {Counter(names).most_common(1)[0][0]}")
        if IMAGE in names[1:]:
            raise UsageError("the image comes first among the fields")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the stored fields."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def image(self) -> Field | None:
        """The field called image, if there is one."""
        return self.fields[0] if self.fields and self.fields[0].name == IMAGE else None

    @cached_property
    def others(self) -> tuple[Field, ...]:
        """The fields without the image."""
        return self.fields[1:] if self.image is not None else self.fields

    @cached_property
    def stored(self) -> tuple[Field, ...]:
        """The fields that have records."""
        return tuple(field for field in self.fields if not field.indexed)

    @cached_property
    def indexed(self) -> tuple[Field, ...]:
        """The fields that lie in the index."""
        return tuple(field for field in self.fields if field.indexed)

    @cached_property
    def in_shards(self) -> Schema:
        """The same without the fields that lie in the index; there must be another one."""
        return replace(self, fields=self.stored)

    @property
    def plain(self) -> bool:
        """True for an image and a label, all that version 1 of the format can hold."""
        return self.image is not None and not self.image.optional and not self.others

    def __getitem__(self, name: str) -> Field:
        """The field called `name`.

        Raises:
            UsageError: There is none.
        """
        for field in self.fields:
            if field.name == name:
                return field
        raise UsageError(f"there is no field {name!r}; the dataset has {', '.join(self.names)}")

    def columns(self) -> dict[str, str]:
        """Columns of the index that come from the shards, apart from the label: name and numpy type string."""
        return {name: dtype for field in self.fields for name, dtype in field.columns().items()}


def image_field(store: StoreOptions) -> Field:
    """The field called image."""
    return Field(IMAGE, "image", store=store)


def check_name(name: str) -> str:
    """Checks the name of a field.

    Raises:
        UsageError: It is reserved, or has another form than ``[a-z][a-z0-9_]*``, at most 64 characters.
    """
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"{name!r} cannot be the name of a field: use lower-case letters, digits and _, beginning with a letter"
        )
    if name in RESERVED:
        raise UsageError(f"{name!r} cannot be the name of a field: it is reserved. Choose another name")
    return name


def check_array(name: str, dtype: str, shape: tuple[int | None, ...]) -> None:
    """Checks dtype and shape of an array field.

    Raises:
        UsageError: Values of this type cannot be stored, or more than the first size differs.
    """
    if not re.fullmatch(_ARRAY_DTYPE, dtype):
        raise UsageError(
            f"field {name}: arrays of {dtype} cannot be stored: use bool, integers, float16 to float64 or complex"
        )
    if len(shape) > MOST_DIMENSIONS:
        raise UsageError(f"field {name}: an array has at most {MOST_DIMENSIONS} dimensions, not {len(shape)}")
    if None in shape[1:]:
        raise UsageError(f"field {name}: only the first size of an array may differ from sample to sample")
