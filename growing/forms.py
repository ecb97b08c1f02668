"""What samples look like: their fields and the type of their labels, found out from the first ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import FillError, UsageError
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import IMAGE, LABEL, Field, check_array, image_field
from packtrain._formats import StoredLabel
from packtrain._packer.lists.labels import LARGEST_FLOAT32, is_exact, rounded_label
from packtrain._packer.sources import Refused

Sample = Mapping[str, Any]
"""What a source yields: a value by the name of its field.

A value is bytes, a str, a numpy array or scalar or whatever has ``__array__`` (as a tensor on the CPU), a number, or a
dict or list for JSON. ``image`` is the content of a JPEG or PNG file, and ``label`` a number or a vector of numbers.
"""
_KEPT = StoreOptions("verbatim")


class Form(NamedTuple):
    """What samples look like.

    Attributes:
        fields: Their fields.
        labels: Type of their labels.
    """

    fields: tuple[Field, ...]
    labels: LabelSpec

    @classmethod
    def of(cls, sample: Sample, store: StoreOptions = _KEPT) -> Self:
        """The form of one sample.

        Args:
            sample: The sample.
            store: How images are stored.

        Raises:
            Refused: It is no sample, or holds what cannot be stored; the message names the field.
        """
        values = mapping_of(sample)
        try:
            fields = [_field(name, value, store) for name, value in values.items() if name != LABEL]
        except UsageError as error:
            raise Refused(str(error)) from error
        if not fields:
            raise Refused("it has no field, such as an array or bytes")
        fields.sort(key=lambda field: field.name != IMAGE)
        return cls(tuple(fields), _label_type(values.get(LABEL)))

    def joined(self, other: Form) -> Self:
        """The form that has room for samples of both.

        Raises:
            FillError: There is none; the message names the field.
        """
        here, there = ({field.name: field for field in form.fields} for form in (self, other))
        for name in sorted(here.keys() ^ there.keys()):
            raise FillError(f"field {name}: some of the first samples have it and others do not. Yield it always")
        fields = tuple(_joined(field, there[field.name]) for field in self.fields)
        return self._replace(fields=fields, labels=_joined_labels(self.labels, other.labels))


def mapping_of(sample: Any) -> dict[str, Any]:
    """A sample as a dict.

    Raises:
        Refused: It is no mapping, or does not give its values.
    """
    if type(sample) is dict:
        return sample
    if not isinstance(sample, Mapping):
        raise Refused(f"a sample is a dict of field and value, not an object of type {type(sample).__name__}")
    try:
        return dict(sample)
    except Exception as error:
        raise Refused(f"it does not give its values: {type(error).__name__}: {error}") from error


def array_of(name: str, value: Any) -> npt.NDArray[Any]:
    """A value as an array, without copying it where that is possible.

    Raises:
        Refused: It is none.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise Refused(f"{name} is a masked array, whose mask would be lost: yield {name}.filled(...)")
    if isinstance(value, np.ndarray):
        return value
    if not (isinstance(value, bool | int | float | complex) or hasattr(value, "__array__")):
        raise Refused(f"{name} is an object of type {type(value).__name__}, not a numpy array")
    try:
        return np.asarray(value)
    except Exception as error:
        # The code of other libraries, which raises anything; torch for a tensor on the GPU.
        raise Refused(f"{name} cannot become a numpy array: {type(error).__name__}: {error}") from error


