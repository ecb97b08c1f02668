"""Laws of batches of many fields: what becomes of each kind, whichever process makes it, and what is refused."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.named import (
    LISTS,
    NAMES,
    OPTIONAL,
    SCHEMA,
    SIZE,
    Plain,
    assert_batch,
    dataset,
    tensors_in,
    values,
)
from helpers.support import import_torchvision, require_module

from packtrain import Loader, StoreOptions
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field, Schema
from packtrain._readers.dataset.rows import sample_type
from packtrain.errors import LoaderError, UsageError

pytestmark = pytest.mark.usefixtures("no_process_left")

EXTRAS = ("row", "line", "position", "path")
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def loader_of(*arguments: Any, batch: int = 4, workers: int = 0, **options: Any) -> Loader:
    options = {"multiprocessing_context": "fork", "seed": 5, **options}
    return Loader(dataset(*arguments), batch, num_workers=workers, **options)


class TestContents:
    @pytest.mark.parametrize(
        ("workers", "method"),
        [
            (0, "fork"),
            (2, "fork"),
            pytest.param(2, "spawn", marks=pytest.mark.complete),
            pytest.param(3, "forkserver", marks=pytest.mark.complete),
        ],
    )
    def test_each_field_is_collated(self, workers: int, method: str) -> None:
        with loader_of(22, workers=workers, multiprocessing_context=method, shuffle=True, fields=EXTRAS) as loader:
            for _ in range(2):
                seen: list[int] = []
                for batch in loader:
                    assert batch._fields == (*NAMES, *EXTRAS, "present")
                    rows = batch.row.tolist()
                    assert_batch(batch, rows)
                    assert batch.line.tolist() == [row + 1000 for row in rows]
                    assert batch.path == [f"images/{row} ü\udcff.jpg" for row in rows]
                    assert {type(path) for path in batch.path} == {str}
                    assert batch.position.tolist() == list(range(len(seen), len(seen) + len(rows)))
                    seen += rows
                assert sorted(seen) == list(range(22))

    @WORKERS
    @pytest.mark.parametrize("names", [(name,) for name in NAMES] + [("label", "image"), ("image", "label")])
    def test_any_fields_in_any_order(self, names: tuple[str, ...], workers: int) -> None:
        with loader_of(9, names, workers=workers * (len(names) > 1)) as loader:
            batches = list(loader)
        wanted = (*names, "present") if set(names) & set(OPTIONAL) else names
        assert [batch._fields for batch in batches] == [wanted] * 3
        for number, batch in enumerate(batches):
            assert_batch(batch, range(9)[4 * number :][:4], names)

    @WORKERS
    def test_of_a_dataset_that_is_not_packtrains(self, workers: int) -> None:
        names = ("image", "depth", "title", "table", "number", "label", "crop")
        with Loader(Plain(9, names), 4, num_workers=workers, multiprocessing_context="fork", fields=("row",)) as loader:
            for batch in loader:
                assert batch._fields == (*names, "row")
                assert_batch(batch, batch.row.tolist(), names)

    def test_images_lie_in_channels_last_memory(self) -> None:
        for batch in loader_of(4):
            assert batch.image.is_contiguous(memory_format=torch.channels_last)
            assert batch.depth.is_contiguous()

    @WORKERS
    def test_damaged_samples_are_left_out_of_every_field(self, workers: int) -> None:
        options: dict[str, Any] = {"damaged": (0, 3, 8, 9, 10, 11)}
        loader = Loader(
            dataset(14, **options),
            4,
            num_workers=workers,
            multiprocessing_context="fork",
            on_error="skip",
            fields=EXTRAS,
        )
        with loader, pytest.warns(RuntimeWarning, match=r"left out: row \d+ is damaged"):
            batches = list(loader)
        assert [batch.row.tolist() for batch in batches] == [[1, 2], [4, 5, 6, 7], [12, 13]]
        for batch in batches:
            assert_batch(batch, batch.row.tolist())
            assert batch.position.tolist() == batch.row.tolist() == [line - 1000 for line in batch.line.tolist()]
            assert batch.path == [f"images/{row} ü\udcff.jpg" for row in batch.row.tolist()]
        assert loader.skipped == 6

    def test_a_single_sample(self) -> None:
        loader = loader_of(9, shuffle=True, fields=("row", "path"))
        for position in range(9):
            sample = loader.sample(position)
            assert sample._fields == (*NAMES, "row", "path")
            wanted = values(sample.row)
            for name in NAMES:
                found, expected = getattr(sample, name), wanted[name]
                assert type(found) is type(expected)
                assert (
                    (found.tolist(), found.dtype) == (expected.tolist(), expected.dtype)
                    if hasattr(found, "tolist")
                    else found == expected
                )

    def test_more_samples_than_a_pipe_holds(self) -> None:
        """A worker goes on writing while the consumer reads."""

        def large(found: dict[str, Any]) -> None:
            found["steps"] = np.arange(100_000) + found["label"]

        with Loader(
            dataset(10, ("steps", "label"), change=large), 4, num_workers=2, multiprocessing_context="fork"
        ) as loader:
            for batch in loader:
                for label, steps in zip(batch.label.tolist(), batch.steps, strict=True):
                    assert torch.equal(steps, torch.arange(100_000) + label)


class TestMissing:
    def test_what_is_known_needs_no_value(self) -> None:
        """No sample of the pass has any of the optional fields."""

        def bare(found: dict[str, Any]) -> None:
            found |= dict.fromkeys(OPTIONAL)

        names = tuple(name for name in NAMES if name != "near")
        (batch,) = Loader(dataset(3, names, change=bare), 3, num_workers=0)
        assert not any(map(torch.any, batch.present))
        assert batch.mask.dtype == torch.uint8 and batch.mask.shape == (3, *SIZE) and not batch.mask.any()
        assert batch.vector.dtype == torch.float16 and batch.vector.shape == (3, 6) and not batch.vector.any()
        assert batch.boxes.values.shape == (0, 4) and batch.boxes.offsets.tolist() == [0] * 4
        assert (batch.caption, batch.meta, batch.blob) == ([""] * 3, [None] * 3, [b""] * 3)

    def test_the_size_of_a_picture_must_be_seen_once(self) -> None:
        def bare(found: dict[str, Any]) -> None:
            found["near"] = None

        loader = Loader(dataset(3, ("near", "label"), change=bare), 3, num_workers=0)
        with pytest.raises(LoaderError, match="none of the first 3 samples has the field near"):
            next(iter(loader))

    @pytest.mark.parametrize("name", ["depth", "title", "steps", "table", "image"])
    def test_only_optional_fields_may_be_missing(self, name: str) -> None:
        def without(found: dict[str, Any]) -> None:
            if found["label"] == 2:
                found[name] = None

        loader = Loader(dataset(4, change=without), 4, num_workers=0)
        with pytest.raises(LoaderError, match=rf"row 2, position 2: its {name} is an object of type NoneType"):
            list(loader)

    def test_an_image_may_be_missing(self) -> None:
        fields = (Field("image", "image", optional=True, store=StoreOptions("raw")), *SCHEMA.fields[1:])

        def without(found: dict[str, Any]) -> None:
            if found["label"] % 2:
                found["image"] = None

        samples = dataset(6, ("image", "label"), schema=Schema(fields, LabelSpec("int")), change=without)
        (batch,) = Loader(samples, 6, num_workers=0)
        assert batch.present.image.tolist() == [True, False] * 3
        for row, image in enumerate(batch.image):
            wanted = torch.zeros_like(image) if row % 2 else values(row)["image"]
            assert torch.equal(image, wanted)


class TestWays:
    def test_pickling_a_batch(self) -> None:
        with loader_of(9, workers=2, fields=EXTRAS) as loader:
            for batch in loader:
                again = pickle.loads(pickle.dumps(batch))
                assert type(again) is type(batch)
                assert_batch(again, batch.row.tolist())

    @pytest.mark.complete
    @pytest.mark.parametrize("library", ["lightning", "accelerate"])
    def test_frameworks_move_every_tensor(self, library: str) -> None:
        (batch,) = loader_of(4, fields=EXTRAS)
        found = mover(library)(batch, torch.device("meta"))
        assert type(found) is type(batch)
        assert {tensor.device.type for tensor in tensors_in(found)} == {"meta"}
        assert len(tensors_in(found)) == len(tensors_in(batch)) > len(NAMES)
        for name in (*LISTS, "path"):
            assert getattr(found, name) == getattr(batch, name)

    @pytest.mark.parametrize("name", ["image", "mask", "depth", "table"])
    def test_one_field_keeps_its_slot(self, name: str) -> None:
        with loader_of(32, workers=1, prefetch_factor=1) as loader:
            held = [getattr(batch, name) for _ in range(2) for batch in loader]
            for number, column in enumerate(held):
                assert torch.equal(column, reference(name, number % 8))
            assert loader.stats.present.copied

    def test_small_fields_keep_no_slot(self) -> None:
        large = ("image", "mask", "depth", "near", "table")
        with loader_of(32, workers=1, prefetch_factor=1, fields=EXTRAS) as loader:
            held = []
            for batch in loader:
                held.append([getattr(batch, name) for name in batch._fields if name not in large])
                del batch
            assert not loader.stats.present.copied


class TestPostprocessing:
    @WORKERS
    def test_images_are_normalised_and_nothing_else(self, workers: int) -> None:
        with loader_of(6, workers=workers, mean=0.5, std=0.25, fields=("row",)) as loader:
            for batch in loader:
                rows = batch.row.tolist()
                images = torch.stack([values(row)["image"] for row in rows])
                assert torch.allclose(batch.image, (images / 255 - 0.5) / 0.25, atol=1e-6)
                assert_batch(batch, rows, tuple(name for name in NAMES if name != "image"))

    def test_without_images(self) -> None:
        with pytest.raises(UsageError, match=r"mean, std and dtype are for the field image, but a batch has mask, lab"):
            next(iter(loader_of(4, ("mask", "label"), dtype=torch.float16)))

    def test_batch_transform_gets_the_whole_batch(self) -> None:
        def change(batch: Any) -> Any:
            assert_batch(batch, batch.row.tolist())
            return batch._replace(label=torch.randint(1 << 40, (len(batch.label),)))

        found = [list(loader_of(9, fields=("row",), batch_transform=change)) for _ in range(2)]
        for one, other in zip(*found, strict=True):
            assert type(one) is sample_type((*NAMES, "row", "present"))
            assert torch.equal(one.label, other.label)
        assert len({tuple(batch.label.tolist()) for batch in found[0]}) == 3


class TestRefusals:
    def test_fields_of_the_dataset_are_not_the_loaders(self) -> None:
        with pytest.raises(UsageError, match=r"fields: 'mask': expected any of row, .*open_dataset\(fields=\.\.\.\)"):
            loader_of(4, None, fields=("mask",))

    @WORKERS
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("title", b"x", "its title is an object of type bytes, not str"),
            ("blob", "x", "its blob is an object of type str, not bytes"),
            ("meta", {1, 2}, "its meta is no JSON value"),
            ("steps", np.zeros((2, 2), np.int64), r"its steps is int64 \[2, 2\], where int64 \[any\] was expected"),
            ("boxes", np.zeros((2, 4)), r"its boxes is float64 \[2, 4\], where float32 \[any, 4\] was expected"),
            ("mask", np.zeros((3, 3), np.uint8), r"its mask is uint8 \[3, 3\], that of the first sample was uint8 \[9"),
            ("table", np.zeros((3, 4)), "its table is float64"),
            ("vector", "x", "its vector is an object of type str"),
        ],
    )
    def test_values_that_do_not_fit(self, name: str, value: Any, message: str, workers: int) -> None:
        def change(found: dict[str, Any]) -> None:
            if found["label"] == 6:
                found[name] = value

        loader = Loader(dataset(8, change=change), 4, num_workers=workers, multiprocessing_context="fork")
        with loader, pytest.raises(LoaderError, match=f"row 6, position 6: {message}"):
            list(loader)


def test_a_field_is_optional_if_it_is_so_in_any_part() -> None:
    def part(*, optional: bool) -> Any:
        field = Field("value", "array", dtype="<f4", shape=(2,), optional=optional)
        return dataset(1, ("value",), schema=Schema((field,), LabelSpec("int")))

    parts = [part(optional=number == 1) for number in range(3)]
    several: Any = part(optional=False)
    several._samples._stores = [part._samples.stores[0] for part in parts]
    assert Loader(several, 4, num_workers=0)._maker_for(several).samples.schema["value"].optional


def mover(library: str) -> Callable[[Any, torch.device], Any]:
    """The function with which a library moves batches to a device."""
    require_module(library)
    name, module = "send_to_device", f"{library}.utils"
    if library == "lightning":
        # It imports torchmetrics, and that imports torchvision if it is there.
        import_torchvision()
        name, module = "move_data_to_device", "lightning.fabric.utilities.apply_func"
    found: Callable[[Any, torch.device], Any] = getattr(importlib.import_module(module), name)
    return found


def reference(name: str, number: int) -> torch.Tensor:
    """A field of the batch of the rows from 4 * `number`, made without workers."""
    rows = range(4 * number, 4 * number + 4)
    (batch,) = Loader(dataset(32), 4, sampler=list(rows), num_workers=0)
    column: torch.Tensor = getattr(batch, name)
    return column
