"""Datasets of many fields for tests of the loader, and their batches in plain Python.

In a module of its own, because spawned processes import it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate

from packtrain import ImageDataset, Ragged, StoreOptions
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field, Schema
from packtrain._readers.dataset.rows import is_sample, sample_type
from packtrain._readers.dataset.samples import Samples
from packtrain._readers.transforms.finisher import Finisher
from packtrain._readers.transforms.tensor_steps import FinishingStep
from packtrain.errors import CorruptRecord

SIZE = (9, 11)
SCHEMA = Schema(
    (
        Field("image", "image", store=StoreOptions("raw")),
        Field("mask", "mask", optional=True, encoding="png", dtype="|u1"),
        Field("depth", "mask", encoding="raw", dtype="<u2"),
        Field("near", "image", optional=True, store=StoreOptions("raw")),
        Field("caption", "text", optional=True),
        Field("title", "text"),
        Field("meta", "json", optional=True),
        Field("blob", "bytes", optional=True),
        Field("boxes", "array", optional=True, dtype="<f4", shape=(None, 4)),
        Field("steps", "array", dtype="<i8", shape=(None,)),
        Field("vector", "array", optional=True, dtype="<f2", shape=(6,)),
        Field("table", "array", dtype="<c8", shape=(3, 4)),
        Field("number", "array", dtype="|b1", shape=()),
        Field("nothing", "array", dtype="<f8", shape=(2, 0)),
    ),
    LabelSpec("int"),
)
NAMES = (*SCHEMA.names, "label", "crop")
OPTIONAL = tuple(field.name for field in SCHEMA.fields if field.optional)
RAGGED = ("boxes", "steps")
LISTS = ("caption", "title", "meta", "blob")


class Unpicklable(str):
    """A text that cannot be pickled."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("no field is to be pickled")


class UnpicklableDict(dict[str, Any]):
    """A JSON object that cannot be pickled."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("no field is to be pickled")


class UnpicklableBytes(bytes):
    """Bytes that cannot be pickled."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("no field is to be pickled")


def values(row: int) -> dict[str, Any]:
    """All fields of a row; None where it is without one."""
    chance = np.random.default_rng(row)
    height, width = SIZE
    texts = ["", f"row {row}", "Zürich \U0001f600", "\udcff\ud83d", "x" * 300]
    found = {
        "image": torch.from_numpy(chance.integers(0, 256, (height, width, 3), np.uint8)).permute(2, 0, 1),
        "mask": chance.integers(0, 256, SIZE, np.uint8),
        "depth": chance.integers(0, 1 << 16, SIZE, np.int32),
        "near": torch.from_numpy(chance.integers(0, 256, (height, width, 1), np.uint8)).permute(2, 0, 1),
        "caption": Unpicklable(texts[row % 5]),
        "title": Unpicklable(texts[(row + 3) % 5]),
        "meta": UnpicklableDict(row=row, nested=[{"a": None, "ü": [1.5, float(row)]}, texts[row % 5]]),
        "blob": UnpicklableBytes(chance.bytes(row % 4 * 50)),
        "boxes": chance.random((row % 3, 4), np.float32),
        "steps": np.arange(row % 4, dtype=np.int64),
        "vector": chance.random(6).astype(np.float16),
        "table": (chance.random((3, 4)) + 1j * row).astype(np.complex64),
        "number": np.array(row % 2 == 0),
        "nothing": np.empty((2, 0)),
        "label": row % 10,
        # The image of a first row is missing, but not that of any other.
        "crop": np.array([row, 1, 7, 5, row % 2], np.int64) if row else None,
    }
    for place, name in enumerate(OPTIONAL):
        # The first row is without any of them.
        if (row + place) % (place + 2) == 0 or not row:
            found[name] = None
    return found


class Opened:
    """Stands for the store that the samples come from. Nothing is open."""

    identity, io, read_bytes, waited_ns = "numbers", "mmap", 0, 0
    chunks, remote, compares_again = None, False, False

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @property
    def opened(self) -> Opened:
        return self

    def close_unused(self) -> None:
        """Has nothing to close."""

    def release(self) -> None:
        """Has nothing to let go of."""