def fits(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """True if two types differ at most in their byte order."""
    return dtype == wanted or dtype.newbyteorder("<") == wanted


def fits_shape(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """True if each size is that which is wanted, or any is."""
    return len(shape) == len(wanted) and all(want in (None, size) for size, want in zip(shape, wanted, strict=True))


def in_words(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """Type and shape for messages.

    >>> in_words(np.dtype("<f4"), (None, 3))
    'float32 [N, 3]'
    """
    return f"{dtype.name} [{', '.join('N' if size is None else str(size) for size in shape)}]"


def label_of(value: Any, labels: LabelSpec) -> StoredLabel:
    """A label as it is stored.

    Raises:
        Refused: It has another type.
    """
    if labels.kind == "none":
        if value is not None:
            raise Refused("it has a label, and the cache holds none")
        return None
    if type(value) is int and labels == _INT and -(1 << 63) <= value < 1 << 63:
        return value
    found = _numbers(value)
    kind, count = labels.kind, None if not found.ndim else len(found)
    if count != labels.count or (found.dtype.kind == "f" and kind == "int"):
        raise Refused(f"label is {_label_type(value)}, and the cache holds {labels}")
    if kind == "float":
        numbers = found.astype(np.float64)
        if not (np.abs(numbers) <= LARGEST_FLOAT32).all():
            raise Refused(f"label {value!r} is not a finite number of 32 bits")
        # Of a list, numpy has made floating-point numbers already.
        for number in value if isinstance(value, list | tuple) else np.atleast_1d(found).tolist():
            if isinstance(number, int | np.integer) and not is_exact(int(number), "<f4"):
                raise Refused(rounded_label(int(number)))
    else:
        numbers = found.astype(np.int64)
    items = numbers.tolist()
    return tuple(items) if isinstance(items, list) else items


_INT = LabelSpec("int")


def _numbers(value: Any) -> npt.NDArray[Any]:
    if value is None:
        raise Refused("it has no label, and the cache holds them")
    try:
        found = np.asarray(value)
    except Exception as error:
        raise Refused(f"label cannot become a number: {type(error).__name__}: {error}") from error
    if found.dtype.kind == "b" or (isinstance(value, list | tuple) and any(isinstance(item, bool) for item in value)):
        raise Refused("label is a bool: give 1 for true and 0 for false")
    large = found.dtype.kind == "u" and found.size and int(found.max()) >= 1 << 63
    if found.dtype.kind not in "iuf" or found.ndim > 1 or not found.size or large:
        what = f"of type {type(value).__name__}"
        raise Refused(f"label is {what}, neither a number nor a vector of numbers. Number the classes of names")
    return found


def _label_type(value: Any) -> LabelSpec:
    if value is None:
        return LabelSpec("none")
    found = _numbers(value)
    return LabelSpec("float" if found.dtype.kind == "f" else "int", len(found) if found.ndim else None)


def _joined_labels(here: LabelSpec, there: LabelSpec) -> LabelSpec:
    if here.count != there.count or (here.kind == "none") != (there.kind == "none"):
        raise FillError(f"label: some of the first samples have {here} and others {there}. Make them alike")
    return here if here.kind == "float" else there


def _field(name: Any, value: Any, store: StoreOptions) -> Field:
    """The field that a value is of.

    Raises:
        Refused: The value cannot be stored.
        UsageError: Nor can values of this type, or by this name.
    """
    if not isinstance(name, str):
        raise Refused(f"the name of a field is a str, not an object of type {type(name).__name__}")
    if name == IMAGE:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Refused(
                f"{name} holds the content of image files, such as JPEG or PNG, as bytes, and not an object of type "
                f"{type(value).__name__}. Give pixels another name"
            )
        return image_field(store)
    if value is None:
        raise Refused(f"{name} is None")
    if isinstance(value, str):
        return Field(name, "text")
    if isinstance(value, bytes | bytearray | memoryview):
        return Field(name, "bytes")
    if isinstance(value, Mapping | list | tuple):
        return Field(name, "json")
    array = array_of(name, value)
    dtype = array.dtype.newbyteorder("<").str
    check_array(name, dtype, array.shape)
    return Field(name, "array", dtype=dtype, shape=array.shape)


def _joined(here: Field, there: Field) -> Field:
    if here == there:
        return here
    if here.kind == there.kind == "array" and here.dtype == there.dtype and here.shape and there.shape:
        shape = (None, *here.shape[1:])
        if fits_shape([size or 0 for size in there.shape], shape):
            return Field(here.name, "array", dtype=here.dtype, shape=shape)
    raise FillError(
        f"field {here.name}: some of the first samples have {_described(here)} and others {_described(there)}, and "
        "only the first size may differ. Make them alike in the source, or give them different names"
    )


def _described(field: Field) -> str:
    if field.kind != "array":
        return field.kind
    assert field.dtype is not None and field.shape is not None
    return in_words(np.dtype(field.dtype), field.shape)


def described(form: Form) -> str:
    """A form for messages.

    >>> described(Form((Field("x", "array", dtype="<f4", shape=(2,)),), LabelSpec("none")))
    'x: float32 [2]'
    """
    labels = [] if form.labels.kind == "none" else [f"label: {form.labels}"]
    return ", ".join([*(f"{field.name}: {_described(field)}" for field in form.fields), *labels])
