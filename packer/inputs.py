"""Inputs of which a function makes samples, or a map-style dataset: a listing and a source like any other."""

from __future__ import annotations

import hashlib
import os
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError, PacktrainError, UsageError
from packtrain._core.options import StoreOptions
from packtrain._core.schema import PAIR, Field, Schema
from packtrain._storage.remote.urls import Url

from .encoding import all_kept, record_encoder
from .facts import join_labels
from .listing import EncodedSample, Items, ListedSample, Reject, Source
from .lists.reader import read_class_names
from .options import Columns, PackOptions
from .parquet_samples import ParquetSamples
from .planning import sampled
from .sample_schemas import common_schema
from .samples import SampleEncoder
from .sources import Refused
from .user_code import with_line, without_addresses

NAME: Final = "data"
"""Prefix of the shards: inputs have no name."""
_SAMPLED_INPUTS: Final = 64
_VALUES: Final = (list, tuple, range, np.ndarray)
"""Types of inputs that hold nothing but their items."""

Function = Callable[[Any], Any]
"""Makes a sample of an input."""


class Inputs:
    """Inputs, as a `Listing`. A row is an input, and its line the input's number.

    Args:
        items: The inputs.
        function: Makes a sample of an input; None if the items are samples.
        options: What is asked for.

    Raises:
        ListError: There are no inputs, or none of the first samples can be stored.
        UsageError: The options do not fit inputs.
    """

    def __init__(self, items: Items, function: Function | None, options: PackOptions) -> None:
        self.columns = options.columns
        self.name = NAME
        self.rejects: list[Reject] = []
        self.duplicates = 0
        try:
            self.lines, self.sha256 = len(items), _digest(items, function)
        except Exception as error:
            raise UsageError(
                f"the inputs do not say how many or what they are: {with_line(error, __file__)}. Mend them, or give a "
                "list of other inputs"
            ) from error
        self.advice = ""
        if not self.lines:
            raise ListError("there are no inputs: give at least one")
        self.classes = class_names(options)
        self.source = InputSource(items, function, self.columns, root_of(options))
        schema = with_labels(self._schema(options.store or StoreOptions()), options)
        self.labels = schema.labels
        self.fields: tuple[Field, ...] | None = schema.fields

    def _schema(self, store: StoreOptions) -> Schema:
        """Return what samples hold, by those of some of the inputs, always the same ones."""
        count, first = min(len(self), _SAMPLED_INPUTS), ""
        samples = []
        for sample in sampled(self, _SAMPLED_INPUTS):
            try:
                samples.append(self.source.look(sample.line))
            except Refused as refusal:
                first = first or f"{self.source.where(sample)}: {refusal}"
        if not samples:
            raise ListError(f"none of {count} inputs gives a sample. First: {first}")
        try:
            return common_schema(samples, store, self.columns, self.classes, self.source.root)
        except Refused as refusal:
            raise ListError(f"the samples of {count} inputs cannot be stored together: {refusal}") from refusal

    def __len__(self) -> int:
        """Number of inputs."""
        return self.lines

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the inputs with these numbers; their labels are not known yet."""
        return tuple(ListedSample(line, self.source.name(line), None) for line in ordinals.tolist())

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the numbers themselves."""
        return ordinals


class InputSource(Source):
    """The samples of inputs, as a `Source`.

    Args:
        items: The inputs.
        function: Makes a sample of an input; None if the items are samples.
        columns: Which keys of a sample hold what, or None.
        root: Folder that relative paths start from.
    """

    def __init__(self, items: Items, function: Function | None, columns: Columns | None, root: str) -> None:
        self.root: Final = root
        self._items: Final = items
        self._function: Final = function
        self._columns: Final = columns
        self._encoder: SampleEncoder | None = None

    def look(self, line: int) -> Any:
        """Makes the sample of an input, or as much of it as shows what samples hold; raises as `encode`."""
        return self._items.look(line) if isinstance(self._items, ParquetSamples) else self._sample(line)

    def _sample(self, line: int) -> Any:
        try:
            item = self._items[line]
        except (MemoryError, Refused):
            raise
        except (Exception, SystemExit) as error:
            if isinstance(self._items, ParquetSamples) and isinstance(error, PacktrainError):
                raise
            raise _refusal(error) from error
        return made(self._function, item)

    def name(self, line: int) -> str:
        """Names an input in the index: a text or a path as it is, any other value by its repr.

        Only of inputs that are values: to have an item of a dataset may take long.
        """
        if isinstance(self._items, ParquetSamples):
            return self._items.name(line)
        if not isinstance(self._items, _VALUES) or self._function is None:
            return ""
        return name_of(self._items[line])

    def encoder(self, schema: Schema) -> str | None:
        """See `Source`."""
        return record_encoder(schema, of_arrays=True)

    def encode(self, schema: Schema, sample: ListedSample) -> EncodedSample:
        """See `Source`."""
        if self._encoder is None or self._encoder.schema is not schema:
            self._encoder = SampleEncoder(schema, columns=self._columns, root=self.root)
        return self._encoder.records(self._sample(sample.line))

    def keeps_sizes(self, schema: Schema) -> bool:
        """See `Source`. Of most inputs nobody knows a size before the sample is made."""
        return isinstance(self._items, ParquetSamples) and all_kept(schema)

    def size(self, schema: Schema, sample: ListedSample) -> int:
        """See `Source`."""
        assert isinstance(self._items, ParquetSamples), "no others keep sizes"
        return self._items.size(sample.line)

    def where(self, sample: ListedSample) -> str:
        """See `Source`."""
        return f"input {sample.line}{sample.path and f' ({sample.path!r})'}"


