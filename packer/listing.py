"""The input of the packer: a `Listing` names the samples, and its `Source` has their content."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.npy import npy_header
from packtrain._core.options import LabelSpec
from packtrain._core.paths import is_address, without_credentials
from packtrain._core.schema import Field, Schema
from packtrain._formats import StoredLabel
from packtrain._formats.writing import NewRecord

_AT_ONCE: Final = 1 << 14


class Cell(NamedTuple):
    """One cell of a list: a field of one sample.

    Attributes:
        content: A path as the list gives it, if `by_path`; else the value: text in UTF-8, JSON text in UTF-8, bytes as
            they are, or for an array its values as a JSON list (or number) or the content of an ``.npy`` file.
            The JSON text ``[]`` is an array of any shape [0, ...].
        by_path: True if `content` is the path of the file that holds the value.
    """

    content: bytes
    by_path: bool


class ListedSample(NamedTuple):
    """One line of a list.

    Attributes:
        line: 0-based number of the line.
        path: Path of the image as the list gives it; bytes that are not UTF-8 are surrogate escapes. Of a list without
            an image column the first path among the cells, or an empty text if there is none.
        label: Label on the line; None if the list has no labels.
        cells: Content of the other fields, in the order of the columns; None for a field that the sample is without.
    """

    line: int
    path: str
    label: StoredLabel
    cells: tuple[Cell | None, ...] = ()


@dataclass(frozen=True)
class Reject:
    """A line that could not be packed.

    Attributes:
        line: 0-based number of the line.
        path: Path as the list gives it, or the whole line if it could not be parsed; an address without credentials.
        reason: Why it was refused.
    """

    line: int
    path: str
    reason: str

    def __post_init__(self) -> None:
        # It is printed, and written beside the shards.
        object.__setattr__(self, "path", without_credentials(self.path))


class Encoded(NamedTuple):
    """A record that has no place in a shard yet, or a value for the index.

    Attributes:
        payload: Bytes of the record; of arrays, raw masks and raw images the values alone; of numbers and strings those
            of the value as its column has it.
        extension: File extension that names the encoding, without the dot; empty for a value of the index.
        shape: Shape of the values, or height, width and channels of the image; () where it means nothing.
        dtype: numpy type string of values, which most containers hold as `.npy` files; None for all else.
        frame: Width, height and orientation, as far as the field has columns for them.
        remarks: What the user should know about this record.
    """

    payload: bytes | memoryview
    extension: str
    shape: tuple[int, ...] = ()
    dtype: str | None = None
    frame: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    def record(self, *, bare: bool) -> NewRecord:
        """The record in a container that holds `bare` values, or `.npy` files."""
        header = b"" if bare or self.dtype is None else npy_header(self.dtype, self.shape)
        checksum = crc32c(self.payload, crc32c(header)) if header else crc32c(self.payload)
        return NewRecord(self.payload, self.extension, checksum, self.shape, header, self.frame)


class EncodedSample(NamedTuple):
    """A sample that has no place in a shard yet.

    Attributes:
        label: Its label; None if the dataset has no labels.
        records: Its records, and values for the index, in the order of the schema; None for a field that it is without.
    """

    label: StoredLabel
    records: tuple[Encoded | None, ...]


class Source(Protocol):
    """The content of samples. A source is sent to the workers, so it pickles."""

    def encoder(self, schema: Schema) -> str | None:
        """Names the libraries that, apart from the content, decide the stored bytes; None if there are none.

        Raises:
            MissingDependency: A package that is needed is not installed, or does not work.
        """

    def reading(self, samples: Sequence[ListedSample], *, content: bool = True) -> AbstractContextManager[Source]:
        """The same source, ready to read samples; the others may be met as they are.

        Args:
            samples: The samples that will be read, in this order.
            content: False if only their sizes are asked for.
        """
        return nullcontext(self)

    def encode(self, schema: Schema, sample: ListedSample) -> EncodedSample:
        """Reads and converts all that belongs to a sample.

        Args:
            schema: What samples consist of.
            sample: What the list says about this one.

        Raises:
            Refused: One of the fields cannot become a record; the message names it.
            OSError: A file cannot be read, for a reason other than its content; the error names the file.
            RemoteError: An object cannot be read, for a reason other than its content.
            DatasetError: The sample comes from a dataset, which is damaged there or cannot be read.
            MemoryError: There is not enough memory for this sample.
            MissingDependency: A package that a store mode needs is not installed.
        """

    def keeps_sizes(self, schema: Schema) -> bool:
        """True if records are about as large as what they are made of, so that `size` can be asked for."""

    def size(self, schema: Schema, sample: ListedSample) -> int:
        """Size in bytes of all that the records of a sample are made of.

        Raises:
            OSError: A file is missing or cannot be read.
        """

    def where(self, sample: ListedSample) -> str:
        """The name of a sample for messages."""

    def resolve(self, path: str) -> str:
        """Returns the path under which the file that the list calls `path` is found, if it is one of a file."""
        return path


@runtime_checkable
class Items(Sized, Protocol):
    """Inputs: something with a length, and with items by number."""

    def __getitem__(self, number: int, /) -> Any:
        """Return the input of this number, from 0."""


def is_items(source: object) -> TypeGuard[Items]:
    """True for what has items by number; False for what can only be gone through once."""
    # torch's iterable datasets inherit a method that gives no item.
    data = sys.modules.get("torch.utils.data")
    return isinstance(source, Items) and not (data is not None and isinstance(source, data.IterableDataset))


class Listing(Protocol):
    """A parsed list.

    The lines that could be parsed are the *entries* of the list. Their ordinals count them from 0, in list order.

    Attributes:
        labels: Type of the labels; kind none if the list has none.
        fields: The fields, where they are known; None to find them by options and the content of a sample.
        name: Prefix of the shard names.
        classes: Class names by label, or None.
        rejects: The lines that could not be parsed.
        lines: Number of lines that are neither blank nor a header.
        duplicates: Number of lines that repeat an earlier line exactly.
        sha256: SHA-256 of all that decides the content of the list, in hexadecimal digits.
    """

    labels: LabelSpec
    fields: tuple[Field, ...] | None
    name: str
    classes: tuple[str, ...] | None
    rejects: list[Reject]
    lines: int
    duplicates: int
    sha256: str

    @property
    def advice(self) -> str:
        """Advice on a list that cannot be read as it is: the fault, and the words to type; empty if none is found."""

    @property
    def source(self) -> Source:
        """The content of the samples."""

    def __len__(self) -> int:
        """Number of entries: lines that are neither blank nor refused."""

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the entries with these ordinals."""

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the line numbers, int64 [n], of the entries with these ordinals [n]."""


def all_entries(images: Listing) -> Iterator[ListedSample]:
    """Yields all entries of a list, of which some are in memory at a time."""
    for start in range(0, len(images), _AT_ONCE):
        yield from images.entries(np.arange(start, min(start + _AT_ONCE, len(images))))


def where_looked(images: Listing, path: str, reason: str) -> str:
    """Name the folder in which a missing file was looked for, and the option for another folder.

    Empty if it fails for another reason.
    """
    if os.strerror(errno.ENOENT) not in reason:
        return ""
    start = images.source.resolve(path).removesuffix(path)
    if not start:
        return ""
    start = start if is_address(start) else os.path.abspath(start)
    return f"Relative paths start from {start}: if the files lie elsewhere, name another folder (`root`)"


def dataset_name(name: str) -> str:
    """The name of a list as a prefix of shard names: only ASCII letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "data"