class Fields(Samples):
    """Samples of many fields, made of nothing, in the place of those on disk.

    Args:
        rows: Number of rows.
        names: The fields of a sample.
        damaged: Rows that cannot be read.
        schema: What is known about the fields.
        change: Called with the values of each row, and changes them.
        steps: Steps on tensors that images end with.
    """

    foreign, classes, transform = False, None, None
    draws: int = 1
    finishers: tuple[Finisher, ...] = ()

    def __init__(
        self,
        rows: int,
        names: tuple[str, ...] | None = NAMES,
        damaged: Sequence[int] = (),
        schema: Schema = SCHEMA,
        change: Callable[[dict[str, Any]], Any] = lambda values: None,
        steps: Sequence[FinishingStep] = (),
    ) -> None:
        finisher = Finisher(steps, 1)
        self.finishers = (finisher,) if finisher else ()
        self.draws = 1 + finisher.draws
        self._count, self._names, self._damaged, self._change = rows, names, damaged, change
        self._stores: Any = [Opened(schema)]
        self.foreign = change is not nothing

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self._names

    @property
    def schema(self) -> Schema:
        schema: Schema = self._stores[0].schema
        return schema

    @property
    def composes(self) -> Any:
        return ()

    @property
    def stores(self) -> Any:
        return tuple(self._stores)

    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        pass

    def __len__(self) -> int:
        return self._count

    def make(self, row: int, random: Any = None, into: Any = None, on_stage: Any = None, *, finish: bool = True) -> Any:
        if row in self._damaged:
            raise CorruptRecord(f"row {row} is damaged")
        found = values(row)
        self._change(found)
        if isinstance(into, np.ndarray) and into.shape == (*SIZE, 3) and found["image"] is not None:
            into[:] = found["image"].permute(1, 2, 0).numpy()
            found["image"] = into
        for name in ("image", "near") if finish and self.finishers else ():
            if found[name] is not None:
                found[name] = self.finishers[0].image(found[name], random)
        names = self._names or ("image", "label")
        return sample_type(names)(*map(found.get, names)) if self._names else tuple(map(found.get, names))

    def filename(self, row: int) -> str:
        return Unpicklable(f"images/{row} ü\udcff.jpg")

    def line(self, row: int) -> int:
        return row + 1000

    def describe(self, row: int) -> str:
        return f"row {row}"

    def will_need(self, row: int) -> int:
        return 0

    def copy_rows(self, rows: Any, into: Any) -> bool:
        return False

    def _none(self, *arguments: Any) -> Any:
        raise NotImplementedError

    locate: Any = _none
    rows_at: Any = _none
    places_of: Any = _none
    chunk_bounds: Any = _none
    with_transform: Any = _none
    undecoded: Any = _none
    labels: Any = property(_none)


def nothing(values: dict[str, Any]) -> None:
    """Changes nothing."""


def dataset(rows: int, names: tuple[str, ...] | None = NAMES, **options: Any) -> ImageDataset:
    """A dataset of `rows` rows with the fields `names`."""
    return ImageDataset(Fields(rows, names, **{"change": nothing, **options}))


class Plain(Dataset[Any]):
    """The same samples in a dataset that is not packtrain's, without anything missing."""

    def __init__(self, rows: int, names: tuple[str, ...]) -> None:
        self.rows, self.names = rows, names

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        return sample_type(self.names)(*map(values(row).get, self.names))


def filled(name: str, value: Any) -> Any:
    """The value that stands in a batch for a missing one."""
    if value is not None:
        return value
    fills = {"mask": np.zeros(SIZE, np.uint8), "near": torch.zeros((1, *SIZE), dtype=torch.uint8)}
    fills |= {"crop": np.zeros(5, np.int64), "vector": np.zeros(6, np.float16), "boxes": np.zeros((0, 4), np.float32)}
    return fills.get(name, {"caption": "", "blob": b""}.get(name))


def assert_batch(batch: Any, rows: Sequence[int], names: Sequence[str] = NAMES) -> None:
    """A batch holds these rows: each field is what torch's default_collate makes of the values, or a list of them."""
    wanted = [values(row) for row in rows]
    for name in names:
        column, expected = getattr(batch, name), [filled(name, sample[name]) for sample in wanted]
        if name in LISTS:
            assert type(column) is list and column == expected
            assert {type(value) for value in column} <= {str, bytes, dict, type(None)}
        elif name in RAGGED:
            assert isinstance(column, Ragged) and len(column) == len(rows)
            assert column.values.dtype == torch.from_numpy(expected[0]).dtype and column.offsets.dtype == torch.int64
            for found, one in zip(column, expected, strict=True):
                assert found.shape == one.shape and found.tolist() == one.tolist()
        else:
            collated = default_collate(expected)
            assert column.dtype == collated.dtype and torch.equal(column, collated), name
    optional = tuple(name for name in names if name in OPTIONAL)
    if optional and hasattr(batch, "present"):
        assert batch.present._fields == optional
        for name, vector in zip(optional, batch.present, strict=True):
            assert vector.dtype == torch.bool and vector.tolist() == [sample[name] is not None for sample in wanted]


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """All tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Ragged):
        return [batch.values, batch.offsets]
    return [tensor for part in batch for tensor in tensors_in(part)] if is_sample(batch) else []