def _refusal(error: BaseException) -> Refused:
    """The reason for what the user's code raises, which may be anything; it is the same in each run."""
    return Refused(without_addresses(with_line(error, __file__)))


def made(function: Function | None, item: Any) -> Any:
    """Makes a sample of an input. A pair is an image and its label, as torchvision's datasets have them.

    Raises:
        Refused: The function raises, or gives no sample.
        MemoryError: There is not enough memory.
    """
    try:
        sample = item if function is None else function(item)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise _refusal(error) from error
    if sample is None:
        raise Refused("there is no sample, but None")
    if isinstance(sample, Iterator):
        raise Refused(
            f"one input gives one sample, not an object of type {type(sample).__name__}: to make several of an input, "
            "pack an iterable of all samples, as in pack((sample for each in inputs for sample in function(each)), out)"
        )
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return sample._asdict()
    if isinstance(sample, tuple) and len(sample) == len(PAIR):
        return dict(zip(PAIR, sample, strict=True))
    return sample


def name_of(item: Any) -> str:
    """Names an input: a text or a path as it is, any other value by its repr."""
    if isinstance(item, str | os.PathLike):
        return os.fsdecode(item)
    return without_addresses(reprlib.repr(item.item() if isinstance(item, np.generic) else item))


def class_names(options: PackOptions) -> tuple[str, ...] | None:
    """Returns the class names that are asked for.

    Raises:
        UsageError: Labels are to be names, and nobody says which ones there are.
        ListError: The file of the names cannot be read.
    """
    if options.label_names and options.classes is None:
        raise UsageError(
            "`labels` class: samples come one by one, so nobody knows all names at the start. Give a file of them as "
            "`classes`"
        )
    return None if options.classes is None else read_class_names(options.classes)


def root_of(options: PackOptions) -> str:
    """Returns the folder that paths in samples start from.

    Raises:
        UsageError: An option is for lists, or the folder is not on this machine.
    """
    if options.allow_empty:
        raise UsageError("`allow_empty` is for image folders: leave it out")
    if isinstance(options.root, Url):
        raise UsageError(f"`root` is {options.root}, but paths in samples are of this machine: read objects yourself")
    return os.path.abspath(options.root or "")


def with_labels(schema: Schema, options: PackOptions) -> Schema:
    """Returns the schema with labels of the type that is asked for, if it is not int, which is the default.

    Raises:
        UsageError: Those of the first samples are others.
    """
    asked, found = options.labels, schema.labels
    if str(asked) == "int":
        return schema
    if join_labels(asked, found) != asked:
        raise UsageError(f"`labels` is {asked}, and the first samples have {found}: leave it out, or change samples")
    return replace(schema, labels=asked)


def _digest(items: Items, function: Function | None) -> str:
    """SHA-256 of what is known of the inputs and the function, and is the same in each run, in hexadecimal digits."""
    digest = hashlib.sha256(f"{function and _name(function)}\n{type(items).__name__}\n{len(items)}\n".encode())
    if isinstance(items, np.ndarray) and not items.dtype.hasobject:
        digest.update(f"{items.dtype.str} {items.shape}\n".encode() + items.tobytes())
    elif isinstance(items, _VALUES) and not isinstance(items, range):
        for item in items:
            digest.update(without_addresses(repr(item)).encode("utf-8", "backslashreplace") + b"\n")
    else:
        # What a dataset of the library `datasets` holds has a fingerprint.
        about = repr(items), getattr(items, "_fingerprint", None)
        digest.update(without_addresses(str(about)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _name(function: Function) -> str:
    return getattr(function, "__qualname__", None) or without_addresses(repr(function))
